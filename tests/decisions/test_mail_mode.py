from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from perdure.features.mailbox.rules.poll_mode import PollMode, PollPolicy, PollState, after_cycle, wake

START = datetime(2026, 1, 1, tzinfo=UTC)
PATIENCE = PollPolicy(idle_after=3, dormant_after=timedelta(seconds=10))


def later(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def quiet(pace: PollState, seconds: float, *, must_scan: bool = False, patience: PollPolicy = PATIENCE) -> PollState:
    return after_cycle(pace, has_worked=False, must_scan=must_scan, now=later(seconds), patience=patience)


def test_empty_cycles_make_it_idle_and_time_makes_it_dormant() -> None:
    pace, modes = PollState(since=START), []
    for second in range(1, 12):
        pace = quiet(pace, second)
        modes.append(pace.mode)
    assert modes == [PollMode.running] * 2 + [PollMode.idle] * 7 + [PollMode.dormant] * 2


def test_work_wakes_it_wholly() -> None:
    asleep = quiet(quiet(quiet(PollState(since=START), 20), 21), 22)
    assert asleep.mode is PollMode.dormant
    assert after_cycle(asleep, has_worked=True, must_scan=False, now=later(30), patience=PATIENCE) == PollState(
        since=later(30)
    )


def test_a_false_alarm_leaves_it_awake_for_its_whole_patience() -> None:
    asleep = quiet(quiet(quiet(PollState(since=START), 20), 21), 22)
    awake = wake(asleep, later(30))
    assert awake.mode is PollMode.idle
    paces = [awake]
    for second in (31, 32, 33, 39, 40):
        paces.append(quiet(paces[-1], second))
    assert [pace.mode for pace in paces] == [PollMode.idle] * 5 + [PollMode.dormant]


def test_it_does_not_fall_asleep_over_a_folder_that_must_be_scanned() -> None:
    pace = PollState(since=START)
    for second in range(1, 100):
        pace = quiet(pace, second, must_scan=True)
    assert pace.mode is PollMode.idle
    assert quiet(pace, 100).mode is PollMode.dormant


def test_without_a_time_it_never_sleeps() -> None:
    pace = PollState(since=START)
    for second in range(1, 100):
        pace = quiet(pace, second * 1000, patience=PollPolicy(dormant_after=None))
    assert pace.mode is PollMode.idle


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0, 20)), max_size=50))
def test_it_sleeps_only_where_nothing_happened_for_long_enough(cycles: list[tuple[bool, bool, float]]) -> None:
    pace, now, worked = PollState(since=START), START, START
    for has_worked, must_scan, seconds in cycles:
        now += timedelta(seconds=seconds)
        pace = after_cycle(pace, has_worked=has_worked, must_scan=must_scan, now=now, patience=PATIENCE)
        worked = now if has_worked else worked
        if pace.mode is PollMode.dormant:
            assert now - worked >= timedelta(seconds=10)
            assert not must_scan

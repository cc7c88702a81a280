"""The rules of shared budgets: windows by the calendar, leases within a limit, sums that are settled once."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.contracts.people import Sender
from perdure.features.budgets.contract import BudgetChange, BudgetsState, BudgetTurn, Every, KeyTurn, Measure, Terms
from perdure.features.budgets.rules import (
    CREDIT,
    GONE,
    HEARD,
    MAX_KEYS,
    MOST_CREDIT,
    USED_UP,
    WARN,
    change_budget,
    credit_of,
    current_key,
    drop_old,
    ended_waits,
    format_amount,
    format_share,
    is_late,
    key_of,
    refuse_change,
    seconds_to_next_end,
    settle_and_lease,
    split_key,
    view_all,
    window_at,
)

KEY = key_of("team", Measure.tokens)
HUNDRED = Terms(limit=100)
NOON = datetime(2026, 11, 28, 12, tzinfo=UTC).timestamp()


def turn(seq: int = 1, worker: str = "w1", terms: Terms = HUNDRED, **asked: int) -> BudgetTurn:
    values = {"window": window_at(terms.every, NOON).start, "spent": 0, "keep": 0, **asked}
    return BudgetTurn(worker=worker, seq=seq, terms={"team/tokens": terms}, keys={KEY: KeyTurn(**values)})


@given(st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)), st.sampled_from(Every))  # noqa: DTZ001 - made aware
def test_a_window_is_the_calendars_and_the_next_begins_where_it_ends(at: datetime, every: Every) -> None:
    now = at.replace(tzinfo=UTC).timestamp()
    window = window_at(every, now)
    start = datetime.fromtimestamp(window.start, UTC)
    assert window.start <= now < now + (window.seconds or 0)
    assert start.second == 0
    if every is not Every.minute:
        assert start.minute == 0
    if every not in (Every.minute, Every.hour):
        assert start.hour == 0
    if every is Every.week:
        assert start.weekday() == 0
    if every is Every.month:
        assert start.day == 1
    following = window_at(every, window.start + (window_at(every, window.start).seconds or 0))
    assert following.start == round(now + (window.seconds or 0))


def test_an_allowance_without_a_window_is_for_ever() -> None:
    assert window_at(None, NOON) == window_at(None, 0)
    assert window_at(None, NOON).seconds is None


@dataclass
class Player:
    """A worker that does what `Purse` does, of one allowance; `truth` is what it really spent in each window."""

    name: str
    seq: int = 0
    window: int = -1
    until: float = 0.0
    granted: int = 0
    spent: int = 0
    credit: int = 0


@dataclass
class Game:
    """Workers and an entity, with lost turns, lost answers, kills, and successors of the entity."""

    terms: Terms
    state: BudgetsState = field(default_factory=BudgetsState)
    now: float = NOON
    players: dict[str, Player] = field(default_factory=dict)
    truth: dict[int, int] = field(default_factory=dict)
    raised: dict[int, int] = field(default_factory=dict)
    born: int = 0

    def player(self, number: int) -> Player:
        names = sorted(self.players)
        if number < len(names):
            return self.players[names[number]]
        self.born += 1
        return self.players.setdefault(f"w{self.born}", Player(f"w{self.born}"))

    def ask(self, who: Player, want: int, most: int, lost: str, *, last: bool = False) -> None:
        """A turn: of `lost` "request" the entity never hears, and of "answer" the worker does not hear the answer."""
        who.seq += 1
        keep = who.spent if last else max(who.granted, who.spent)
        asked = KeyTurn(window=who.window, spent=who.spent, keep=keep, want=want, most=most)
        sent = BudgetTurn(
            worker=who.name, seq=who.seq, terms={"team/tokens": self.terms}, keys={KEY: asked}, is_last=last
        )
        if last:
            who.granted = who.spent
        if lost == "request":
            return
        taken = settle_and_lease(self.state, sent, self.now)
        again = settle_and_lease(taken.state, sent, self.now)
        assert again.state == taken.state, "the same turn twice is one"
        self.state = taken.state
        if lost == "answer":
            return
        window = taken.answer.windows[self.terms.every or ""]
        if window.start != who.window:
            who.window, who.spent = window.start, 0
        who.until = float("inf") if window.seconds is None else self.now + window.seconds
        who.granted, who.credit = taken.answer.granted[KEY], window.credit

    def call(self, who: Player, cost: int) -> None:
        """Calls of the provider, as far as the worker holds what they cost."""
        left = max(who.granted, credit_of(self.terms, who.credit)) - who.spent
        if self.now < who.until and left > 0:
            cost = min(cost, left)
            who.spent += cost
            self.truth[who.window] = self.truth.get(who.window, 0) + cost

    def storm(self, cost: int, lost: str) -> None:
        """Each worker spends what it can, asks for more, and spends that."""
        for who in self.players.values():
            self.call(who, cost)
            self.ask(who, want=200, most=1, lost=lost)
            self.call(who, cost)

    def play(self, kind: str, number: int, amount: int, lost: str) -> None:
        """Make a move. A killed worker (`kill`) with an amount left its journal, and another one settles for it."""
        match kind:
            case "ask":
                self.ask(self.player(number), want=amount, most=min(amount, 10), lost=lost)
            case "storm":
                self.storm(amount, lost)
            case "call":
                self.call(self.player(number), amount)
            case "kill" if self.players:
                dead = self.players.pop(self.player(number).name)
                if amount:  # its journal is there: another worker settles for it
                    self.ask(dead, 0, 0, "", last=True)
            case "leave" if self.players:
                gone = self.player(number)
                self.ask(gone, 0, 0, lost, last=True)
                self.players.pop(gone.name)
            case "wait":
                self.now += amount
            case "rotate":
                self.state = BudgetsState.model_validate_json(drop_old(self.state, self.now).model_dump_json())
            case "raise":
                window = window_at(self.terms.every, self.now).start
                change = BudgetChange(key=KEY, amount=amount, terms=self.terms)
                self.state = change_budget(self.state, change, self.now)
                self.raised[window] = self.raised.get(window, 0) + amount
            case _:
                pass

    def check(self) -> None:
        for window, spent in self.truth.items():
            assert spent <= (self.terms.limit or 0) + self.raised.get(window, 0)


MOVES = st.one_of(
    st.tuples(
        st.just("ask"), st.integers(0, 4), st.integers(1, 200), st.sampled_from(["", "", "", "request", "answer"])
    ),
    st.tuples(st.just("call"), st.integers(0, 4), st.integers(0, 500), st.just("")),
    st.tuples(st.just("storm"), st.just(0), st.integers(0, 500), st.sampled_from(["", "request", "answer"])),
    st.tuples(st.just("kill"), st.integers(0, 4), st.integers(0, 1), st.just("")),
    st.tuples(st.just("leave"), st.integers(0, 4), st.just(0), st.sampled_from(["", "answer"])),
    st.tuples(st.just("wait"), st.just(0), st.integers(1, 5000), st.just("")),
    st.tuples(st.just("rotate"), st.just(0), st.just(0), st.just("")),
    st.tuples(st.just("raise"), st.just(0), st.integers(1, 50), st.just("")),
)


@settings(max_examples=300)
@given(
    st.lists(MOVES, min_size=20, max_size=120),
    st.sampled_from([None, Every.hour, Every.day]),
    st.integers(50, 300),
    st.booleans(),
)
def test_workers_never_spend_more_than_the_limit(
    moves: list[tuple[str, int, int, str]], every: Every | None, limit: int, keyed: bool
) -> None:
    game = Game(Terms(limit=limit, every=every, has_credit=keyed and every is not None))
    for move in moves:
        game.play(*move)
        game.check()
    game.storm(500, "answer")
    game.storm(500, "")
    game.check()


def test_a_worker_that_the_entity_does_not_know_is_taken_at_its_word() -> None:
    """A new entity without a state of the old one learns what each living worker has spent and holds."""
    state = settle_and_lease(BudgetsState(), turn(worker="w1", spent=60, keep=80), NOON).state
    taken = settle_and_lease(state, turn(worker="w2", want=50, most=5), NOON)
    assert taken.answer.granted[KEY] == 5, "20 are left, and two workers share them: blocks are at least one call"
    assert view_all(taken.state, NOON)[0].used == 60


def test_a_turn_that_comes_late_changes_nothing() -> None:
    state = settle_and_lease(BudgetsState(), turn(2, spent=10, keep=30), NOON).state
    late = settle_and_lease(state, turn(1, spent=5, keep=90, want=50, most=1), NOON)
    assert late.state == state
    assert late.news == ()


def test_what_is_left_must_cover_a_call_and_blocks_shrink_near_the_end() -> None:
    first = settle_and_lease(BudgetsState(), turn(want=80, most=10), NOON)
    assert first.answer.granted[KEY] == 50, "half of what is left, of one worker"
    second = settle_and_lease(first.state, turn(2, keep=50, want=80, most=10), NOON)
    assert second.answer.granted[KEY] == 75
    refused = settle_and_lease(second.state, turn(3, keep=75, want=80, most=26), NOON)
    assert refused.answer.granted[KEY] == 75
    assert [news.mark for news in refused.news] == [USED_UP]


def test_people_are_told_once_a_window() -> None:
    terms = Terms(limit=100, every=Every.hour, warn_at=80)
    state, told = BudgetsState(), []
    for seq, spent in enumerate((79, 80, 90, 95), 1):
        taken = settle_and_lease(state, turn(seq, terms=terms, spent=spent, keep=spent, want=50, most=50), NOON)
        state = taken.state
        told += [news.mark for news in taken.news]
    assert told == [USED_UP, WARN]
    window = window_at(Every.hour, NOON + 3600).start
    later = settle_and_lease(state, turn(9, terms=terms, window=window, spent=85, keep=85), NOON + 3600)
    assert [news.mark for news in later.news] == [WARN], "another window"


def test_a_raise_and_a_reset_are_for_this_window() -> None:
    terms = Terms(limit=100, every=Every.hour, waits=True)
    state = settle_and_lease(BudgetsState(), turn(terms=terms, spent=95, keep=95, want=10, most=10), NOON).state
    assert view_all(state, NOON)[0].is_used_up
    raised = change_budget(state, BudgetChange(key=KEY, amount=50, terms=terms), NOON)
    assert raised.changes == 1
    allowance = view_all(raised, NOON)[0]
    assert (allowance.limit, allowance.used, allowance.is_used_up) == (150, 95, False)
    reset = change_budget(raised, BudgetChange(key=KEY, terms=terms), NOON)
    assert view_all(reset, NOON)[0].used == 0
    later = settle_and_lease(reset, turn(2, terms=terms, spent=97, keep=97), NOON).state
    assert view_all(later, NOON)[0].used == 2, "what was spent since"
    assert view_all(later, NOON + 3600)[0].limit == 100


def test_groups_that_may_raise_a_budget() -> None:
    terms = Terms(limit=100, raise_by=("finance",))
    change = BudgetChange(key=KEY, amount=1, terms=terms)
    assert refuse_change(BudgetsState(), change) == "budget team is raised and reset by finance"
    anyone = change.evolve(terms=Terms(limit=100))
    state = settle_and_lease(BudgetsState(), turn(terms=terms), NOON).state
    assert refuse_change(state, anyone) is not None, "the terms that the workers have count"
    assert refuse_change(state, change.evolve(sender=Sender(door="cli", groups=("finance",)))) is None
    assert refuse_change(state, change.evolve(key="team")) == "'team' is no allowance: expected name/measure/value"
    assert refuse_change(state, change.evolve(key="x/tokens/", terms=Terms())) == "x has no limit"


def test_runs_wait_until_the_window_ends() -> None:
    terms = Terms(limit=100, every=Every.hour, waits=True)
    state = settle_and_lease(BudgetsState(), turn(terms=terms, want=500, most=500), NOON).state
    assert seconds_to_next_end(state, NOON + 600) == 3000
    assert ended_waits(state, NOON + 3599) == ()
    assert ended_waits(state, NOON + 3600) == (KEY,)
    stops = settle_and_lease(BudgetsState(), turn(terms=terms.evolve(waits=False), want=500, most=500), NOON).state
    assert seconds_to_next_end(stops, NOON) is None


def credit_in(state: BudgetsState, worker: str, seq: int, terms: Terms, at: float) -> tuple[BudgetsState, int]:
    window = window_at(terms.every, at).start
    taken = settle_and_lease(state, turn(seq, worker, terms, window=window), at)
    return taken.state, taken.answer.windows["day"].credit


def test_workers_may_spend_a_part_of_keyed_allowances_unasked_and_all_of_them_two_fifths() -> None:
    terms, state, percents = Terms(limit=1000, every=Every.day, has_credit=True), BudgetsState(), []
    for number in range(6):
        state, percent = credit_in(state, f"w{number}", 1, terms, NOON)
        percents.append(percent)
    assert percents == [CREDIT] * (MOST_CREDIT // CREDIT) + [0, 0]
    other = key_of("team", Measure.tokens, "anna")
    asked = KeyTurn(window=window_at(Every.day, NOON).start, spent=0, keep=0, want=2000, most=1)
    sent = BudgetTurn(worker="w5", seq=2, terms={"team/tokens": terms}, keys={other: asked})
    assert settle_and_lease(state, sent, NOON).answer.granted[other] == 600 // 12, "400 may be spent unasked"
    midnight = NOON + 12 * 3600
    for number in range(8):
        state, _ = credit_in(state, f"w{number}", 3, terms, midnight - 10)
    state, percent = credit_in(state, "w7", 4, terms, midnight + 10)
    assert percent == MOST_CREDIT // 8, "all that live as a window begins have the same"
    assert credit_in(state, "w1", 4, terms, midnight + 20)[1] == MOST_CREDIT // 8


def test_a_worker_that_joins_has_no_credit_once_another_was_granted_more() -> None:
    terms, window = Terms(limit=1000, every=Every.day, has_credit=True), window_at(Every.day, NOON).start
    state, _ = credit_in(BudgetsState(), "w0", 1, terms, NOON)
    within = settle_and_lease(state, turn(2, "w0", terms, window=window, want=100, most=10), NOON)
    assert within.answer.granted[KEY] == 0, "its credit covers the call"
    assert credit_in(within.state, "w1", 1, terms, NOON)[1] == CREDIT
    beyond = settle_and_lease(
        within.state, turn(3, "w0", terms, window=window, spent=95, keep=95, want=100, most=10), NOON
    )
    assert beyond.answer.granted[KEY] == 200
    assert credit_in(beyond.state, "w2", 1, terms, NOON)[1] == 0


def test_what_a_worker_holds_that_is_not_heard_of_is_shown_as_unaccounted() -> None:
    state = settle_and_lease(BudgetsState(), turn(spent=10, keep=40), NOON).state
    soon, late = view_all(state, NOON + 1)[0], view_all(state, NOON + HEARD)[0]
    assert (soon.used, soon.leased, soon.unaccounted) == (10, 30, 0)
    assert (late.used, late.leased, late.unaccounted) == (10, 0, 30)


def test_what_is_over_is_dropped() -> None:
    terms = Terms(limit=100, every=Every.hour)
    state = settle_and_lease(BudgetsState(), turn(terms=terms, spent=10, keep=10).evolve(is_last=True), NOON).state
    assert drop_old(state, NOON + 1) == state
    assert drop_old(state, NOON + GONE + 1) == BudgetsState()
    forever = settle_and_lease(BudgetsState(), turn(spent=10, keep=30), NOON).state
    kept = drop_old(forever, NOON + timedelta(days=33).total_seconds())
    assert (kept.workers, kept.keys[KEY].lost) == ({}, 20)
    assert view_all(kept, NOON)[0].unaccounted == 20


def test_as_many_allowances_as_fit_one_payload() -> None:
    terms, state = Terms(limit=1_000_000, every=Every.day, has_credit=True), BudgetsState()
    window = window_at(Every.day, NOON).start
    for worker in range(4):
        keys = {
            key_of("team", Measure.tokens, f"customer-{number:05}"): KeyTurn(window=window, spent=1234, keep=1234)
            for number in range(MAX_KEYS)
        }
        sent = BudgetTurn(worker=f"host-{worker:x}", seq=1, terms={"team/tokens": terms}, keys=keys)
        state = settle_and_lease(state, sent, NOON).state
    assert len(drop_old(state, NOON).model_dump_json()) < 2_000_000
    beyond = settle_and_lease(state, turn(worker="w", terms=terms), NOON)
    assert KEY not in beyond.answer.granted, "its calls wait"


def test_an_answer_counts_for_the_occasion_that_people_were_asked_about() -> None:
    terms = HUNDRED.evolve(waits=True, asks=True)
    state = settle_and_lease(BudgetsState(), turn(terms=terms, want=200, most=200), NOON).state
    asked = current_key(state, KEY, NOON).used_up
    assert asked is not None
    late = BudgetChange(key=KEY, amount=50, terms=terms, only_after=asked.changes)
    elsewhere = change_budget(state, BudgetChange(key="other/tokens/", amount=1, terms=terms), NOON)
    assert not is_late(elsewhere, late, NOON)
    raised = change_budget(elsewhere, BudgetChange(key=KEY, amount=1, terms=terms), NOON)
    assert is_late(raised, late, NOON)
    again = settle_and_lease(raised, turn(seq=2, terms=terms, want=200, most=200), NOON).state
    assert is_late(again, late, NOON), "people are asked anew"


def test_amounts_and_keys_in_words() -> None:
    assert format_amount(Measure.usd, 1_234_500_000) == "USD 1,234.5"
    assert format_amount(Measure.usd, 50) == "USD 0.0001"
    assert format_amount(Measure.runs, 1200) == "1,200 runs"
    assert format_share(Measure.usd, 12_500_000, 50_000_000) == "USD 12.5 of 50"
    assert format_share(Measure.runs, 1200, 1500) == "1,200 of 1,500 runs"
    assert split_key(key_of("a", Measure.usd, "x/y")) == ("a", Measure.usd, "x/y")
    with pytest.raises(ValueError, match="''"):
        split_key("a")

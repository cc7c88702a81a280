"""The recovery of a call whose attempt ended without an outcome."""

import pytest

from perdure.contracts.tool import Effect
from perdure.decisions.run.recovery import MAX_LOST, CallRecovery, FailureKind, recover_call

EFFECTS = tuple(Effect)
ONCE, OTHERS = (Effect.once,), tuple(effect for effect in Effect if effect is not Effect.once)
ANY = range(MAX_LOST + 2)
TABLE = [
    (FailureKind.cancelled, EFFECTS, ANY, CallRecovery.stop),
    (FailureKind.not_begun, EFFECTS, ANY, CallRecovery.wait),
    (FailureKind.in_doubt, EFFECTS, ANY, CallRecovery.ask),
    (FailureKind.failed, EFFECTS, ANY, CallRecovery.fail),
    (FailureKind.lost, EFFECTS, range(MAX_LOST), CallRecovery.look_up),
    (FailureKind.lost, ONCE, range(MAX_LOST, MAX_LOST + 2), CallRecovery.ask),
    (FailureKind.lost, OTHERS, range(MAX_LOST, MAX_LOST + 2), CallRecovery.fail),
    (FailureKind.late, ONCE, range(1), CallRecovery.look_up),
    (FailureKind.late, ONCE, range(1, MAX_LOST + 2), CallRecovery.ask),
    (FailureKind.late, OTHERS, ANY, CallRecovery.fail),
]
CASES = [(end, effect, lost, to) for end, effects, counts, to in TABLE for effect in effects for lost in counts]


@pytest.mark.parametrize(("end", "effect", "lost", "recovery"), CASES)
def test_each_end_of_an_attempt_has_one_recovery(
    end: FailureKind, effect: Effect, lost: int, recovery: CallRecovery
) -> None:
    assert recover_call(end, effect, lost) is recovery


def test_the_table_covers_every_end_effect_and_count() -> None:
    assert len({case[:3] for case in CASES}) == len(CASES) == len(FailureKind) * len(Effect) * len(ANY)


@pytest.mark.parametrize("effect", Effect)
@pytest.mark.parametrize("end", [FailureKind.lost, FailureKind.late])
def test_lookups_end(end: FailureKind, effect: Effect) -> None:
    assert recover_call(end, effect, MAX_LOST) is not CallRecovery.look_up

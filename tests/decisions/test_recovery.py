"""The ladder out of a full context (B5), a table for each way through it."""

import pytest

from perdure.contracts.run.turn import Recoveries, Recovery
from perdure.decisions.run.recovery import next_recovery, record_recovery

C, P, A = Recovery.compact, Recovery.prune, Recovery.ask

WAYS = {
    "once": ([10], [C]),
    "again soon": ([10, 30], [C, P]),
    "again later": ([10, 31], [C, C]),
    "to the top": ([10, 11, 12], [C, P, A]),
    "to the top, each at the last moment": ([10, 30, 50], [C, P, A]),
    "four and no more": ([1, 2, 3, 4, 5, 99], [C, P, A, P, None, None]),
    "far apart, four and no more": ([10, 40, 70, 100, 130], [C, C, C, C, None]),
    "a prune that held begins anew": ([10, 20, 41], [C, P, C]),
}


@pytest.mark.parametrize(("turns", "stages"), WAYS.values(), ids=WAYS)
def test_the_rungs(turns: list[int], stages: list[Recovery | None]) -> None:
    done, climbed = Recoveries(), []
    for turn in turns:
        stage = next_recovery(done, turn)
        climbed.append(stage)
        if stage:
            done = record_recovery(done, stage, turn)
    assert climbed == stages

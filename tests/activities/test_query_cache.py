"""A query that a busy worker did not answer is soon sent again; one that no worker answers, ever more seldom."""

from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities import temporal
from perdure.activities.temporal import QueryCache


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(temporal, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def workflow(history_length: int = 5) -> Any:
    async def describe() -> Any:
        return SimpleNamespace(run_id="r", history_length=history_length)

    return SimpleNamespace(id="run:r", describe=describe)


async def test_the_pause_doubles_up_to_half_a_minute_and_an_answer_ends_it(clock: SimpleNamespace) -> None:
    cache, asked, answers = QueryCache(), list[float](), False

    async def ask() -> str:
        asked.append(clock.seconds)
        if not answers:
            raise RPCError("no worker", RPCStatusCode.DEADLINE_EXCEEDED, b"")
        return "here"

    for second in range(100):
        clock.seconds = second + 0.5
        with pytest.raises(RPCError):
            await cache.read(workflow(), "state", ask)
    assert asked == [0.5, 3.5, 8.5, 17.5, 34.5, 65.5, 96.5]
    with pytest.raises(RPCError):
        await cache.read(workflow(6), "state", ask)  # its history has grown
    answers, clock.seconds = True, clock.seconds + 2.1
    assert await cache.read(workflow(6), "state", ask) == "here"
    clock.seconds += 1000
    assert await cache.read(workflow(6), "state", ask) == "here"
    assert len(asked) == 9

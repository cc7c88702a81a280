"""A run that is watched: shown once and in order over continue-as-new, and on from any place in it."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.client.run_events import ContinuedAsNew, RunEvent
from perdure.client.watch import MAX_READ_AHEAD, EventPosition, HistoryReader, Watch
from perdure.testkit.model_server import Reply, calls
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld

BRANCH_TOKENS = "Current and request branch tokens, or current and request versioned transitions, don't match."
PositionedEvents = list[tuple[EventPosition | None, RunEvent]]


def steps(number: int) -> list[Reply]:
    return [calls(("look", {"n": n})) for n in range(number)] + [calls(("finish", {"outcome": "done"}))]


async def read_events(client: Client, run_id: str, after: EventPosition | None = None) -> PositionedEvents:
    return [each async for each in Watch(client, run_id, after=after, follow=False).positioned_events()]


async def test_a_watch_goes_on_from_any_place_of_a_run_that_rotated(
    world: MakeWorld, short_history_client: Client
) -> None:
    look = ScriptedTool("look", lambda arguments, _: f"result {arguments['n']}")
    async with world(steps(25), look, server=short_history_client, max_steps=25) as it:
        run = await it.run_to_end()
        run_id = run.id.removeprefix("run:")
        whole = await read_events(it.client, run_id)
        places = [place for place, _ in whole if place is not None]
        assert len(places) == len(set(places)) == len(whole) > 2 * MAX_READ_AHEAD
        rotations = sum(isinstance(happening, ContinuedAsNew) for _, happening in whole)
        assert rotations >= (1 if it.project.fuse_reads else 2)
        around = [n for n, (_, each) in enumerate(whole) if isinstance(each, ContinuedAsNew)]
        for number in {0, len(whole) - 1, *around, *(n + 1 for n in around), *(n - 1 for n in around)}:
            assert await read_events(it.client, run_id, places[number]) == whole[number + 1 :]
        gone = EventPosition("0" * 8 + "-0000-0000-0000-" + "0" * 12, 5, 0)
        assert await read_events(it.client, run_id, gone) == whole


def test_a_position_survives_parsing() -> None:
    place = EventPosition("01a20447-8e85-70c6-8e1a-b9a93636b7e7", 12, 1)
    assert EventPosition.parse(str(place)) == place


@pytest.mark.parametrize("text", ["", "12.1", "01a20447-8e85-70c6-8e1a-b9a93636b7e7.-1.0", "x" * 36 + ".1.0"])
def test_a_bad_position_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="invalid event id"):
        EventPosition.parse(text)


class GivesUp:
    """A handle, and the client that it is of: the server gives a long poll up after each event, so many times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def get_workflow_handle(self, *_: Any, **__: Any) -> "GivesUp":
        return self

    async def fetch_history_events(self, **_: Any) -> AsyncIterator[HistoryEvent]:
        for number in (1, 2, 3):
            yield HistoryEvent(event_id=number)
            if self.times:
                self.times -= 1
                raise RPCError(BRANCH_TOKENS, RPCStatusCode.INVALID_ARGUMENT, b"")


async def test_a_poll_that_the_server_gives_up_is_repeated_without_duplicates() -> None:
    client: Any = GivesUp(4)
    polled = HistoryReader(client, retry_pause=0)._execution_events("w", "e", follow=True)
    events = [event.event_id async for event in polled]
    assert (events, client.times) == ([1, 2, 3], 0)
    gone = HistoryReader(cast("Client", GivesUp(50)), retry_pause=0)
    with pytest.raises(RPCError):
        [event async for event in gone._execution_events("w", "e", follow=True)]

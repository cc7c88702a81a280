"""A run that is watched: shown once and in order over continue-as-new, and on from any place in it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, cast

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.client.run_events import (
    ContinuedAsNew,
    QuestionClosed,
    RunEvent,
    ToolCallRefused,
    ToolResultReceived,
    WaitStarted,
)
from perdure.client.watch import MAX_READ_AHEAD, EventPosition, HistoryReader, Watch
from perdure.contracts.tool import Approval, Effect, ToolKind
from perdure.features.follow_ups.events import FollowUpCommanded
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


async def test_a_run_read_later_says_what_was_said_live(world: MakeWorld) -> None:
    """Of all questions of a turn, of a denied call and of one that expired, with the times of the server's events."""
    pay = ScriptedTool("pay", lambda *_: "paid", effect=Effect.once, approval=Approval.always)
    hire = ScriptedTool("hire", approval=Approval.always, approval_timeout=timedelta(seconds=2))
    ask = ("ask_human", {"question": "Which one?", "options": ["a", "b"]})
    script = [calls(("pay", {"n": 1}), ("pay", {"n": 2})), calls(ask), calls(("hire", {})), *steps(0)]
    async with world(script, pay, hire) as it:
        run = await it.start()
        run_id = run.id.removeprefix("run:")
        live: PositionedEvents = []

        async def follow() -> None:
            async for entry in Watch(it.client, run_id).positioned_events():
                live.append(entry)

        following = asyncio.create_task(follow())

        def asked() -> list[list[str]]:
            waits = [each for _, each in live if isinstance(each, WaitStarted)]
            return [[question.id for question in wait.questions] for wait in waits]

        await it.until(lambda: asked() == [["q1", "q2"]])
        await run.execute_update("answer", {"question_id": "q1", "decision": "approve", "by": "eva"})
        await it.until(lambda: asked() == [["q1", "q2"], ["q2"]])
        await run.signal("human_input", {"question_id": "q2", "decision": "deny", "text": "not twice"})
        await it.until(lambda: len(asked()) == 3)
        await run.execute_update("answer", {"text": "b"})
        await run.result()
        await following
        later = await read_events(it.client, run_id)
        assert later == [(place, each) for place, each in live if place is not None]
        assert [each.at for _, each in later] == [each.at for place, each in live if place is not None]
    happened = [each for _, each in later]
    assert asked() == [["q1", "q2"], ["q2"], ["q3"], ["q4"]]
    first = next(each for each in happened if isinstance(each, WaitStarted)).questions
    assert [(q.tool_use_id, q.arguments) for q in first] == [("toolu_0_0", {"n": 1}), ("toolu_0_1", {"n": 2})]
    closed = [(each.question.id, each.end) for each in happened if isinstance(each, QuestionClosed)]
    assert closed == [("q1", "answered"), ("q2", "answered"), ("q3", "answered"), ("q4", "expired")]
    refused = [(e.tool_use_id, e.error.kind) for e in happened if isinstance(e, ToolCallRefused)]
    assert refused == [("toolu_0_1", "denied"), ("toolu_2_0", "denied")]


async def test_what_comes_from_outside_is_an_event_of_its_call(world: MakeWorld) -> None:
    look = ScriptedTool("look", kind=ToolKind.signal)
    async with world([calls(("look", {})), *steps(0)], look) as it:
        run = await it.start()
        await it.until_state(run, status="waiting_on_tool")
        run_id = run.id.removeprefix("run:")
        payload = {"run_id": run_id, "step": 1, "tool": "look", "status": "ok", "result": [1]}
        await run.signal("tool_result", {"payload": payload})
        await run.result()
        events = [each for _, each in await read_events(it.client, run_id)]
    [came] = [each for each in events if isinstance(each, ToolResultReceived)]
    assert (came.step, came.tool, came.outcome.result) == (1, "look", [1])


async def test_a_follow_up_is_an_event_of_the_run_that_creates_it(world: MakeWorld) -> None:
    create = calls(("workflow_create", {"definition": {"summary": "all is known"}}))
    async with world([create, *steps(0)], follow_ups=()) as it:
        run = await it.run_to_end()
        events = [each for _, each in await read_events(it.client, run.id.removeprefix("run:"))]
        (commanded,) = [each for each in events if isinstance(each, FollowUpCommanded)]
        assert (commanded.created, commanded.task) == (True, None)
        assert (await it.client.get_workflow_handle(commanded.id).describe()).workflow_type == "FollowUp"


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

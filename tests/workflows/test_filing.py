"""A run's own files are seen to in passing; what hinders that is waited out in sight, and nothing is told twice."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError

from activities.run.files import RunFiles, _finish_files
from activities.storage.workspace import Workspace
from activities.telemetry import trace
from contracts.run.journal import Journal
from contracts.run.state import CloseRequest
from perdure.process.workflows import run_query_worker
from perdure.testkit.model_server import calls
from tests.timeline import timeline
from tests.workflows.lane import begun, new_id, say, until_idle

FINISH = calls(("finish", {"outcome": "done"}))


async def scheduled(run: Any) -> list[str]:
    """The activities that the server has handed out."""
    events = [event.activity_task_scheduled_event_attributes async for event in run.fetch_history_events()]
    return [each.activity_type.name for each in events if each.activity_type.name]


async def test_what_goes_well_costs_the_server_no_task(world: Any) -> None:
    async with world([FINISH]) as it:
        run = await it.start()
        await run.result()
        assert await scheduled(run) == ["plan"]
        assert await timeline(run) == ["open_run", "plan", "close_segment"]


@pytest.mark.parametrize("name", ["open_run", "close_segment"])
async def test_what_cannot_be_done_in_passing_is_tried_in_sight_until_it_is(
    world: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    whole, left = RunFiles._read_conversation, 3
    wanted = {"open_run": 1, "close_segment": 3}[name]  # parts of the conversation by then

    async def full(self: RunFiles, length: int, *args: Any) -> Any:
        nonlocal left
        if length == wanted and left:
            left -= 1
            raise OSError(28, "No space left on device")
        return await whole(self, length, *args)

    monkeypatch.setattr(RunFiles, RunFiles._read_conversation.__name__, full)
    async with world([FINISH]) as it:
        run = await it.start()

        async def is_in_sight() -> bool:
            pending = (await run.describe()).raw_description.pending_activities
            return [each.activity_type.name for each in pending] == [name]

        await it.until(is_in_sight)
        assert (await run.result())["type"] == "agent.completed"
        assert left == 0
        assert (await scheduled(run)).count(name) == 1


async def test_a_cancel_that_is_the_workers_own_cancels_no_run(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that shuts down cancels what it has in hand."""
    opened, calls_of_it = RunFiles._read_conversation, 0

    async def shut_down(self: RunFiles, *args: Any) -> Any:
        nonlocal calls_of_it
        calls_of_it += 1
        if calls_of_it == 1:
            raise CancelledError("the worker shuts down")
        return await opened(self, *args)

    monkeypatch.setattr(RunFiles, RunFiles._read_conversation.__name__, shut_down)
    async with world([FINISH]) as it:
        run = await it.start()
        assert (await run.result())["type"] == "agent.completed"
        assert await scheduled(run) == ["open_run", "plan"]


async def test_a_run_that_is_cancelled_before_a_worker_takes_it_is_not_opened(world: Any) -> None:
    async with world([FINISH], works=False) as it:
        run = await it.start()
        await run.cancel()
        async with it.worker():
            with pytest.raises(WorkflowFailureError) as failure:
                await run.result()
        assert isinstance(failure.value.cause, CancelledError)
        assert {"open_run", "plan"}.isdisjoint(await timeline(run))
        await it.replay()


async def test_a_process_that_only_answers_leaves_it_to_a_worker(world: Any) -> None:
    async with world([FINISH], works=False) as it:
        async with run_query_worker(it.client, it.queue):
            run = await it.start()
            assert (await it.until_state(run, status="queued"))["goal"] == "do it"

            async def is_in_sight() -> bool:
                return await scheduled(run) == ["open_run"]

            await it.until(is_in_sight)
        async with it.worker():
            assert (await run.result())["type"] == "agent.completed"
        assert await it.failed_tasks(run) == 0
        await it.replay()


async def test_a_cancel_that_comes_as_the_run_ends_decides_how_it_ends(
    world: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server takes no end that does not know of it: the run ends anew, and its files with it."""
    close, run = RunFiles._read_conversation, None

    async def cancelled_meanwhile(self: RunFiles, length: int, *args: Any) -> Any:
        if run is not None and length > 1 and not cancelled.is_set():
            cancelled.set()
            await run.signal("cancel", {"reason": "too late"})
        return await close(self, length, *args)

    cancelled = asyncio.Event()
    monkeypatch.setattr(RunFiles, RunFiles._read_conversation.__name__, cancelled_meanwhile)
    run_id = new_id()  # the server is shared
    async with world([FINISH]) as it:
        run = await it.start(run_id=run_id)
        with pytest.raises(WorkflowFailureError) as failure:
            await run.result()
        assert isinstance(failure.value.cause, CancelledError)
        events = [event async for event in run.fetch_history_events()]
        causes = [e.workflow_task_failed_event_attributes.cause for e in events if _is_failed_task(e)]
        assert causes == [WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND]
    lines = [json.loads(line) for line in (tmp_path / run_id / "trace.jsonl").read_text().splitlines()]
    told = [line.get("event") for line in lines]
    assert "agent_run.cancelled" in told
    assert "agent.completed" not in told
    assert "agent_run.completed" not in told


def test_of_an_end_that_did_not_count_no_line_is_left(tmp_path: Path) -> None:
    def line(number: int, name: str) -> dict[str, Any]:
        return {"key": f"event:{number}", "event": name, "run_id": "r"}

    def close(event: dict[str, Any] | None, *told: dict[str, Any]) -> None:
        request = CloseRequest(start=0, length=0, head="", event=event, told=told)
        trace.write_trace(workspace, *told)
        _finish_files(workspace, Journal(), request)

    workspace = Workspace(tmp_path)
    workspace.create()
    trace.write_trace(workspace, line(1, "agent_run.started"))
    trace.write_trace(workspace, {"key": "turn:1", "event": "plan"})
    escalated = {"type": "agent.escalated", "payload": {}}
    close(escalated, line(2, "agent.loop.detected"), line(3, "agent_run.escalated"))
    close(None, line(2, "agent_run.cancelled"))
    told = [json.loads(text)["event"] for text in (tmp_path / trace.TRACE_FILE).read_text().splitlines()]
    assert told == ["agent_run.started", "plan", "agent_run.cancelled"]


async def test_a_turn_is_closed_by_an_activity_that_the_server_knows(world: Any) -> None:
    """A steer that comes meanwhile no longer reopens it, so what it has left to its conversation is its last word."""
    chat = new_id()
    async with world([FINISH]) as it:
        run = await begun(it, await say(it, chat, "hello"))
        await until_idle(it, chat, 1)
        assert await scheduled(run) == ["plan", "close_segment"]


def _is_failed_task(event: Any) -> bool:
    return bool(event.HasField("workflow_task_failed_event_attributes"))

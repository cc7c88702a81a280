"""A run's own files are seen to in passing; what hinders that is waited out in sight, and nothing is reported twice."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.exceptions import CancelledError

from perdure.activities.run.files import RunFiles, _finish_files
from perdure.activities.storage.workspace import Workspace
from perdure.activities.telemetry import trace
from perdure.contracts.run.journal import Journal
from perdure.contracts.run.state import CloseRequest
from perdure.process.workflows import run_query_worker
from tests.timeline import timeline
from tests.workflows.conftest import MakeWorld, Run
from tests.workflows.lane import new_id, say, until_idle, wait_for_run
from tests.workflows.runs import expect_cancelled, trace_events
from tests.workflows.script import FINISH


async def scheduled(run: Run) -> list[str]:
    """The activities that the server has handed out."""
    events = [event.activity_task_scheduled_event_attributes async for event in run.fetch_history_events()]
    return [each.activity_type.name for each in events if each.activity_type.name]


async def test_local_activities_cost_the_server_no_task(world: MakeWorld) -> None:
    async with world([FINISH]) as it:
        run = await it.run_to_end()
        assert await scheduled(run) == ["plan"]
        assert await timeline(run) == ["open_run", "plan", "close_segment"]


@pytest.mark.parametrize("name", ["open_run", "close_segment"])
async def test_a_local_activity_that_fails_is_retried_as_a_normal_one(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, name: str
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
        await it.until_activity(run, lambda each: each.activity_type.name == name)
        assert (await run.result())["type"] == "agent.completed"
        assert left == 0
        assert (await scheduled(run)).count(name) == 1


async def test_a_cancel_that_is_the_workers_own_cancels_no_run(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_a_run_that_is_cancelled_before_a_worker_takes_it_is_not_opened(world: MakeWorld) -> None:
    async with world([FINISH], works=False) as it:
        run = await it.start()
        await run.cancel()
        async with it.worker():
            await expect_cancelled(run)
        assert {"open_run", "plan"}.isdisjoint(await timeline(run))
        assert it.model.requests == []
        await it.replay()


async def test_a_process_that_only_answers_queries_leaves_activities_to_a_worker(world: MakeWorld) -> None:
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
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
        await expect_cancelled(run)
        events = [event async for event in run.fetch_history_events()]
        failed = [e for e in events if e.HasField("workflow_task_failed_event_attributes")]
        causes = [event.workflow_task_failed_event_attributes.cause for event in failed]
        assert causes == [WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND]
    names = {line["event"] for line in trace_events(tmp_path / run_id)}
    assert "agent_run.cancelled" in names
    assert names.isdisjoint({"agent.completed", "agent_run.completed"})


def test_the_trace_keeps_no_line_of_an_end_that_the_server_refused(tmp_path: Path) -> None:
    def line(number: int, name: str) -> dict[str, Any]:
        return {"key": f"event:{number}", "event": name, "run_id": "r"}

    def close(event: dict[str, Any] | None, *lines: dict[str, Any]) -> None:
        request = CloseRequest(start=0, length=0, head="", event=event, trace=lines)
        trace.write_trace(workspace, *lines)
        _finish_files(workspace, Journal(), request)

    workspace = Workspace(tmp_path)
    workspace.create()
    trace.write_trace(workspace, line(1, "agent_run.started"))
    trace.write_trace(workspace, {"key": "turn:1", "event": "plan"})
    escalated = {"type": "agent.escalated", "payload": {}}
    close(escalated, line(2, "agent.loop.detected"), line(3, "agent_run.escalated"))
    close(None, line(2, "agent_run.cancelled"))
    assert [line["event"] for line in trace_events(tmp_path)] == ["agent_run.started", "plan", "agent_run.cancelled"]


async def test_a_turn_is_closed_by_an_activity_that_the_server_knows(world: MakeWorld) -> None:
    """A steer that comes meanwhile no longer reopens it, so what it has left to its conversation is its last word."""
    chat = new_id()
    async with world([FINISH]) as it:
        run = await wait_for_run(it, await say(it, chat, "hello"))
        await until_idle(it, chat, 1)
        assert await scheduled(run) == ["plan", "close_segment"]

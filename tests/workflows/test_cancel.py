"""However a run is stopped, it ends Canceled, with its effects whole and its results kept."""

import asyncio
import dataclasses
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.converter import PayloadCodec

import perdure.activities.run.files
from perdure.contracts.tool import Approval, Effect, ToolKind
from perdure.testkit.model_server import calls, says, slow
from perdure.testkit.tools import ScriptedTool
from perdure.workflows.execution import LOCAL_ACTIVITY
from tests.workflows.conftest import MakeWorld, Run, connect_like
from tests.workflows.runs import expect_cancelled
from tests.workflows.script import FINISH
from tests.workflows.tools import HeldTool

ASK = calls(("ask_human", {"question": "Which?"}))
DOORS = ["signal", "native", "both"]


async def stop(run: Run, door: str) -> None:
    if door in {"signal", "both"}:
        await run.signal("cancel", {"reason": "enough", "by": "eva"})
    if door in {"native", "both"}:
        await run.cancel()


@pytest.mark.parametrize("door", DOORS)
async def test_a_read_is_stopped_at_once(world: MakeWorld, door: str) -> None:
    work = HeldTool(effect=Effect.read)
    async with world([calls(("work", {})), FINISH], work.tool) as it:
        run = await it.start()
        await work.started.wait()
        await stop(run, door)
        await expect_cancelled(run)
        assert work.cut == 1
        assert [shown for _, shown in await it.results(run)] == [
            "interrupted: the run ended before this call had a result"
        ]
        assert len(it.model.requests) == 1
        assert await it.failed_tasks(run) == 0


@pytest.mark.parametrize("effect", [Effect.once, Effect.keyed])
@pytest.mark.parametrize("door", DOORS)
async def test_an_effect_is_finished_and_its_result_kept_before_the_run_ends(
    world: MakeWorld, door: str, effect: Effect
) -> None:
    work = HeldTool(effect=effect)
    async with world([calls(("work", {}), ("work", {})), FINISH], work.tool) as it:
        run = await it.start()
        await work.started.wait()
        await stop(run, door)
        await it.state(run)  # the cancel is in the run by now
        assert (await run.describe()).status is WorkflowExecutionStatus.RUNNING
        work.go_on.set()
        await expect_cancelled(run)
        assert work.cut == 0
        assert [text.partition(":")[0] for _, text in await it.results(run)] == ["worked", "interrupted"]
        assert len(work.tool.calls) == 1
        assert await it.failed_tasks(run) == 0


class Gate(PayloadCodec):
    """While it is closed, a worker's workflow task does not get on, and what comes meanwhile comes with the next."""

    def __init__(self) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()
        self.opened.set()

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        if not self.opened.is_set():
            self.reached.set()
            await self.opened.wait()
        return list(payloads)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("cancel_first", [False, True])
async def test_a_result_that_comes_with_the_cancel_is_kept(
    world: MakeWorld, client: Client, door: str, cancel_first: bool
) -> None:
    gate, work = Gate(), HeldTool(effect=Effect.once)
    gated = await connect_like(client, dataclasses.replace(client.data_converter, payload_codec=gate))
    async with world([calls(("work", {})), FINISH], work.tool, works=False) as it, it.worker(gated):
        run = await it.start()
        await work.started.wait()
        gate.opened.clear()
        await run.signal("nobody_knows", "this")
        await gate.reached.wait()
        if cancel_first:
            await stop(run, door)
        work.go_on.set()

        async def has_ended() -> bool:
            return not (await run.describe()).raw_description.pending_activities

        await it.until(has_ended)
        if not cancel_first:
            await stop(run, door)
        gate.opened.set()
        await expect_cancelled(run)
        assert [text for _, text in await it.results(run)] == ["worked"]
        await it.replay()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("waits", ["question", "approval", "outside"])
async def test_a_run_that_waits_is_stopped_at_once(world: MakeWorld, door: str, waits: str) -> None:
    routes: dict[str, dict[str, Any]] = {
        "question": {},
        "approval": {"effect": Effect.once, "approval": Approval.always, "approval_timeout": timedelta(hours=1)},
        "outside": {"kind": ToolKind.signal},
    }
    tool = ScriptedTool("work", **routes[waits])
    first = ASK if waits == "question" else calls(("work", {}), ("work", {}))
    async with world([first, FINISH], tool) as it:
        run = await it.start()
        await it.until_state(run, status="waiting_on_tool" if waits == "outside" else "waiting_on_human")
        await stop(run, door)
        await expect_cancelled(run)
        state = await it.state(run)
        assert (state["status"], state["question"], state["pending"]) == ("cancelled", None, [])
        if waits == "approval":
            assert [text.partition(":")[0] for _, text in await it.results(run)] == ["interrupted", "interrupted"]
            assert tool.calls == []


@pytest.mark.parametrize("door", DOORS)
async def test_a_model_call_is_stopped_at_once(world: MakeWorld, door: str) -> None:
    async with world([slow(says("a long answer"), 30)]) as it:
        run = await it.start()
        await it.until(lambda: len(it.model.requests) == 1)
        await stop(run, door)
        await expect_cancelled(run)


@pytest.mark.parametrize("args", [[], [{}], [{"reason": "no"}]])
async def test_a_cancel_that_comes_with_the_start_lets_nothing_begin(world: MakeWorld, args: list[Any]) -> None:
    work = ScriptedTool("work", effect=Effect.once)
    async with world([calls(("work", {})), FINISH], work) as it:
        start = {"type": "agentic.start", "payload": {"goal": "x"}}
        run = await it.start_raw(start, start_signal="cancel", start_signal_args=args)
        await expect_cancelled(run)
        assert (it.model.requests, work.calls) == ([], [])


class Closing:
    """A run's last activity, which waits until the test lets it finish the files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started, self.go_on = threading.Event(), threading.Event()
        self._finish = perdure.activities.run.files._finish_files
        monkeypatch.setattr("perdure.activities.run.files._finish_files", self._held)
        # Until it is given up as a local activity, the run takes no message.
        monkeypatch.setitem(LOCAL_ACTIVITY, "schedule_to_close_timeout", timedelta(seconds=0.5))

    def _held(self, *args: Any) -> None:
        self.started.set()
        assert self.go_on.wait(30)
        self._finish(*args)


async def test_many_cancels_are_one(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    closing = Closing(monkeypatch)
    async with world([ASK]) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        for door in ("signal", "signal", "native", "native", "both"):
            await stop(run, door)
        closing.go_on.set()
        await expect_cancelled(run)
        assert await it.failed_tasks(run) == 0


@pytest.mark.parametrize("door", DOORS)
async def test_a_run_that_is_cancelled_while_it_closes_ends_as_it_was_about_to(
    world: MakeWorld, door: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closing = Closing(monkeypatch)
    async with world([FINISH]) as it:
        run = await it.start(run_id=f"closing-{it.queue}")
        await it.until(closing.started.is_set)
        await stop(run, door)
        await stop(run, door)
        await it.state(run)  # the cancels are in the run by now
        closing.go_on.set()
        assert (await asyncio.wait_for(run.result(), 15))["type"] == "agent.completed"
        assert (await run.describe()).status is WorkflowExecutionStatus.COMPLETED
        assert await it.failed_tasks(run) == 0
    trace = (tmp_path / f"closing-{it.queue}" / "trace.jsonl").read_text()
    assert trace.count('"event": "agent.completed"') == 1
    assert "agent_run.cancelled" not in trace


@pytest.mark.parametrize("door", DOORS)
async def test_a_cancelled_run_that_is_cancelled_again_while_it_closes_is_cancelled_once(
    world: MakeWorld, door: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closing = Closing(monkeypatch)
    async with world([ASK]) as it:
        run = await it.start(run_id=f"closing-{it.queue}")
        await it.until_state(run, question=True)
        await stop(run, door)
        await it.until(closing.started.is_set)
        await stop(run, door)
        await it.state(run)
        closing.go_on.set()
        await expect_cancelled(run)
        assert await it.failed_tasks(run) == 0
    trace = (tmp_path / f"closing-{it.queue}" / "trace.jsonl").read_text()
    assert trace.count('"event": "agent_run.cancelled"') == 1


async def test_a_cancelled_run_keeps_its_files_and_records_no_outcome(world: MakeWorld, tmp_path: Path) -> None:
    async with world([calls(("look", {})), ASK], ScriptedTool("look")) as it:
        run = await it.start(run_id=it.queue)
        await it.until_state(run, question=True)
        await stop(run, "signal")
        await expect_cancelled(run)
    folder = tmp_path / it.queue
    assert (folder / "memory.md").is_file()
    trace = (folder / "trace.jsonl").read_text()
    assert '"event": "tool"' in trace
    assert "agent.completed" not in trace


async def test_events_after_a_cancel_do_not_change_how_the_run_ends(world: MakeWorld) -> None:
    work = HeldTool(effect=Effect.once)
    async with world([calls(("work", {})), FINISH], work.tool) as it:
        run = await it.start()
        await work.started.wait()
        await stop(run, "signal")  # signals keep their order; Temporal's own cancel may be applied after one
        await it.send_result(run, 99, "work")  # would escalate an open run
        await it.state(run)
        work.go_on.set()
        await expect_cancelled(run)
        assert "run_terminal" in (await it.state(run))["ignored"][-1]


@pytest.mark.parametrize("door", DOORS)
async def test_a_cancel_that_comes_while_the_model_writes_its_last_answer_ends_the_run_canceled(
    world: MakeWorld, door: str, no_commands_client: Client
) -> None:
    async with world([slow(says("all done"), 0.6)], server=no_commands_client) as it:
        run = await it.start()
        await it.until(lambda: len(it.model.requests) == 1)
        await stop(run, door)
        await expect_cancelled(run)
        assert "all done" in str((await it.parts(run))[-1])


async def test_a_result_for_a_step_never_issued_escalates_also_where_the_model_finishes_just_then(
    world: MakeWorld, no_commands_client: Client
) -> None:
    async with world([slow(says("all done"), 0.6)], server=no_commands_client) as it:
        run = await it.start()
        await it.until(lambda: len(it.model.requests) == 1)
        await it.send_result(run, 7, "vote")
        event = await asyncio.wait_for(run.result(), 15)
    assert (event["type"], event["payload"]["reason"]) == ("agent.escalated", "step_never_issued")


async def test_a_signal_with_a_field_of_many_blanks_does_not_wedge_the_run(world: MakeWorld) -> None:
    async with world([ASK]) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await run.signal("cancel", {" " * 30_000 + "x": 1})  # refused, since there is no such field
        await run.signal("cancel")
        await expect_cancelled(run)

"""Tools of the kind `queue`: a worker that knows nothing of us, and all that it may do."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import RawValue
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from perdure.activities.telemetry.attributes import PENDING_TOOLS
from perdure.client.run_events import ToolCallFinished, ToolCallStarted
from perdure.client.watch import Watch
from perdure.contracts.tool import Approval, Effect, QueueRoute, ToolKind
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World, connect_encrypted
from tests.workflows.runs import expect_cancelled, trace_events
from tests.workflows.script import FINISH

Behaviour = Callable[[dict[str, Any]], Any]

WEIGH = calls(("weigh", {"what": "salt"}))


def weigh(effect: Effect = Effect.read, *, seconds: float = 20, heartbeat: float | None = None, **more: Any) -> Any:
    beat = None if heartbeat is None else timedelta(seconds=heartbeat)
    queue = QueueRoute(task_queue=f"elsewhere-{uuid4().hex[:8]}", activity="weigh", heartbeat=beat)
    timeout = timedelta(seconds=seconds)
    return ScriptedTool("weigh", kind=ToolKind.queue, effect=effect, timeout=timeout, queue=queue, **more)


@asynccontextmanager
async def elsewhere(
    client: Client, tool: ScriptedTool, behaviour: Behaviour, *, checks_size: bool = True
) -> AsyncIterator[list[dict[str, Any]]]:
    """A worker with Temporal's own converter; gives the requests that it took."""
    taken: list[dict[str, Any]] = []

    @activity.defn(name="weigh")
    async def weighed(request: dict[str, Any]) -> Any:
        taken.append(request)
        answer = behaviour(request)
        return await answer if asyncio.iscoroutine(answer) else answer

    assert tool.route.queue is not None
    theirs = await Client.connect(client.service_client.config.target_host)
    queue = tool.route.queue.task_queue
    async with Worker(theirs, task_queue=queue, activities=[weighed], disable_payload_error_limit=not checks_size):
        yield taken


async def shown(it: World, run: Run) -> str:
    """What the model was shown of the first call, at the end of the run."""
    event = await asyncio.wait_for(run.result(), 60)
    assert event["type"] == "agent.completed"
    assert await it.failed_tasks(run) == 0
    return (await it.results(run))[0][1]


async def test_another_worker_takes_the_request_and_the_run_waits_for_its_result(world: MakeWorld) -> None:
    tool, go = weigh(), asyncio.Event()

    async def behave(_: Any) -> Any:
        await go.wait()
        return {"grams": 12}

    async with world([WEIGH, FINISH], tool) as it, elsewhere(it.client, tool, behave) as taken:
        run = await it.start(run_id="weighed")
        await it.until(lambda: bool(taken))
        state = await it.until_state(run, status="waiting_on_tool")
        found = await run.describe()
        await it.send_result(run, 1, "weigh", result="forged")
        await it.until_state(run, ignored=True)
        go.set()
        result = await shown(it, run)
        happened = [each async for each in Watch(it.client, "weighed", follow=False).events()]
    [request] = taken
    payload = request.pop("payload")
    assert payload.pop("requested_at")
    assert payload == {
        "run_id": "weighed",
        "step": 1,
        "tool": "weigh",
        "tool_command": "handle",
        "tool_payload": {"what": "salt"},
    }
    assert request == {"type": "agentic.tool_request.weigh", "dedupe_key": "agentic:run:weighed:step:1:request"}
    assert [(each["step"], each["tool"]) for each in state["pending"]] == [(1, "weigh")]
    assert found.typed_search_attributes.get(PENDING_TOOLS) == ["weigh:1"]
    assert json.loads(result) == {"grams": 12}
    [calling] = [each.call for each in happened if isinstance(each, ToolCallStarted)]
    assert (calling.tool, calling.step, calling.arguments) == ("weigh", 1, {"what": "salt"})
    assert [each.outcome.result for each in happened if isinstance(each, ToolCallFinished)] == [{"grams": 12}]


async def test_without_a_worker_the_error_names_the_task_queue(world: MakeWorld) -> None:
    tool = weigh(Effect.once, seconds=0.5)
    async with world([WEIGH, FINISH], tool) as it:
        run = await it.start()
        result = await shown(it, run)
    assert result == f"unreachable: no worker took the call from task queue '{tool.route.queue.task_queue}' in time"


async def test_a_failure_is_shown_to_the_model_in_its_own_words(world: MakeWorld, tmp_path: Path) -> None:
    tool = weigh()

    def refuse(_: Any) -> Any:
        raise ApplicationError("the scales take no salt", type="SaltError", non_retryable=True)

    async with world([WEIGH, FINISH], tool) as it, elsewhere(it.client, tool, refuse) as taken:
        assert await shown(it, await it.start(run_id="failed")) == "tool_error: the scales take no salt"
    assert len(taken) == 1
    [line] = trace_events(tmp_path / "failed", "tool")
    assert (line["call"], line["status"], line["error"]) == ("weigh salt", "error", "the scales take no salt")


async def test_a_failure_that_may_pass_is_retried_under_the_same_key_where_that_is_safe(world: MakeWorld) -> None:
    tool = weigh(Effect.keyed)

    def wavering(_: Any) -> Any:
        if activity.info().attempt == 1:
            raise RuntimeError("the scales swing")
        return 12

    async with world([WEIGH, FINISH], tool) as it, elsewhere(it.client, tool, wavering) as taken:
        assert await shown(it, await it.start()) == "12"
    assert taken[0] == taken[1]


def break_down(_: Any) -> None:
    raise RuntimeError("the scales broke")


def return_too_much(_: Any) -> str:
    return "x" * 3_000_000


@pytest.mark.parametrize(
    ("behaviour", "checks_size", "shown_text"),
    [
        (break_down, True, r"tool_error: the scales broke \(it may have happened\)$"),
        (return_too_much, True, r"tool_error: \[TMPRL1103\]"),
        (return_too_much, False, "too_large: the call was made, but its result cannot be had"),
    ],
    ids=["it failed", "its worker refused the large result", "the server refused the large result"],
)
async def test_a_once_call_that_failed_is_not_repeated(
    world: MakeWorld, behaviour: Behaviour, checks_size: bool, shown_text: str
) -> None:
    tool = weigh(Effect.once)
    async with (
        world([WEIGH, FINISH], tool) as it,
        elsewhere(it.client, tool, behaviour, checks_size=checks_size) as taken,
    ):
        assert re.match(shown_text, await shown(it, await it.start()))
    assert len(taken) == 1


async def never(_: Any) -> None:
    await asyncio.Event().wait()


def shut_down(_: Any) -> None:
    raise ApplicationError("worker is shutting down", type="WorkerShutdown")


def doubt(_: Any) -> None:
    raise ApplicationError("the line went dead", type="InDoubt", non_retryable=True)


@pytest.mark.parametrize(
    ("behaviour", "tool"),
    [
        (shut_down, weigh(Effect.once)),
        (doubt, weigh(Effect.once)),
        (never, weigh(Effect.once, seconds=1)),
        (never, weigh(Effect.once, heartbeat=1)),
    ],
    ids=["its worker shut down", "it says so", "it never ended", "its heartbeat stopped"],
)
async def test_an_effect_with_an_unknown_outcome_is_settled_by_a_person(
    world: MakeWorld, behaviour: Behaviour, tool: ScriptedTool
) -> None:
    def behave(request: dict[str, Any]) -> Any:
        return behaviour(request) if request["dedupe_key"].endswith(":request") else "12 g"

    async with world([WEIGH, FINISH], tool) as it, elsewhere(it.client, tool, behave) as taken:
        run = await it.start()
        question = (await it.until_state(run, question=True))["question"]
        await run.execute_update("answer", {"decision": "run_again"})
        assert await shown(it, run) == "12 g"
    assert question["kind"] == "resume_unsafe"
    assert [each["dedupe_key"].rpartition("step:")[2] for each in taken] == ["1:request", "1:request:2"]


async def test_a_person_can_give_the_result_or_give_up(world: MakeWorld) -> None:
    tool = weigh(Effect.once)
    async with (
        world([calls(("weigh", {}), ("weigh", {})), FINISH], tool) as it,
        elsewhere(it.client, tool, shut_down) as taken,
    ):
        run = await it.start()
        await it.answer(run, decision="use_result", text="12 g")
        await it.until(lambda: len(taken) == 2)
        await it.answer(run, decision="give_up")
        await run.result()
        results = [text for _, text in (await it.results(run))[:2]]
    assert results == ["12 g", "in_doubt: interrupted; may have happened"]


async def test_a_call_that_wants_approval_is_scheduled_once_it_has_it(world: MakeWorld) -> None:
    tool = weigh(Effect.once, approval=Approval.always)
    async with world([WEIGH, FINISH], tool) as it, elsewhere(it.client, tool, lambda _: 12) as taken:
        run = await it.start()
        question = (await it.until_state(run, question=True))["question"]
        assert taken == []
        await run.execute_update("answer", {"decision": "approve", "call": question["call"]})
        assert await shown(it, run) == "12"
    assert len(taken) == 1


async def test_a_large_result_becomes_an_artifact_and_enters_history_once(world: MakeWorld, tmp_path: Path) -> None:
    tool, large = weigh(), "12 g, " * 20_000 + "the end"
    async with world([WEIGH, FINISH], tool) as it, elsewhere(it.client, tool, lambda _: large):
        run = await it.start(run_id="large")
        result = json.loads(await shown(it, run))
        history = await it.raw_history(run)
    assert (tmp_path / "large" / result["artifact_path"]).read_text(encoding="utf-8") == large
    assert result["excerpt"].startswith("12 g, 12 g")
    assert history.count(b"12 g, the end") == 1


def raw(data: bytes, **metadata: bytes) -> RawValue:
    payload = PayloadConverter.default.to_payload(None)
    payload.metadata.clear()
    payload.metadata.update(metadata)
    payload.data = data
    return RawValue(payload)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, ""),
        (b"\xff\xfe", "tool_error: the call was made, but what it returned is no JSON"),
        (raw(b"[" * 300 + b"]" * 300, encoding=b"json/plain"), "tool_error: the call was made, but"),
        (raw(b'"\\ud800"', encoding=b"json/plain"), "tool_error: the call was made, but"),
        (raw(b"?", encoding=b"their/own"), "tool_error: the call was made, but"),
        (raw(b"NaN", encoding=b"json/plain"), ""),
        ({"artifact_path": 7}, '{"artifact_path":7}'),
    ],
    ids=["nothing", "bytes", "nested too deep", "half a character", "an encoding of its own", "no number", "like ours"],
)
async def test_odd_results_never_stop_a_run(world: MakeWorld, result: Any, expected: str) -> None:
    tool = weigh()
    async with world([WEIGH, FINISH], tool) as it, elsewhere(it.client, tool, lambda _: result):
        assert (await shown(it, await it.start())).startswith(expected)


async def test_a_cancel_reaches_a_call_that_beats(world: MakeWorld) -> None:
    tool, stopped = weigh(Effect.keyed, heartbeat=2), asyncio.Event()

    async def beat(_: Any) -> None:
        try:
            while True:
                activity.heartbeat()
                await asyncio.sleep(0.1)
        finally:
            stopped.set()

    async with world([WEIGH, FINISH], tool) as it, elsewhere(it.client, tool, beat) as taken:
        run = await it.start()
        await it.until(lambda: bool(taken))
        await run.signal("cancel")
        await expect_cancelled(run)
        assert stopped.is_set()
        assert (await it.results(run))[0][1] == "in_doubt: interrupted; may have happened"


async def test_a_cancel_of_a_call_that_no_worker_took_leaves_no_doubt(world: MakeWorld) -> None:
    tool = weigh(Effect.once)
    async with world([WEIGH, FINISH], tool) as it:
        run = await it.start()
        await it.until_pending(run, 1)
        await run.signal("cancel")
        await expect_cancelled(run)
        assert not (await it.results(run))[0][1].startswith("in_doubt")


async def test_a_call_in_flight_when_its_run_timed_out_is_asked_about(
    world: MakeWorld,
) -> None:
    tool = weigh(Effect.once)
    async with world([WEIGH, FINISH], tool) as it, elsewhere(it.client, tool, never) as taken:
        start = {"type": "agentic.start", "payload": {"goal": "weigh it"}}
        origin = await it.start_raw(start, run_timeout=timedelta(seconds=4))
        await it.until(lambda: bool(taken))
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(origin.result(), 60)
        assert (await origin.describe()).status is WorkflowExecutionStatus.TIMED_OUT
        run = await it.resume(origin)
        state = await it.until_state(run, question=True)
        await run.execute_update("answer", {"decision": "use_result", "text": "12 g"})
        assert await shown(it, run) == "12 g"
    assert state["question"]["kind"] == "resume_unsafe"
    assert len(taken) == 1


async def test_an_encrypted_run_needs_the_codec_over_there(world: MakeWorld, client: Client) -> None:
    tool = weigh(Effect.once)
    encrypted = await connect_encrypted(client)
    async with world([WEIGH, FINISH], tool, server=encrypted) as it, elsewhere(client, tool, lambda _: 12) as taken:
        result = await shown(it, await it.start())
    assert result.startswith("tool_error: ")
    assert taken == []

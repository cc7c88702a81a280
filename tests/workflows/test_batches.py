"""Model turns in batches, over HTTP to the scripted batch API, on the real server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client

from perdure.activities.providers.prices import Price
from perdure.client.run_events import ActivityFailed, BatchWait, RunEvent
from perdure.client.run_list import find_run
from perdure.client.runs import resume_run
from perdure.client.watch import Watch
from perdure.contracts.agent import Agent
from perdure.contracts.failures import RunFailure
from perdure.contracts.model_settings import BatchSettings, ModelOverrides
from perdure.contracts.tool import Approval, Effect
from perdure.decisions.ids import trace_id
from perdure.features.batches import FEATURE
from perdure.features.batches import activities as batch_activities
from perdure.features.batches import provider as batch_api
from perdure.features.batches import workflow as pool
from perdure.features.batches.client import format_pool, query_pool
from perdure.features.batches.contract import BatchEntry, Gathering, PoolView
from perdure.features.batches.workflow import MAX_BATCH_BYTES
from perdure.testkit import model_server
from perdure.testkit.message_batches import ScriptedBatches
from perdure.testkit.model_server import Script, ScriptedAnswer, calls, expires, fails, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.runs import cancel_run, expect_cancelled, failure_of, id_of, result_of, trace_events
from tests.workflows.script import FINISH, count_replies, is_summary
from tests.workflows.test_build_moves import build, look, replay
from tests.workflows.test_spans import recording_spans
from tests.workflows.test_versioning import are_left, builds, make_current

READS = 1 + batch_activities.READ_PAUSES.retries
QUICK = BatchSettings(size=100, wait=timedelta(seconds=1))


@pytest.fixture
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHECK_PAUSES", "READ_PAUSES", "SEND_PAUSES", "FIND_PAUSES"):
        monkeypatch.setattr(batch_activities, name, replace(getattr(batch_activities, name), first=0.1, most=0.1))


pytestmark = pytest.mark.usefixtures("quick_checks")


@asynccontextmanager
async def batching(
    world: MakeWorld, script: Script, *tools: ScriptedTool, pooling: BatchSettings = QUICK, **options: Any
) -> AsyncIterator[World]:
    """A world whose runs send their model turns in batches."""
    async with world(script, *tools, pooling=pooling, **options) as it:
        yield it
        it.started.append(it.pool.id)


async def pool_state(it: World) -> PoolView:
    answer: PoolView = await it.pool.query("state", result_type=PoolView)
    return answer


async def _has_open(it: World, count: int) -> bool:
    return len((await pool_state(it)).open) == count


async def turn_types(run: Run) -> list[str]:
    kind = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    events = [event async for event in run.fetch_history_events() if event.event_type == kind]
    return [event.activity_task_scheduled_event_attributes.activity_type.name for event in events]


async def test_runs_share_batches_and_pay_half(world: MakeWorld) -> None:
    look = ScriptedTool("look", approval=Approval.always, effect=Effect.once)
    script = [calls(("look", {"at": "it"}), text="Plan: look."), FINISH]
    prices = {"scripted": Price(1000, 1000, 1000, 1000)}
    async with batching(
        world, script, look, prices=prices, pooling=BatchSettings(size=2, wait=timedelta(hours=1))
    ) as it:
        runs = [await it.start(f"goal {number}") for number in range(2)]
        for run in runs:
            await it.answer(run, decision="approve")
        ends = [await result_of(run) for run in runs]
        assert [end["payload"]["outcome"] for end in ends] == ["done", "done"]
        assert (len(look.calls), len(it.model.requests)) == (2, 0)
        assert [len(batch.requests) for batch in it.model.batches.batches] == [2, 2]
        state = await it.state(runs[0])
        usage = state["usage"]
        assert state["cost_usd"] == pytest.approx(
            sum(usage[name] for name in ("input", "output", "cache_read", "cache_write")) / 2000
        )
        assert (await turn_types(runs[0]))[0] == "plan"
        assert [
            line["turn"] for line in trace_events(it.project.workspace(id_of(runs[0])).root, "plan", "reflect")
        ] == [1, 2]


async def test_a_start_event_sets_the_pace(world: MakeWorld) -> None:
    async with batching(world, [FINISH]) as it:
        await result_of(await it.start(pace="live"))
        assert (len(it.model.requests), it.model.batches.batches) == (1, [])
        await result_of(await it.start(pace="batch"))
        assert len(it.model.batches.paid) == 1


@pytest.mark.parametrize("fault", [fails(529), expires(), expires(type="canceled"), fails(500)])
async def test_a_turn_that_a_batch_did_not_answer_is_sent_again(world: MakeWorld, fault: Any) -> None:
    async with batching(world, [replace(fault, then=FINISH)]) as it:
        await result_of(await it.start())
        assert (len(it.model.batches.batches), len(it.model.batches.paid)) == (2, 1)


async def test_a_turn_is_not_sent_forever(world: MakeWorld) -> None:
    async with batching(world, [fails(529)]) as it:
        failure = await failure_of(await it.start())
        assert failure.type == RunFailure.model_unavailable
        assert len(it.model.batches.batches) == batch_activities.MAX_ATTEMPTS


async def test_a_refused_turn_fails_its_run_alone(world: MakeWorld) -> None:
    def script(body: dict[str, Any]) -> Any:
        return fails(400, message="no such tool") if "bad goal" in str(body["messages"]) else FINISH

    async with batching(world, script) as it:
        bad, good = await it.start("bad goal"), await it.start("good goal")
        failure = await failure_of(bad)
        assert (failure.type, "no such tool" in failure.message) == (RunFailure.model_refused, True)
        await result_of(good)
        assert len(it.model.batches.batches) == 1


async def test_a_batch_whose_creation_was_cut_off_is_adopted(world: MakeWorld) -> None:
    async with batching(world, [FINISH], batches=ScriptedBatches(cut_creates=[0])) as it:
        await result_of(await it.start())
        assert (it.model.batches.calls["create"], len(it.model.batches.paid)) == (1, 1)


async def test_another_programs_batch_is_put_aside(world: MakeWorld) -> None:
    batches = ScriptedBatches(cut_creates=[0])
    async with batching(world, [FINISH], batches=batches) as it:
        params = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "theirs"}]}
        foreign = batches.create_batch([{"custom_id": "theirs", "params": params}], lambda *_: {"type": "expired"})
        await result_of(await it.start())
        own = [batch for batch in batches.batches if batch.id != foreign.id]
        assert (batches.calls["create"], len(own), len(batches.paid)) == (1, 1, 1)
        assert batches.calls["list"] == 2, "theirs was found first"


async def test_a_cancelled_run_leaves_the_pool(world: MakeWorld) -> None:
    async with batching(world, [FINISH], pooling=BatchSettings(wait=timedelta(hours=1))) as it:
        run, other = await it.start(), await it.start()

        async def both_wait() -> bool:
            return (await pool_state(it)).waiting == 2

        await it.until_state(run, batched_at=True)
        await it.until_state(other, batched_at=True)
        await it.until(both_wait)
        await run.signal("cancel", {"reason": "enough"})
        await expect_cancelled(run)
        assert (await pool_state(it)).waiting == 1
        await other.cancel()
        await expect_cancelled(other)
        assert it.model.batches.batches == []


@pytest.mark.parametrize("way", ["signal", "native"])
async def test_a_cancel_as_the_pool_opens_ends_both(world: MakeWorld, way: str) -> None:
    async with batching(world, [FINISH], pooling=BatchSettings(wait=timedelta(hours=1))) as it:
        run = await it.start()
        await it.until_state(run, batched_at=True)
        await cancel_run(run, way)
        await expect_cancelled(run)
        await it.pool.result()
        assert it.model.batches.calls["create"] == 0


async def test_a_cancel_while_the_batch_is_open_ends_the_run_at_once(world: MakeWorld) -> None:
    batches = ScriptedBatches(seconds=None)
    async with batching(world, [FINISH], batches=batches) as it:
        run = await it.start()
        await it.until(lambda: bool(batches.batches))
        await run.cancel()
        await expect_cancelled(run)
        batches.end_batches()
        await it.pool.result()


async def test_a_batch_outlives_its_workers(world: MakeWorld) -> None:
    batches = ScriptedBatches(seconds=None)
    async with world([FINISH], works=False, batches=batches, pooling=QUICK) as it:
        async with it.worker():
            run = await it.start()
            await it.until(lambda: bool(batches.batches))
        batches.end_batches()
        async with it.worker(await it.another_client()):
            await result_of(run)
        assert len(batches.paid) == 1


async def test_a_message_to_a_waiting_run_comes_with_its_next_turn(world: MakeWorld) -> None:
    batches = ScriptedBatches(seconds=None)
    async with batching(world, [says("one"), FINISH], batches=batches) as it:
        run = await it.start()
        await it.until(lambda: len(batches.batches) == 1)
        await run.signal("steer", {"request_id": "m1", "text": "and hurry"})
        batches.end_batches()
        await it.until(lambda: len(batches.batches) == 2)
        batches.end_batches()
        await result_of(run)
        assert "and hurry" in str(batches.batches[1].requests)


async def test_a_conversation_that_is_too_long_is_summarized_as_live(world: MakeWorld) -> None:
    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if is_summary(body):
            return says("So far: looked.")
        turn = count_replies(body)
        if "So far" in str(body):
            return FINISH
        too_long = fails(400, message="prompt is too long: 9000 tokens > 8000 maximum")
        return too_long if turn == 9 else calls(("look", {"n": turn}))

    look = ScriptedTool("look", lambda arguments, _: f"{arguments['n']} " * 1000)
    async with batching(world, script, look) as it:
        await result_of(await it.start())
        assert (len(it.model.batches.batches), len(it.model.batches.paid)) == (11, 10)
        assert [is_summary(request) for request in it.model.requests] == [True], "only the summary is live"


async def test_a_request_whose_thinking_is_refused_is_sent_without_it(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = model_server._message

    def with_thinking(*given: Any) -> dict[str, Any]:
        message = original(*given)
        thought = {"type": "thinking", "thinking": "hm", "signature": "of another model"}
        return {**message, "content": [thought, *message["content"]]}

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if "of another model" in str(body):
            return fails(400, message="invalid signature in a thinking block")
        return FINISH if count_replies(body) else calls(("look", {}))

    monkeypatch.setattr(model_server, "_message", with_thinking)
    async with batching(world, script, ScriptedTool("look")) as it:
        await result_of(await it.start())
        assert (len(it.model.batches.batches), len(it.model.batches.paid)) == (3, 2)


async def test_a_busy_pool_continues_as_new_and_follows_its_batches(
    world: MakeWorld, short_history_client: Client
) -> None:
    batches = ScriptedBatches(seconds=None)
    pooling = BatchSettings(size=1, wait=timedelta(hours=1))
    async with batching(world, [FINISH], batches=batches, pooling=pooling, server=short_history_client) as it:
        runs: list[Run] = []
        executions: set[str] = set()
        while len(executions) < 2:
            runs.append(await it.start())
            await it.until(lambda: len(batches.batches) == len(runs))
            executions.add((await it.pool.describe()).run_id)
        await it.until(lambda: _has_open(it, len(runs)))
        batches.end_batches()
        for run in runs:
            await result_of(run)
        assert len(batches.paid) == len(runs)


async def test_a_batch_that_would_be_too_large_is_split(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    write = batch_activities._write_request

    def write_large(*given: Any) -> int:
        write(*given)
        return MAX_BATCH_BYTES * 2 // 5

    monkeypatch.setattr(batch_activities, "_write_request", write_large)
    async with batching(world, [FINISH], pooling=BatchSettings(wait=timedelta(hours=1))) as it:
        runs = [await it.start() for _ in range(3)]
        await it.until(lambda: bool(it.model.batches.batches))
        assert len(it.model.batches.batches[0].requests) == 2
        await it.until(lambda: _has_open(it, 1))
        assert (await pool_state(it)).waiting == 1
        for run in runs:
            await run.cancel()


@given(st.lists(st.integers(1, MAX_BATCH_BYTES * 2), min_size=1), st.integers(1, 20))
def test_a_batch_has_the_first_entries_that_fit(sizes: list[int], calls_of_batch: int) -> None:
    entries = tuple(BatchEntry(id=str(at), workflow_id="run:x", request_bytes=size) for at, size in enumerate(sizes))
    with patch.object(pool, "MAX_BATCH_CALLS", calls_of_batch):
        fitting = pool._fitting_entries(Gathering(since=0, entries=entries))
    count = len(fitting)
    assert fitting == entries[:count]
    assert 1 <= count <= calls_of_batch
    assert count == 1 or sum(sizes[:count]) <= MAX_BATCH_BYTES
    assert count in (len(sizes), calls_of_batch) or sum(sizes[: count + 1]) > MAX_BATCH_BYTES


async def test_a_batch_has_calls_with_the_same_headers(world: MakeWorld) -> None:
    other = Agent(name="other", tools=(), options=ModelOverrides(betas=("context-1m",)))
    async with batching(world, [FINISH], agents=[other], pooling=BatchSettings(size=2)) as it:
        runs = [await it.start(agent=name) for name in ("default", "other") * 2]
        for run in runs:
            await result_of(run)
        shown = sorted((batch.betas, len(batch.requests)) for batch in it.model.batches.batches)
        assert shown == [("", 2), ("context-1m", 2)]


@pytest.mark.parametrize("status", [429, 500, 529])
async def test_a_create_request_that_fails_is_sent_again(world: MakeWorld, status: int) -> None:
    batches = ScriptedBatches(refused_creates={0: status, 1: status})
    async with batching(world, [FINISH], batches=batches) as it:
        await result_of(await it.start())
        assert (batches.calls["create"], len(batches.paid)) == (3, 1)


@pytest.mark.parametrize("status", [400, 401])
async def test_a_refused_create_request_fails_the_runs_of_its_batch(world: MakeWorld, status: int) -> None:
    batches = ScriptedBatches(refused_creates={0: status})
    async with batching(world, [FINISH], batches=batches) as it:
        for run in [await it.start(), await it.start()]:
            failure = await failure_of(run)
            assert (failure.type, f"({status})" in failure.message) == (RunFailure.model_refused, True)
        await result_of(await it.start())
        assert len(batches.paid) == 1


@pytest.mark.parametrize(("place", "paid"), [(0, 2), (-1, 1)], ids=["before the request", "in the wait"])
async def test_a_reset_run_gets_its_reply(world: MakeWorld, place: int, paid: int) -> None:
    """A reset to before the request makes another one; the first is paid, and its reply is not used."""
    batches = ScriptedBatches(seconds=None)
    async with batching(world, [FINISH], batches=batches) as it:
        run = await it.start()
        await it.until(lambda: len(batches.batches) == 1)
        execution = await run.describe()
        history = [event async for event in run.fetch_history_events()]
        tasks = [
            event.event_id for event in history if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        ]
        await it.client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=it.client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=run.id, run_id=execution.run_id),
                workflow_task_finish_event_id=tasks[place],
                request_id=uuid4().hex,
                reason="a test",
            ),
            retry=True,
        )
        await it.until(lambda: len(batches.batches) == paid)
        batches.end_batches()
        assert (await result_of(it.client.get_workflow_handle(run.id)))["payload"]["outcome"] == "done"
        assert len(batches.paid) == paid


async def test_reads_are_not_fused_with_a_call_in_a_batch(world: MakeWorld) -> None:
    async with batching(world, [calls(("look", {})), FINISH], ScriptedTool("look"), fuses=True) as it:
        run = await it.start()
        await result_of(run)
        assert [name for name in await turn_types(run) if name != "open_pool"] == ["plan", "call_tool", "reflect"]
        assert len(it.model.batches.paid) == 2


async def test_a_pool_with_open_batches_moves_to_the_current_build(world: MakeWorld) -> None:
    batches = ScriptedBatches(seconds=None)
    async with (
        world([FINISH], works=False, batches=batches, pooling=QUICK) as it,
        it.worker(deployment=build(it, 1)),
    ):
        await make_current(it, build(it, 1))
        first = await it.start()
        await it.until(lambda: len(batches.batches) == 1)
        async with it.worker(await it.another_client(), deployment=build(it, 2)):
            await make_current(it, build(it, 2))
            await it.until(lambda: are_left(it, build(it, 1), it.pool, first))
            assert await look(it) == 1
            second = await it.start()
            await it.until(lambda: len(batches.batches) == 2)
            batches.end_batches()
            for run in (first, second):
                await result_of(run)
            assert (await builds(it, it.pool))[0] == {"2"}
            assert await builds(it, first) == [{"1"}]
            assert len(batches.paid) == 2
            await replay(it, it.pool)


async def test_people_see_what_a_run_waits_for(world: MakeWorld) -> None:
    batches = ScriptedBatches(seconds=None)
    async with batching(world, [FINISH], batches=batches) as it:
        runs = [await it.start(), await it.start()]
        await it.until(lambda: bool(batches.batches))
        seen: list[RunEvent] = []

        async def watch() -> None:
            async for event in Watch(it.client, id_of(runs[0])).events():
                seen.append(event)  # noqa: PERF401 - it is read as it grows

        watching = asyncio.create_task(watch())
        await it.until(lambda: any(isinstance(event, BatchWait) for event in seen))
        assert [event.text for event in seen if isinstance(event, BatchWait)] == ["waiting for a batch of 2"]
        assert (await find_run(it.client, id_of(runs[0]))).waiting_for == "batches of model calls"
        shown = await query_pool(it.client, it.queue)
        assert shown is not None
        assert format_pool(shown).startswith(f"0 model calls wait to be sent; {batches.batches[0].id}: 2 since 20")
        await cancel_run(runs[0], "signal")
        await watching
        assert ActivityFailed("plan", FEATURE.paces["batch"].left) in seen
        batches.end_batches()
        await result_of(runs[1])
        assert (await find_run(it.client, id_of(runs[1]))).waiting_for == ""


async def test_a_project_without_batches_has_no_pool(world: MakeWorld) -> None:
    async with world([FINISH]) as it:
        assert await query_pool(it.client, it.queue) is None


async def test_the_span_of_a_batched_turn_is_in_the_trace_of_its_run(world: MakeWorld) -> None:
    async with world([FINISH], works=False, pooling=QUICK) as it, recording_spans(it) as exporter:
        run = await it.start()
        await result_of(run)
        await it.pool.result()
    (turn,) = (span for span in exporter.get_finished_spans() if span.name == "plan")
    assert turn.attributes is not None
    assert turn.attributes["perdure.run_id"] == id_of(run)
    assert turn.attributes["gen_ai.request.model"] == "scripted"
    assert int(str(turn.attributes["gen_ai.usage.output_tokens"])) > 0
    assert turn.context.trace_id == int(trace_id(it.client.namespace, run.id), 16)


FOREIGN = {"custom_id": "theirs", "result": {"type": "expired"}}


def line_of(result: dict[str, Any]) -> str:
    return json.dumps(result) + "\n"


async def test_a_strangers_result_in_a_batch_is_left_out(world: MakeWorld) -> None:
    batches = ScriptedBatches(write_results=lambda lines, _: "".join([line_of(FOREIGN), *lines]))
    async with batching(world, [FINISH], batches=batches) as it:
        for run in [await it.start(), await it.start()]:
            await result_of(run)
        assert (batches.calls["create"], batches.calls["results"], len(batches.paid)) == (1, 1, 2)


async def test_a_batch_of_strangers_only_counts_as_an_attempt(world: MakeWorld) -> None:
    batches = ScriptedBatches(write_results=lambda *_: line_of(FOREIGN))
    async with batching(world, [FINISH], batches=batches) as it:
        failure = await failure_of(await it.start())
        assert (failure.type, "another program only" in failure.message) == (RunFailure.model_unavailable, True)
        assert batches.calls["create"] == batch_activities.MAX_ATTEMPTS


@pytest.mark.parametrize(
    ("endpoint", "creates"),
    [("retrieve", [0]), ("results", [0]), ("list", [0])],
)
async def test_a_batch_that_is_not_found_at_first_is_paid_once(
    world: MakeWorld, endpoint: str, creates: list[int]
) -> None:
    cut = creates if endpoint == "list" else []
    batches = ScriptedBatches(missing={endpoint: 2}, cut_creates=cut)
    async with batching(world, [FINISH], batches=batches) as it:
        await result_of(await it.start())
        assert (batches.calls["create"], len(batches.paid)) == (1, 1)


async def test_a_check_that_fails_in_the_middle_of_a_batch_begins_its_count_again(world: MakeWorld) -> None:
    batches = ScriptedBatches(seconds=None)
    looks = iter("0101010101010101")
    found = batches._is_found

    def is_found(endpoint: str, batch: Any) -> bool:
        return found(endpoint, batch) and (endpoint != "retrieve" or next(looks, "1") == "1")

    batches._is_found = is_found  # type: ignore[method-assign]
    async with batching(world, [FINISH], batches=batches) as it:
        run = await it.start()
        await it.until(lambda: batches.calls["retrieve"] > 16)
        batches.end_batches()
        await result_of(run)
        assert len(batches.paid) == 1


def partly(lines: list[str], read: int) -> str:
    """Two reads break off, at the end of a line and within one; the third is whole, and has each line twice."""
    return (lines[0], "".join(lines)[:-20], "".join(lines * 2))[min(read, 2)]


async def test_results_that_come_in_part_are_read_again_and_delivered_once(world: MakeWorld) -> None:
    batches = ScriptedBatches(write_results=partly)
    async with batching(world, [FINISH], batches=batches) as it:
        runs = [await it.start() for _ in range(3)]
        for run in runs:
            await result_of(run)
            assert len(trace_events(it.project.workspaces / id_of(run), "plan")) == 1
        assert (batches.calls["create"], batches.calls["results"], len(batches.paid)) == (1, 3, 3)


@pytest.mark.parametrize("body", ["<html>gone</html>", "[1]\n", '{"custom_id": 1}\n', "null"])
async def test_results_that_cannot_be_read_fail_the_run_in_words_and_are_read_again_by_resume(
    world: MakeWorld, body: str
) -> None:
    is_whole = False
    batches = ScriptedBatches(write_results=lambda lines, _: "".join(lines) if is_whole else body)
    async with batching(world, [FINISH], batches=batches) as it:
        run = await it.start()
        failure = await failure_of(run)
        assert failure.type == RunFailure.model_unavailable
        assert "line 1 is no result of a request" in failure.message
        assert body.strip()[:20] in failure.message
        assert batches.calls["results"] == READS
        is_whole = True
        await result_of(await resume_run(it.client, it.queue, id_of(run)))
        assert (batches.calls["create"], len(batches.paid)) == (1, 1)


async def test_resume_looks_for_the_batch_that_was_sent_once_and_sends_it_anew_only_then(world: MakeWorld) -> None:
    batches = ScriptedBatches(missing={"retrieve": 2 * READS})
    async with batching(world, [FINISH], batches=batches) as it:
        run = await it.start()
        for _ in range(2):
            failure = await failure_of(run)
            assert (failure.type, "does not find the batch" in failure.message) == (RunFailure.model_unavailable, True)
            assert batches.calls["create"] == 1
            run = await resume_run(it.client, it.queue, id_of(run))
        await it.until(lambda: batches.calls["create"] == 2)
        await it.pool.signal("leave", {"id": "unknown"})


async def test_runs_that_are_resumed_share_the_batch_that_they_were_sent_in(world: MakeWorld) -> None:
    batches = ScriptedBatches(missing={"retrieve": READS})
    script = [calls(("look", {}), text="Plan: look."), FINISH]
    async with batching(world, script, ScriptedTool("look"), batches=batches) as it:
        runs = [await it.start(f"goal {number}") for number in range(3)]
        for run in runs:
            await failure_of(run)
        for again in [await resume_run(it.client, it.queue, id_of(run)) for run in runs[:2]]:
            await failure_of(again)  # the second batch, of the second turn, is not found either
        assert batches.calls["create"] == 2
        assert [len(batch.requests) for batch in batches.batches] == [3, 2]


async def test_a_result_that_is_too_large_fails_its_run_alone(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_api, "MAX_LINE_BYTES", 20_000)

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        return says("x" * 100_000) if "long" in str(body["messages"]) else FINISH

    async with batching(world, script) as it:
        large, small = await it.start("a long one"), await it.start("a short one")
        failure = await failure_of(large)
        assert (failure.type, "longer than" in failure.message) == (RunFailure.model_refused, True)
        await result_of(small)
        assert len(it.model.batches.batches) == 1

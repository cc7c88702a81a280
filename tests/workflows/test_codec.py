"""Encrypted runs on the real server: nothing readable is left there, keys change, and nobody starts without them."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleSpec,
    WorkflowExecutionStatus,
)
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from perdure.activities.model.transcript_cache import record_name
from perdure.client.errors import TemporalUnavailableError
from perdure.client.run_events import ActivityFailed
from perdure.client.watch import Watch
from perdure.codec import ENCRYPTED, AesGcmCodec
from perdure.contracts.tool import Approval, Effect, ToolKind
from perdure.converter import data_converter, with_encryption
from perdure.process.queue_marker import check_marker, marker_id, set_marker
from perdure.process.workflows import run_query_worker
from perdure.testkit.model_server import calls, fails, slow
from perdure.testkit.tools import ScriptedTool
from perdure.workflows import execution
from tests.workflows.conftest import MakeWorld, Run, World, connect_like
from tests.workflows.lane import echo, new_id, say, store_of, until_idle, wait_for_run, wait_until_held
from tests.workflows.runs import expect_cancelled, failure_of
from tests.workflows.script import texts

FINISH = calls(("finish", {"outcome": "the outcome, unseen"}))
ASK = calls(("ask_human", {"question": "the question, unseen", "options": ["a", "b"]}))
FAILED_TASK = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
KEYS = {name: bytes([number]) * 32 for number, name in enumerate(("k1", "k2", "k3"))}


def codec(*names: str) -> AesGcmCodec:
    return AesGcmCodec({name: KEYS[name] for name in names})


async def client_with(client: Client, *names: str) -> Client:
    """A client of its own connection, with these keys; with none, it has no codec."""
    return await connect_like(client, with_encryption(codec(*names)) if names else data_converter)


async def until_key_is_missed(it: World, run: Run) -> str:
    """The error of a workflow task that failed because its worker lacks a key."""
    await it.until_event(run, FAILED_TASK)
    events = [event async for event in run.fetch_history_events()]
    (*_, failure) = [e.workflow_task_failed_event_attributes.failure for e in events if e.event_type == FAILED_TASK]
    return f"{failure.message}: {failure.cause.message}"


async def test_nothing_of_an_encrypted_run_can_be_read_in_its_history(world: MakeWorld, client: Client) -> None:
    def breaks(_: Any, __: Any) -> Any:
        raise ApplicationError("the failure, unseen", non_retryable=True)

    tools = (
        ScriptedTool("look", lambda _, __: "the result, unseen"),
        ScriptedTool("breaks", breaks),
        ScriptedTool("outside", kind=ToolKind.signal),
    )
    script = [
        calls(("look", {"at": "the argument, unseen"}), text="the reply, unseen"),
        calls(("breaks", {})),
        calls(("outside", {})),
        ASK,
        FINISH,
    ]
    async with world(script, *tools, server=await client_with(client, "k1")) as it:
        run = await it.start("the goal, unseen", context={"who": "the context, unseen"})
        await it.until_pending(run, 3)
        await it.send_result(run, 3, "outside", result="the signal, unseen")
        await it.answer(run, text="the answer, unseen", by="unseen too")
        event = await run.result()
        assert event["payload"]["outcome"] == "the outcome, unseen"
        shown = json.dumps(await it.results(run))
        said = [e.error async for e in Watch(it.client, run.id, follow=False).events() if isinstance(e, ActivityFailed)]
        raw = await it.raw_history(run)
        [listed] = await it.until_listed(f"WorkflowId = '{run.id}' AND ExecutionStatus = 'Completed'")
    assert all(f"the {word}, unseen" in shown for word in ("result", "signal", "answer"))
    assert said == ([] if it.project.fuse_reads else ["the failure, unseen"])  # a fused read fails within its activity
    assert b"unseen" not in raw
    assert b"unseen" not in listed.raw_info.SerializeToString()


async def test_the_options_of_a_choice_are_encrypted(world: MakeWorld, client: Client) -> None:
    async with world([FINISH], server=await client_with(client, "k1")) as it:
        taken = await say(it, new_id(), "sum it up", choices=[{"name": "unseen", "options": ["a", "b"]}])
        run = await wait_for_run(it, taken)
        await it.until_state(run, question=True)
        assert b"unseen" not in await it.raw_history(run)
        await run.execute_update("answer", {"text": "a"})
        await run.result()


async def test_failures_and_reasons_are_encrypted_too(world: MakeWorld, client: Client) -> None:
    async with world([fails(401, message="the refusal, unseen")], server=await client_with(client, "k1")) as it:
        run = await it.start()
        failure = await failure_of(run)
        assert "the refusal, unseen" in failure.message
        assert b"unseen" not in await it.raw_history(run)
    async with world([slow(FINISH, 30)], server=await client_with(client, "k1")) as it:
        run = await it.start()
        await it.until_state(run, status="running")
        await run.signal("cancel", {"reason": "the reason, unseen"})
        await expect_cancelled(run)
        assert b"unseen" not in await it.raw_history(run)


async def test_a_changed_record_of_a_conversation_is_noticed_in_an_encrypted_history(
    world: MakeWorld, client: Client, tmp_path: Path
) -> None:
    chat = new_id()
    async with world(echo, server=await client_with(client, "k1")) as it:
        first = await say(it, chat, "my name is Ada")
        await until_idle(it, chat, 1)
        store, ref = store_of(tmp_path, chat), record_name(first.run_id)
        right = store.read(ref)
        store.write(ref, right.replace(b"false", b"true"))
        second = await wait_for_run(it, await say(it, chat, "who am I?"))
        assert ref in await wait_until_held(it, second)
        store.write(ref, right)
        await until_idle(it, chat, 2)
    assert texts(it.model.requests[-1])[0] == "my name is Ada"


async def test_plain_starts_and_signals_are_taken_by_workers_that_encrypt(world: MakeWorld, client: Client) -> None:
    """As people send them from the `temporal` CLI."""
    async with world([ASK, FINISH], server=await client_with(client, "k1")) as it:
        plain = await client.start_workflow(
            "AgentRun",
            {"type": "agentic.start", "payload": {"goal": "do it"}},
            id=f"run:{uuid4().hex[:12]}",
            task_queue=it.queue,
        )
        run = it.client.get_workflow_handle(plain.id)
        await it.until_state(run, question=True)
        await plain.signal("human_input", {"text": "b"})
        assert (await run.result())["type"] == "agent.completed"


async def test_a_bad_signal_under_our_own_encoding_is_listed_as_ignored(world: MakeWorld, client: Client) -> None:
    async with world([ASK, FINISH], server=await client_with(client, "k1")) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        plain = client.get_workflow_handle(run.id)
        garbage = {"encoding": ENCRYPTED, "encryption-key-id": b"k1"}
        for metadata in ({"encoding": ENCRYPTED}, garbage):
            await plain.signal("human_input", RawValue(Payload(metadata=metadata, data=b"garbage" * 9)))
        await run.execute_update("answer", {"text": "b"})
        await run.result()
        assert await it.failed_tasks(run) == 0
        assert len((await it.state(run))["ignored"]) == 2


async def test_keys_change_while_a_run_is_under_way(world: MakeWorld, client: Client) -> None:
    look = ScriptedTool("look")
    old = await client_with(client, "k1")
    async with world([ASK, calls(("look", {})), ASK, FINISH], look, server=old, works=False) as it:
        async with it.worker():
            run = await it.start()
            await it.until_state(run, question=True)
        for number, names in enumerate((("k1", "k2"), ("k2", "k1"))):
            new = await client_with(client, *names)
            async with it.worker(new):
                seen = new.get_workflow_handle(run.id)
                await it.answer(seen, text="b")
                if number == 0:
                    await it.until_state(seen, question=True, step=3)
                else:
                    assert (await seen.result())["type"] == "agent.completed"
        raw = await it.raw_history(run)
    assert b"k1" in raw
    assert b"k2" in raw


@pytest.mark.parametrize("names", [("k2",), ()])
async def test_a_run_waits_for_its_key_and_goes_on_when_it_comes(
    world: MakeWorld, client: Client, names: tuple[str, ...]
) -> None:
    holder = await client_with(client, "k1")
    async with world([ASK, FINISH], server=holder, works=False) as it:
        run = await it.start()
        async with it.worker(await client_with(client, *names)):
            assert "add k1:<its key> to PERDURE_CODEC_KEYS" in await until_key_is_missed(it, run)
            assert (await run.describe()).status is WorkflowExecutionStatus.RUNNING
        async with it.worker(await client_with(client, "k2", "k1")):
            both = (await client_with(client, "k2", "k1")).get_workflow_handle(run.id)
            await it.answer(both, text="b")
            assert (await both.result())["type"] == "agent.completed"


async def test_a_signal_with_an_unknown_key_is_kept_until_the_key_comes(world: MakeWorld, client: Client) -> None:
    async with world([ASK, FINISH], server=await client_with(client, "k1"), works=False) as it:
        async with it.worker():
            run = await it.start()
            await it.until_state(run, question=True)
            stranger = (await client_with(client, "k2")).get_workflow_handle(run.id)
            await stranger.signal("human_input", {"text": "b"})
            await until_key_is_missed(it, run)
        async with it.worker(await client_with(client, "k1", "k2")):
            assert (await run.result())["type"] == "agent.completed"


async def test_a_call_that_a_worker_without_its_key_takes_has_not_begun(
    world: MakeWorld, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a `once` call: it is neither lost nor in doubt, and made once when the key is there."""
    monkeypatch.setattr(execution, "KEY_WAIT", timedelta(seconds=1))
    taken: list[str] = []

    @activity.defn(name="call_tool")
    async def never(call: Any) -> None:
        taken.append(call)

    charge = ScriptedTool("charge", effect=Effect.once, approval=Approval.always)
    holder = await client_with(client, "k1")
    async with world([calls(("charge", {})), FINISH], charge, server=holder, works=False) as it:
        async with it.worker():
            run = await it.start()
            await it.until_state(run, question=True)
        stranger = Worker(await client_with(client, "k2"), task_queue=it.queue, activities=[never])
        async with run_query_worker(await client_with(client, "k1"), it.queue), stranger:
            await run.execute_update("answer", {"decision": "approve"})
            await it.until_event(run, EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED)
        async with it.worker(await client_with(client, "k1")):
            assert (await run.result())["type"] == "agent.completed"
            assert (await it.results(run))[0][1] == "ok {}"
        await it.replay()
    assert (len(charge.calls), taken) == (1, [])


# The encryption marker of a task queue.


async def is_polled() -> bool:
    return True


async def is_unpolled() -> bool:
    return False


async def start_worker_with(client: Client, queue: str, *names: str) -> None:
    """As a worker with these keys does at its start."""
    await set_marker(await client_with(client, *names), queue, codec(*names) if names else None)


async def start_client_with(client: Client, queue: str, *names: str, has_worker: Any = is_polled) -> None:
    """As a client with these keys does at its start."""
    await check_marker(await client_with(client, *names), queue, codec(*names) if names else None, has_worker)


@pytest.fixture
def queue() -> str:
    return f"q-{uuid4().hex[:8]}"


async def test_without_keys_no_marker_is_stored(client: Client, queue: str) -> None:
    await start_worker_with(client, queue)
    await start_client_with(client, queue)
    assert [s.id async for s in await client.list_schedules() if queue in s.id] == []


async def test_a_process_with_the_key_starts_on_an_encrypted_queue(client: Client, queue: str) -> None:
    await start_worker_with(client, queue, "k1")
    await start_worker_with(client, queue, "k1")
    await start_worker_with(client, queue, "k2", "k1")
    await start_client_with(client, queue, "k2")
    await start_client_with(client, queue, "k1", "k2")


@pytest.mark.parametrize("start", [start_worker_with, start_client_with])
async def test_a_process_without_the_key_is_rejected_by_its_name(client: Client, queue: str, start: Any) -> None:
    await start_worker_with(client, queue, "k1")
    with pytest.raises(
        TemporalUnavailableError, match=rf"^task queue {queue} is encrypted with key k1: set PERDURE_CODEC_KEYS"
    ):
        await start(client, queue)
    with pytest.raises(
        TemporalUnavailableError, match=r"encrypted with key k1, and PERDURE_CODEC_KEYS has k2, k3: add k1"
    ):
        await start(client, queue, "k2", "k3")


async def test_another_key_under_the_same_id_is_refused(client: Client, queue: str) -> None:
    await start_worker_with(client, queue, "k1")
    other = AesGcmCodec({"k1": KEYS["k2"]})
    with pytest.raises(TemporalUnavailableError, match="is not the key k1 of task queue"):
        await set_marker(client, queue, other)


async def test_a_client_that_encrypts_for_workers_without_its_key_is_rejected(client: Client, queue: str) -> None:
    with pytest.raises(TemporalUnavailableError, match=r"have no codec: set PERDURE_CODEC_KEYS for them first"):
        await start_client_with(client, queue, "k1")
    await start_client_with(client, queue, "k1", has_worker=is_unpolled)
    await start_worker_with(client, queue, "k1")
    with pytest.raises(
        TemporalUnavailableError, match=r"hold k1 and cannot read key k2.*add it to their PERDURE_CODEC_KEYS first"
    ):
        await start_client_with(client, queue, "k2", "k1")


async def test_a_retired_key_is_needed_until_a_worker_has_renewed_the_marker(client: Client, queue: str) -> None:
    await start_worker_with(client, queue, "k1")
    with pytest.raises(TemporalUnavailableError):
        await start_worker_with(client, queue, "k2")
    await start_worker_with(client, queue, "k2", "k1")
    await start_worker_with(client, queue, "k2")
    with pytest.raises(TemporalUnavailableError):
        await start_client_with(client, queue, "k1")


async def test_workers_that_start_together_agree(client: Client, queue: str) -> None:
    await asyncio.gather(*(start_worker_with(client, queue, "k1") for _ in range(8)))
    await start_client_with(client, queue, "k1")


async def test_the_marker_starts_nothing_and_has_a_note_for_people(client: Client, queue: str) -> None:
    await start_worker_with(client, queue, "k1")
    described = await client.get_schedule_handle(marker_id(queue)).describe()
    assert described.schedule.state.paused
    assert described.info.next_action_times == []
    assert "encrypted, now with k1" in (described.schedule.state.note or "")


async def test_a_foreign_schedule_under_the_name_of_the_marker_is_reported(client: Client, queue: str) -> None:
    action = ScheduleActionStartWorkflow("Theirs", id="theirs", task_queue=queue)
    await client.create_schedule(marker_id(queue), Schedule(action=action, spec=ScheduleSpec()))
    await start_worker_with(client, queue)
    with pytest.raises(TemporalUnavailableError, match="was not created by Perdure"):
        await start_worker_with(client, queue, "k1")

"""Never twice, never lost: what a lost worker leaves behind is looked up in the ledger, and asked about where it is not
there.
"""

import asyncio
import errno
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from perdure.activities.effects.ledger import LedgerEntry
from perdure.activities.model.transcript_cache import TranscriptCache, TranscriptMismatchError
from perdure.activities.model.turn import Turns
from perdure.activities.storage.store import FIRST_RUN_FILE as FIRST_RUN
from perdure.activities.storage.store import LocalStore
from perdure.activities.tools.interface import TransientToolError
from perdure.contracts.agent import Agent
from perdure.contracts.bounds import Backoff
from perdure.contracts.failures import WORKER_SHUTDOWN
from perdure.contracts.tool import Effect, ToolKind
from perdure.decisions.run.recovery import MAX_LOST
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from perdure.workflows.execution import TOOL_RETRIES
from tests.workflows.conftest import MakeWorld
from tests.workflows.runs import expect_cancelled, trace_events
from tests.workflows.script import FINISH, count_replies
from tests.workflows.tools import HeldTool

CHARGE = calls(("charge", {"eur": 5}))
CANCEL_REQUESTED = PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED
LOST = ApplicationError("worker is shutting down", type=WORKER_SHUTDOWN)


def charge(effect: Effect = Effect.once, **fields: Any) -> ScriptedTool:
    return ScriptedTool("charge", lambda *_: "receipt 7", effect=effect, **fields)


def once_only(method: Any, *, before: bool) -> Any:
    """The method, except that its first call loses the worker: before or after it has done its work."""
    lost: list[bool] = []

    def first_is_lost(*args: Any) -> Any:
        if not lost and before:
            lost.append(True)
            raise LOST
        answer = method(*args)
        if not lost:
            lost.append(True)
            raise LOST
        return answer

    return first_is_lost


def logged_events(caplog: pytest.LogCaptureFixture, *names: str) -> list[dict[str, Any]]:
    events = [vars(record)["event"] for record in caplog.records if vars(record).get("event")]
    return [event for event in events if not names or event["event"] in names]


@pytest.fixture
def refusing_store(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A store that takes no claim, with the error in this list, until the list is cleared."""
    create, errors = LocalStore.create, [errno.ENOSPC]

    def creating(store: LocalStore, name: str, data: bytes) -> None:
        if errors and name != FIRST_RUN:
            raise OSError(errors[0], "the disk refuses")
        create(store, name, data)

    monkeypatch.setattr(LocalStore, "create", creating)
    return errors


@pytest.mark.parametrize(
    ("point", "before"), [("claim", True), ("record", False)], ids=["before its claim", "after its record"]
)
async def test_a_worker_lost_outside_the_effect_leaves_nothing_in_doubt(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, point: str, before: bool
) -> None:
    monkeypatch.setattr(LedgerEntry, point, once_only(getattr(LedgerEntry, point), before=before))
    tool = charge()
    async with world([CHARGE, FINISH], tool) as it:
        run = await it.run_to_end()
        assert (await it.results(run))[0][1] == "receipt 7"
        assert (await it.state(run))["completed_steps"] == [1]
    assert len(tool.calls) == 1


@pytest.mark.parametrize(
    ("point", "before"), [("claim", False), ("record", True)], ids=["after its claim", "before its record"]
)
async def test_a_worker_lost_in_the_effect_leaves_it_in_doubt(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, point: str, before: bool
) -> None:
    monkeypatch.setattr(LedgerEntry, point, once_only(getattr(LedgerEntry, point), before=before))
    tool = charge()
    async with world([CHARGE, FINISH], tool) as it:
        run = await it.start()
        state = await it.until_state(run, question=True)
        assert (state["question"]["kind"], state["pending"][0]["attempt"]) == ("resume_unsafe", 2)
        await run.execute_update("answer", {"decision": "use_result", "text": "receipt 7, by hand"})
        await run.result()
        assert (await it.results(run))[0][1] == "receipt 7, by hand"
    assert len(tool.calls) == (1 if point == "record" else 0)


async def test_a_ledger_that_takes_no_claim_stops_effects_and_the_run_waits(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, refusing_store: list[int]
) -> None:
    monkeypatch.setattr("perdure.workflows.agent_run.tool_calls.CLAIM_PAUSES", Backoff(0.1, 60))
    tool = charge()
    async with world([CHARGE, FINISH], tool) as it:
        run = await it.start()

        async def waits() -> bool:
            timers = [e.timer_started_event_attributes.start_to_fire_timeout async for e in run.fetch_history_events()]
            return len([t for t in timers if t.nanos > 0]) >= 2

        await it.until(waits)
        assert tool.calls == []
        refusing_store.clear()
        await run.result()
        assert (await it.results(run))[0][1] == "receipt 7"
    assert len(tool.calls) == 1


async def test_a_run_that_waits_for_its_ledger_can_be_cancelled_and_nothing_has_happened(
    world: MakeWorld, refusing_store: list[int]
) -> None:
    refusing_store[:] = [errno.EROFS]
    tool = charge()
    async with world([CHARGE, FINISH], tool) as it:
        run = await it.start()
        await it.until_state(run, pending=True)
        await run.cancel()
        await expect_cancelled(run)
        assert (await it.results(run))[0][1] == "interrupted: the run ended before this call had a result"
    assert tool.calls == []


async def test_a_result_that_the_ledger_does_not_take_is_still_the_result(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LedgerEntry, "record", refuse)
    async with world([CHARGE, FINISH], charge()) as it:
        run = await it.run_to_end()
        assert (await it.results(run))[0][1] == "receipt 7"


async def test_a_damaged_claim_is_asked_about(world: MakeWorld, tmp_path: Path) -> None:
    tool = charge()
    async with world([CHARGE, FINISH], tool, works=False) as it:
        run = await it.start(run_id="damaged")
        execution = (await run.describe()).run_id
        ledger = tmp_path / "damaged" / ".store" / "ledger"
        ledger.mkdir(parents=True)
        (ledger / f"{execution[-12:]}-step-00001.claim").write_bytes(b"\x00\xff")
        async with it.worker():
            state = await it.until_state(run, question=True)
            assert state["question"]["kind"] == "resume_unsafe"
            await run.execute_update("answer", {"decision": "give_up"})
            await run.result()
    assert tool.calls == []


@pytest.mark.parametrize("effect", [Effect.read, Effect.keyed])
async def test_a_repeatable_call_is_repeated_however_often_its_worker_is_lost(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, effect: Effect
) -> None:
    quick = RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=2)
    monkeypatch.setitem(TOOL_RETRIES, effect, quick)
    keys: list[str] = []

    def behave(arguments: Any, context: Any) -> str:
        keys.append(context.idempotency_key)
        if len(keys) <= 5:
            raise LOST
        return "found"

    async with world([CHARGE, FINISH], ScriptedTool("charge", behave, effect=effect)) as it:
        run = await it.run_to_end()
        assert (await it.results(run))[0][1] == "found"
    assert (len(keys), len(set(keys))) == (6, 1)


async def test_a_call_that_loses_every_worker_is_shown_to_the_model_in_the_end(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOOL_RETRIES, Effect.read, RetryPolicy(maximum_attempts=1))

    def behave(arguments: Any, context: Any) -> str:
        raise LOST

    tool = ScriptedTool("charge", behave, effect=Effect.read)
    async with world([CHARGE, FINISH], tool) as it:
        run = await it.run_to_end()
        assert "shutting down" in (await it.results(run))[0][1]
    assert len(tool.calls) == 1 + MAX_LOST + it.project.fuse_reads  # a lost fused turn is not counted


async def test_a_model_call_is_asked_again_however_often_its_worker_is_lost(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.workflows.execution.MODEL_RETRIES", RetryPolicy(maximum_attempts=1))
    asked: list[int] = []
    ask = Turns.run_turn

    async def lose_two(turns: Any, request: Any, phase: str, attempt: Any) -> Any:
        asked.append(request.turn)
        if len(asked) <= 2:
            raise LOST
        return await ask(turns, request, phase, attempt)

    monkeypatch.setattr(Turns, Turns.run_turn.__name__, lose_two)
    async with world([FINISH]) as it:
        run = await it.start()
        assert (await run.result())["type"] == "agent.completed"
    assert asked == [1, 1, 1]


async def test_a_run_that_does_not_come_to_an_end_is_stopped_after_a_while_with_its_call_in_doubt(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.workflows.agent_run.agent_run.MAX_STOP_TIME", timedelta(seconds=1))
    held = HeldTool("charge")
    async with world([CHARGE, FINISH], held.tool, grace=timedelta(seconds=0.1)) as it:
        run = await it.start()
        await held.started.wait()
        await run.signal("cancel")
        await expect_cancelled(run)
        assert (await it.results(run))[0][1] == "in_doubt: interrupted; may have happened"
        assert await it.failed_tasks(run) == 0


async def test_an_effect_that_times_out_is_shown_as_possibly_made(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.activities.effects.ledger.GRACE", timedelta(0))
    held = HeldTool("charge", timeout=timedelta(seconds=0.5))
    async with world([CHARGE, FINISH], held.tool) as it:
        run = await it.run_to_end()
        assert (await it.results(run))[0][1] == "timeout: it did not end within 0.5 s (it may have happened)"
    assert len(held.calls) == 1


async def test_a_call_that_was_handed_out_is_in_doubt_when_the_run_is_stopped(world: MakeWorld) -> None:
    async with world([CHARGE, FINISH], charge(kind=ToolKind.signal)) as it:
        run = await it.start()
        await it.until_pending(run, 1)
        await run.signal("cancel")
        with pytest.raises(WorkflowFailureError):
            await run.result()
        assert (await it.results(run))[0][1] == "in_doubt: interrupted; may have happened"


async def test_every_retry_is_in_the_log_and_in_the_trace(
    world: MakeWorld, tmp_path: Path, caplog: pytest.LogCaptureFixture, quick_retries: float
) -> None:
    def passing(arguments: Any, context: Any) -> str:
        if len(tool.calls) < 3:
            raise TransientToolError("unreachable", "refused")
        return "found"

    tool = ScriptedTool("charge", passing, effect=Effect.keyed)
    with caplog.at_level(logging.INFO):
        async with world([CHARGE, FINISH], tool) as it:
            await it.run_to_end(run_id="retried")
    for retries in (logged_events(caplog, "agent.tool.retry"), trace_events(tmp_path / "retried", "agent.tool.retry")):
        assert [(r["attempt"], r["delay_seconds"], r["tool"], r["step"]) for r in retries] == [
            (2, 0.5, "charge", 1),
            (3, 2.0, "charge", 1),
        ]
        assert all(r["tool_use_id"] == "toolu_0_0" and r["run_id"] == "retried" for r in retries)


async def test_a_call_in_doubt_is_logged_as_an_event(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(LedgerEntry, "claim", once_only(LedgerEntry.claim, before=False))
    with caplog.at_level(logging.INFO):
        async with world([CHARGE, FINISH], charge()) as it:
            run = await it.start(run_id="doubted")
            await it.answer(run, decision="give_up")
            await run.result()
    names = [event["event"] for event in logged_events(caplog)]
    (doubt,) = logged_events(caplog, "agent_run.resume_unsafe")
    assert (doubt["run_id"], doubt["step"], doubt["tool"]) == ("doubted", 1, "charge")
    assert (names[0], names[-1]) == ("agent_run.started", "agent_run.completed")


async def test_a_read_touches_no_ledger(world: MakeWorld, tmp_path: Path) -> None:
    async with world([CHARGE, FINISH], charge(Effect.read)) as it:
        await (await it.start(run_id="reads")).result()
    assert not (tmp_path / "reads" / ".store" / "ledger").exists()


async def test_a_call_that_was_claimed_is_in_doubt_also_where_its_tool_is_gone(world: MakeWorld) -> None:
    held = HeldTool("charge")
    async with world([CHARGE, FINISH], held.tool, works=False, grace=timedelta(seconds=0.1)) as it:
        async with it.worker():
            run = await it.start()
            await held.started.wait()
        it.project = replace(it.project, tools={}, agents={"default": Agent(name="default", tools=())})
        async with it.worker():
            state = await it.until_state(run, question=True)
            assert state["question"]["kind"] == "resume_unsafe"
            await run.execute_update("answer", {"decision": "give_up"})
            await it.answer(run, decision="keep_old")
            await run.result()


async def test_any_error_of_an_effect_is_recorded_as_possibly_made(world: MakeWorld, tmp_path: Path) -> None:
    def breaks(arguments: Any, context: Any) -> str:
        raise KeyError("eur")

    tool = ScriptedTool("charge", breaks, effect=Effect.once)
    async with world([CHARGE, FINISH], tool) as it:
        run = await it.run_to_end(run_id="broken")
        assert (await it.results(run))[0][1] == "tool_error: KeyError: 'eur' (it may have happened)"
    assert "it may have happened" in next((tmp_path / "broken/.store/ledger").glob("*.result")).read_text()
    assert len(tool.calls) == 1


async def test_arguments_that_cannot_be_had_leave_an_effect_unbegun(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("perdure.workflows.agent_run.tool_calls.CLAIM_PAUSES", Backoff(0.1, 60))
    at, failures = TranscriptCache.read_conversation, [1, 2]

    async def failing(transcripts: TranscriptCache, wanted: Any) -> Any:
        if wanted.length > 1 and failures:
            failures.pop()
            raise TranscriptMismatchError("the run has moved on")
        return await at(transcripts, wanted)

    tool = charge()
    async with world([calls(("charge", {"note": "x" * 20_000})), FINISH], tool) as it:
        monkeypatch.setattr(TranscriptCache, TranscriptCache.read_conversation.__name__, failing)
        run = await it.run_to_end()
        assert (await it.results(run))[0][1] == "receipt 7"
    assert (len(tool.calls), failures) == (1, [])


async def test_a_worker_paused_between_claim_and_effect_does_not_make_it_and_reports_so(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "perdure.activities.effects.ledger.current_lease_end", lambda: datetime.now(UTC) - timedelta(seconds=1)
    )
    tool = charge()
    async with world([CHARGE, FINISH], tool) as it:
        run = await it.run_to_end()
        assert (await it.results(run))[0][1] == "interrupted: not made: its worker stood still before it began"
    assert tool.calls == []


async def test_a_second_run_under_one_id_makes_its_own_effects(world: MakeWorld) -> None:
    paid: list[int] = []

    def pay(arguments: Any, context: Any) -> str:
        paid.append(arguments["eur"])
        return f"receipt for {arguments['eur']}"

    def script(body: dict[str, Any]) -> Any:
        return (
            FINISH
            if count_replies(body)
            else calls(("charge", {"eur": int(body["messages"][0]["content"][0]["text"])}))
        )

    async with world(script, ScriptedTool("charge", pay, effect=Effect.once)) as it:
        for eur in ("5", "900"):
            start = {"type": "agentic.start", "payload": {"goal": eur}}
            run = await it.client.start_workflow("AgentRun", start, id="run:one-id", task_queue=it.queue)
            await run.result()
            assert (await it.results(run))[0][1] == f"receipt for {eur}"
    assert paid == [5, 900]


@pytest.mark.parametrize("slow", ["made", "recorded"])
async def test_a_cancel_while_the_result_is_written_down_keeps_it(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    """From the claim on the call is finished, whatever is asked of it."""
    writing, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    record = LedgerEntry.record

    def recording(page: LedgerEntry, outcome: Any) -> None:
        loop.call_soon_threadsafe(writing.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
        record(page, outcome)

    if slow == "recorded":
        monkeypatch.setattr(LedgerEntry, "record", recording)

    async def pay(arguments: Any, context: Any) -> str:
        if slow == "made":
            writing.set()
            await go_on.wait()
        return "receipt 7"

    async with world([CHARGE, FINISH], ScriptedTool("charge", pay, effect=Effect.once)) as it:
        run = await it.start()
        await writing.wait()
        await run.signal("cancel")
        await it.until_activity(run, lambda each: each.state == CANCEL_REQUESTED)
        await asyncio.sleep(0.5)  # nothing tells when the cancel has arrived
        go_on.set()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        assert (await it.results(run))[0][1] == "receipt 7"


async def test_a_result_that_has_come_settles_a_call_whose_worker_was_lost_while_it_was_handed_out(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LedgerEntry, "record", once_only(LedgerEntry.record, before=True))
    holding = asyncio.Event()

    async def hand_out(arguments: Any, context: Any) -> str:
        await holding.wait()
        return "handed out"

    tool = ScriptedTool("charge", hand_out, effect=Effect.once, kind=ToolKind.signal)
    async with world([CHARGE, FINISH], tool) as it:
        run = await it.start()
        await it.until(lambda: len(tool.calls) == 1)
        await it.send_result(run, 1, "charge", result="receipt 7")
        await it.state(run)
        holding.set()
        await run.result()
        assert (await it.results(run))[0][1] == "receipt 7"
        assert (await it.state(run))["question"] is None


async def test_the_same_result_delivered_twice_is_not_the_next_attempts(world: MakeWorld) -> None:
    busy = {"status": "error", "result": None, "error": {"kind": "busy", "message": "later", "retryable": True}}
    tool = charge(Effect.keyed, kind=ToolKind.signal)
    async with world([CHARGE, FINISH], tool) as it:
        run = await it.start()
        await it.until_pending(run, 1)
        for _ in range(3):
            await it.send_result(run, 1, "charge", completed_at="2026-01-01T00:00:00Z", **busy)
        await it.until(lambda: len(tool.calls) == 2)
        await it.until_pending(run, 1)
        await it.send_result(run, 1, "charge", completed_at="2026-01-01T00:00:00Z", **busy)
        await it.send_result(run, 1, "charge", result="now")
        await run.result()
        assert (await it.results(run))[0][1] == "now"
    assert len(tool.calls) == 2

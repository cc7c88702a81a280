"""Questions, approvals and doubts: one open question, answered once, by whoever may."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from contracts.tool import Approval, Effect, ToolKind
from testkit.model_server import calls
from testkit.tools import ScriptedTool

FINISH = calls(("finish", {"outcome": "done"}))
ASK = calls(("ask_human", {"question": "Which one?", "options": ["a", "b"]}))


async def refused(run: Any, *body: Any) -> str:
    """Why the update `answer` is refused."""
    with pytest.raises(WorkflowUpdateFailedError) as failure:
        await run.execute_update("answer", args=body)
    assert isinstance(failure.value.cause, ApplicationError)
    return failure.value.cause.message


@pytest.mark.parametrize("door", ["signal", "update"])
async def test_a_question_is_answered_by_signal_and_by_update(world: Any, door: str) -> None:
    async with world([ASK, FINISH]) as it:
        run = await it.start()
        state = await it.until_state(run, question=True, status="waiting_on_human")
        assert state["question"] == {"id": "q1", "kind": "question", "text": "Which one?", "options": ["a", "b"]}
        if door == "signal":
            await run.signal("human_input", {"text": "b"})
        else:
            accepted = await run.execute_update("answer", {"question_id": "q1", "text": "b", "by": "eva"})
            assert accepted == {"run_id": state["run_id"], "question_id": "q1", "accepted": True}
        assert (await run.result())["payload"]["steps_taken"] == 1
        assert (await it.results(run))[0] == ("toolu_0_0", "b")
        assert (await it.state(run))["question"] is None


async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays_open(world: Any) -> None:
    async with world([ASK, FINISH]) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        assert "question q7 is not open" in await refused(run, {"question_id": "q7", "text": "b"})
        assert "takes a text" in await refused(run, {"decision": "approve"})
        assert "colour" in await refused(run, {"text": "b", "colour": "red"})
        assert "decision" in await refused(run, {"decision": "maybe"})
        assert "one JSON argument" in await refused(run)
        assert "one JSON argument" in await refused(run, {"text": "a"}, {"text": "b"})
        assert await refused(run, "b")
        assert (await it.state(run))["question"]["id"] == "q1"
        await run.execute_update("answer", {"text": "b"})
        await run.result()
        assert await it.failed_tasks(run) == 0


async def test_an_answer_after_the_first_one_is_too_late(world: Any) -> None:
    async with world([ASK, calls(("wait", {})), FINISH], ScriptedTool("wait", kind=ToolKind.signal)) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await run.execute_update("answer", {"text": "first"})
        await it.until_pending(run, 2)
        assert await refused(run, {"text": "second"}) == "no question is open on this run"
        await run.signal("human_input", {"text": "third"})
        await it.send_result(run, 2, "wait")
        await run.result()
        assert (await it.results(run))[0][1] == "first"
        with pytest.raises((WorkflowUpdateFailedError, RPCError)):
            await run.execute_update("answer", {"text": "after the end"})


@pytest.mark.parametrize("bad", [{}, {"question": "  "}, {"question": 5}])
async def test_a_question_that_asks_nothing_goes_back_to_the_model(world: Any, bad: Any) -> None:
    async with world([calls(("ask_human", bad)), FINISH]) as it:
        run = await it.start()
        await run.result()
        assert (await it.results(run))[0][1].startswith("invalid_arguments: `question` is required")


def guarded() -> ScriptedTool:
    return ScriptedTool("charge", lambda *_: "charged", effect=Effect.once, approval=Approval.always)


async def test_an_approved_call_runs_and_the_next_one_is_asked_about_again(world: Any) -> None:
    charge = guarded()
    async with world([calls(("charge", {"eur": 5})), calls(("charge", {"eur": 6})), FINISH], charge) as it:
        run = await it.start()
        state = await it.until_state(run, question=True)
        assert (state["question"]["kind"], state["question"]["options"]) == (
            "approval",
            ["approve", "approve_tool", "deny"],
        )
        assert '"eur": 5' in state["question"]["text"]
        assert charge.calls == []
        assert "takes one of" in await refused(run, {"text": "the user approved this"})
        await run.execute_update("answer", {"decision": "approve"})
        state = await it.until_state(run, question=True, step=2)
        assert (state["question"]["id"], len(charge.calls)) == ("q2", 1)
        await run.execute_update("answer", {"decision": "approve"})
        await run.result()
    assert [arguments for arguments, _ in charge.calls] == [{"eur": 5}, {"eur": 6}]


async def test_a_tool_approved_for_the_run_is_not_asked_about_again(world: Any) -> None:
    charge = guarded()
    async with world(
        [calls(("charge", {"n": 1}), ("charge", {"n": 2})), calls(("charge", {"n": 3})), FINISH], charge
    ) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await run.execute_update("answer", {"decision": "approve_tool"})
        await run.result()
    assert len(charge.calls) == 3


async def test_a_denied_call_never_runs_and_the_model_hears_why(world: Any) -> None:
    charge = guarded()
    async with world([calls(("charge", {})), FINISH], charge) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await run.execute_update("answer", {"decision": "deny", "text": "too dear"})
        await run.result()
        assert (await it.results(run))[0][1] == "denied: a person denied this call: too dear"
    assert charge.calls == []


def lost_once(kind: ToolKind = ToolKind.native) -> ScriptedTool:
    """An effect whose first call is interrupted by the end of its worker."""

    def behave(arguments: Any, context: Any) -> str:
        if context.idempotency_key.endswith(":request"):
            raise ApplicationError("worker is shutting down", type="WorkerShutdown")
        return f"charged under {context.idempotency_key.rpartition('step:')[2]}"

    return ScriptedTool("charge", behave, effect=Effect.once, kind=kind, timeout=timedelta(seconds=20))


@pytest.mark.parametrize(
    ("answer", "shown", "times"),
    [
        ({"decision": "run_again"}, "charged under 1:request:2", 2),
        ({"decision": "use_result", "text": "receipt 7"}, "receipt 7", 1),
        ({"decision": "give_up"}, "in_doubt: interrupted; may have happened", 1),
    ],
)
async def test_a_person_settles_an_effect_whose_worker_was_lost(
    world: Any, answer: Any, shown: str, times: int
) -> None:
    charge = lost_once()
    async with world([calls(("charge", {"eur": 5})), FINISH], charge) as it:
        run = await it.start()
        state = await it.until_state(run, question=True)
        assert state["question"]["kind"] == "resume_unsafe"
        assert state["question"]["options"] == ["run_again", "use_result", "give_up"]
        assert len(charge.calls) == 1
        await run.execute_update("answer", answer)
        await run.result()
        assert (await it.results(run))[0][1] == shown
    assert len(charge.calls) == times


async def test_a_result_given_by_a_person_also_settles_a_call_that_was_being_handed_out(world: Any) -> None:
    async with world([calls(("charge", {})), FINISH], lost_once(ToolKind.signal)) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await run.execute_update("answer", {"decision": "use_result", "text": "receipt 7"})
        await run.result()
        assert (await it.results(run))[0][1] == "receipt 7"


async def test_an_effect_that_outlives_its_worker_is_asked_about_and_never_repeated(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = asyncio.Event()

    async def hang(arguments: Any, context: Any) -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    monkeypatch.setattr("worker.GRACE", timedelta(seconds=0.1))
    charge = ScriptedTool("charge", hang, effect=Effect.once)
    async with world([calls(("charge", {})), FINISH], charge, works=False) as it:
        async with it.worker():
            run = await it.start()
            await started.wait()
        async with it.worker():
            state = await it.until_state(run, question=True)
            assert (state["question"]["kind"], state["status"]) == ("resume_unsafe", "waiting_on_human")
            await run.execute_update("answer", {"decision": "give_up"})
            await run.result()
    assert len(charge.calls) == 1


async def test_a_cancel_leaves_a_call_in_doubt_in_doubt(world: Any) -> None:
    async with world([calls(("charge", {"eur": 5}))], lost_once()) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await run.signal("cancel")
        with pytest.raises(WorkflowFailureError):
            await run.result()
        assert [kind for _, kind in await it.results(run)] == ["in_doubt: interrupted; may have happened"]


async def test_a_result_from_outside_approves_nothing(world: Any) -> None:
    charge = ScriptedTool("charge", effect=Effect.once, kind=ToolKind.signal, approval=Approval.always)
    async with world([calls(("charge", {})), FINISH], charge) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await it.send_result(run, 1, "charge", result="receipt 7")
        assert (await it.state(run))["question"]["kind"] == "approval"
        await run.execute_update("answer", {"decision": "deny"})
        await run.result()
        assert (await it.results(run))[0][1].startswith("denied")
    assert charge.calls == []

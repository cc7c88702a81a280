"""Questions, approvals and doubts: one open question, answered once, by whoever may."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    QueryWorkflowInput,
    WorkflowFailureError,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.activities.tools.call import ToolCalls
from perdure.activities.tools.json_schema import SchemaValidator
from perdure.answer_keys import NO_KEYS
from perdure.client import runs
from perdure.client.errors import AnswerRejectedError, RejectedError, TemporalUnavailableError
from perdure.client.run_events import WaitStarted
from perdure.client.run_list import iterate_runs
from perdure.client.runs import submit_answer
from perdure.commands import chat
from perdure.contracts.run.signals import Decision, HumanInput
from perdure.contracts.run.state import RunStatus
from perdure.contracts.tool import Approval, Effect, ToolKind
from perdure.decisions.ids import call_digest
from perdure.decisions.tools import gated_routes
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run
from tests.workflows.runs import rejection_of
from tests.workflows.script import FINISH
from tests.workflows.tools import HeldTool

ASK = calls(("ask_human", {"question": "Which one?", "options": ["a", "b"]}))


async def test_a_chat_reads_a_question_that_it_has_shown_without_a_worker(world: MakeWorld) -> None:
    async with world([ASK, FINISH]) as it:
        run = await it.start()
        run_id = (await it.until_state(run, question=True))["run_id"]
        session: Any = SimpleNamespace(client=it.client, settings=SimpleNamespace(answer_keys=NO_KEYS))
        talk = chat.ChatSession(session, "any", None, Console(file=StringIO()))
        talk._note_question(run_id, WaitStarted(RunStatus.waiting_on_human, "human: asks: Which one?"))
        await talk._handle_text("2")
        await run.result()
        assert (await it.results(run))[0] == ("toolu_0_0", "b")
        with pytest.raises(RejectedError, match="the question is closed"):
            await talk._handle_text("a")


async def rejection(run: Run, *body: Any) -> str:
    return (await rejection_of(run, "answer", *body)).message


@pytest.mark.parametrize("door", ["signal", "update"])
async def test_a_question_is_answered_by_signal_and_by_update(world: MakeWorld, door: str) -> None:
    async with world([ASK, FINISH]) as it:
        run = await it.start()
        state = await it.until_state(run, question=True, status="waiting_on_human")
        asked = {"id": "q1", "kind": "question", "text": "Which one?", "options": ["a", "b"]}
        call = {"step": 1, "tool": "ask_human", "tool_use_id": "toolu_0_0", "asked_at": state["question"]["asked_at"]}
        assert state["question"] == {**asked, **call}
        assert state["questions"] == [state["question"]]
        if door == "signal":
            await run.signal("human_input", {"text": "b"})
        else:
            accepted = await run.execute_update("answer", {"question_id": "q1", "text": "b", "by": "eva"})
            assert accepted == {"run_id": state["run_id"], "question_id": "q1", "accepted": True}
        assert (await run.result())["payload"]["steps_taken"] == 1
        assert (await it.results(run))[0] == ("toolu_0_0", "b")
        assert (await it.state(run))["question"] is None


async def test_the_worker_that_has_the_run_in_memory_does_not_ask_it_for_the_answer(world: MakeWorld) -> None:
    asked: list[str] = []

    class Asked(Interceptor):
        def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the SDK's name
            class Counting(OutboundInterceptor):
                async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002 - the SDK's name
                    asked.append(input.query)
                    return await super().query_workflow(input)

            return Counting(next)

    async with world([ASK, FINISH], works=False) as it:
        settings = it.client.config(active_config=True)
        client = Client(**{**settings, "interceptors": [Asked()]})  # type: ignore[arg-type]  # its own names
        async with it.worker(client):
            run = await it.start()
            await it.until_state(run, question=True)
            await run.signal("human_input", {"text": "b"})
            await run.result()
    assert not (it.caches and asked)


async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays_open(world: MakeWorld) -> None:
    async with world([ASK, FINISH]) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        assert "question q7 is not open" in await rejection(run, {"question_id": "q7", "text": "b"})
        assert "takes a text" in await rejection(run, {"decision": "approve"})
        assert "colour" in await rejection(run, {"text": "b", "colour": "red"})
        assert "decision" in await rejection(run, {"decision": "maybe"})
        assert "one JSON argument" in await rejection(run)
        assert "one JSON argument" in await rejection(run, {"text": "a"}, {"text": "b"})
        assert await rejection(run, "b")
        assert (await it.state(run))["question"]["id"] == "q1"
        await run.execute_update("answer", {"text": "b"})
        await run.result()
        assert await it.failed_tasks(run) == 0


async def test_an_answer_after_the_first_one_is_too_late(world: MakeWorld) -> None:
    async with world([ASK, calls(("wait", {})), FINISH], ScriptedTool("wait", kind=ToolKind.signal)) as it:
        run = await it.start()
        await it.answer(run, text="first")
        await it.until_pending(run, 2)
        assert await rejection(run, {"text": "second"}) == "no question is open on this run"
        await run.signal("human_input", {"text": "third"})
        await it.send_result(run, 2, "wait")
        await run.result()
        assert (await it.results(run))[0][1] == "first"
        with pytest.raises((WorkflowUpdateFailedError, RPCError)):
            await run.execute_update("answer", {"text": "after the end"})


@pytest.mark.parametrize("bad", [{}, {"question": "  "}, {"question": 5}])
async def test_a_question_that_asks_nothing_goes_back_to_the_model(world: MakeWorld, bad: Any) -> None:
    async with world([calls(("ask_human", bad)), FINISH]) as it:
        run = await it.run_to_end()
        assert (await it.results(run))[0][1].startswith("invalid_arguments: `question` is required")


async def test_an_answer_that_no_worker_takes_fails_within_its_timeout(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.client.runs.UPDATE_TIMEOUT", 0.5)
    async with world([ASK, FINISH], works=False) as it:
        run = await it.start()
        with pytest.raises(TemporalUnavailableError, match=r"no worker took the answer within 0\.5 s"):
            await submit_answer(it.client, run.id, HumanInput(text="b"))


async def test_a_caller_whose_answer_no_worker_takes_can_be_cancelled(world: MakeWorld) -> None:
    async with world([ASK, FINISH], works=False) as it:
        run = await it.start()
        task = asyncio.create_task(submit_answer(it.client, run.id, HumanInput(text="b")))
        done, _ = await asyncio.wait({task}, timeout=0.5)
        assert not done
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def guarded(**fields: Any) -> ScriptedTool:
    return ScriptedTool("charge", lambda *_: "charged", effect=Effect.once, approval=Approval.always, **fields)


async def test_an_approved_call_runs_and_the_next_one_is_asked_about_again(world: MakeWorld) -> None:
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
        assert "takes one of" in await rejection(run, {"text": "the user approved this"})
        await run.execute_update("answer", {"decision": "approve"})
        state = await it.until_state(run, question=True, step=2)
        assert (state["question"]["id"], len(charge.calls)) == ("q2", 1)
        await run.execute_update("answer", {"decision": "approve"})
        await run.result()
    assert [arguments for arguments, _ in charge.calls] == [{"eur": 5}, {"eur": 6}]


async def test_an_approval_names_its_call_and_is_used_once(world: MakeWorld) -> None:
    charge = guarded()
    same = ("charge", {"eur": 5, "to": "eva"})
    async with world([calls(same, same), calls(same), FINISH], charge) as it:
        run = await it.start()
        seen: list[str] = []
        for number in (1, 2, 3):
            question = await it.until_question(run, f"q{number}")
            assert question["call"] not in seen  # equal calls are not one call
            for other in (*seen, call_digest(*same)):
                assert "about the call" in await rejection(run, {"decision": "approve", "call": other})
            seen.append(question["call"])
            assert len(charge.calls) == number - 1
            await run.execute_update(
                "answer", {"question_id": f"q{number}", "call": question["call"], "decision": "approve"}
            )
            await it.until(lambda: len(charge.calls) == number)  # noqa: B023 - awaited in this round
        await run.result()


ONE = calls(("charge", {"eur": 5}))


async def test_an_answer_that_names_no_question_is_for_the_one_that_was_open_when_it_was_given(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge, send = guarded(), runs._execute_update
    async with world([ONE, ONE, FINISH], charge) as it:
        run = await it.start()
        await it.until_question(run, "q1")

        async def late(*args: Any) -> None:
            """Another answer is faster, and the run asks about the next call."""
            await run.execute_update("answer", {"question_id": "q1", "decision": "deny"})
            await it.until_question(run, "q2")
            await send(*args)

        monkeypatch.setattr(runs, "_execute_update", late)
        with pytest.raises(AnswerRejectedError, match="question q1 is not open; the open one is q2"):
            await submit_answer(it.client, run.id, HumanInput(decision=Decision.approve))
        assert (await it.state(run))["question"]["id"] == "q2"
        await run.execute_update("answer", {"question_id": "q2", "decision": "deny"})
        await run.result()
    assert charge.calls == []


async def test_of_two_answers_without_a_name_that_come_at_once_the_second_answers_no_later_question(
    world: MakeWorld,
) -> None:
    charge = guarded()
    async with world([ONE, ONE, FINISH], charge, works=False) as it:
        async with it.worker():
            run = await it.start()
            await it.until_question(run, "q1")
        for _ in range(2):
            await run.signal("human_input", {"decision": "deny"})
        async with it.worker():
            await it.until_question(run, "q2")
            state = await it.state(run)
            await run.execute_update("answer", {"question_id": "q2", "decision": "deny"})
            await run.result()
            await it.replay()
    assert state["ignored"] == ["human_input: no question is open on this run"]
    assert charge.calls == []


async def test_a_call_that_is_too_large_to_be_shown_whole_is_not_put_to_a_person(world: MakeWorld) -> None:
    charge = guarded()
    async with world([calls(("charge", {"note": "x" * 21_000})), FINISH], charge) as it:
        run = await it.run_to_end()
        assert "a person must approve this call, and as it is shown it has 21," in (await it.results(run))[0][1]
    assert charge.calls == []


async def test_a_call_is_made_only_with_the_arguments_that_were_approved(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they came to differ: it is looked at where the call is made."""

    async def others(*_: Any) -> dict[str, Any]:
        return {"eur": 500}

    monkeypatch.setattr(ToolCalls, "_load_arguments", others)
    charge = guarded()
    async with world([calls(("charge", {"eur": 5})), FINISH], charge) as it:
        run = await it.start()
        await it.answer(run, decision="approve")
        await run.result()
        assert (await it.results(run))[0][1] == "denied: not made: a person approved this tool with other arguments"
    assert charge.calls == []


async def test_an_approval_that_expires_is_denied_and_a_late_answer_is_rejected(world: MakeWorld) -> None:
    charge = guarded(approval_timeout=timedelta(seconds=1))
    wait = ScriptedTool("wait", kind=ToolKind.signal)
    async with world([calls(("charge", {"eur": 5})), calls(("wait", {})), FINISH], charge, wait) as it:
        run = await it.start()
        question = (await it.until_state(run, question=True))["question"]
        assert "expires_at" in question
        await it.until_pending(run, 2)
        expired = "question q1 has expired without an answer"
        assert await rejection(run, {"question_id": "q1", "decision": "approve"}) == expired
        await run.signal("human_input", {"decision": "approve"})
        state = await it.state(run)
        assert (state["question"], state["ignored"]) == (None, [f"human_input: {expired}"])
        await it.send_result(run, 2, "wait")
        await run.result()
        assert (await it.results(run))[0][1] == "denied: the approval expired: no person decided within 0:00:01"
        timers = [
            event async for event in run.fetch_history_events() if event.HasField("timer_started_event_attributes")
        ]
        assert b"approve charge" in timers[0].user_metadata.summary.data
        assert timers[0].timer_started_event_attributes.start_to_fire_timeout.ToTimedelta() == timedelta(seconds=1)
    assert charge.calls == []


async def test_an_approval_in_time_is_as_good_as_one_without_a_time(world: MakeWorld) -> None:
    charge = guarded(approval_timeout=timedelta(hours=1))
    async with world([calls(("charge", {})), ASK, FINISH], charge) as it:
        run = await it.start()
        await it.answer(run, decision="approve")
        state = await it.until_state(run, question=True, step=2)
        assert "expires_at" not in state["question"]
        await run.execute_update("answer", {"text": "b"})
        await run.result()
    assert len(charge.calls) == 1


async def test_an_answer_that_waited_for_a_worker_past_the_time_comes_too_late(world: MakeWorld) -> None:
    charge = guarded(approval_timeout=timedelta(seconds=1))
    async with world([calls(("charge", {})), FINISH], charge, works=False) as it:
        async with it.worker():
            run = await it.start()
            state = await it.until_state(run, question=True)
        expires = datetime.fromisoformat(state["question"]["expires_at"])
        await it.until(lambda: datetime.now(UTC) > expires)
        await run.signal("human_input", {"decision": "approve"})
        async with it.worker():
            await run.result()
            assert "has expired" in (await it.state(run))["ignored"][0]
    assert charge.calls == []


async def until_pending(it: Any, run: Run, step: int) -> None:
    async def is_pending() -> bool:
        return any(pending["step"] == step for pending in (await it.state(run))["pending"])

    await it.until(is_pending)


def turn_of_five(before: int = 0) -> Any:
    tools = ("look", "charge", "charge", "look", "charge")
    return calls(*((tool, {"n": before + n}) for n, tool in enumerate(tools, 1)))


@pytest.mark.parametrize("effect", list(Effect))
async def test_the_calls_of_a_turn_are_asked_about_together_and_made_in_their_order(
    world: MakeWorld, effect: Effect
) -> None:
    asks, look = ScriptedTool("charge", effect=effect, approval=Approval.always), ScriptedTool("look")
    async with world([turn_of_five(), FINISH], asks, look) as it:
        run = await it.start()
        await until_pending(it, run, 2)
        state = await it.state(run)
        assert [question["id"] for question in state["questions"]] == ["q1", "q2", "q3"]
        assert (state["question"], state["status"]) == (state["questions"][0], "waiting_on_human")
        assert "name one of them: q1, q2, q3" in await rejection(run, {"decision": "approve"})
        third = state["questions"][2]["call"]
        await run.execute_update("answer", {"call": third, "decision": "approve"})
        assert "question q3 is not open; open: q1, q2" in await rejection(run, {"question_id": "q3", "text": "x"})
        await run.execute_update("answer", {"question_id": "q2", "decision": "deny", "text": "no"})
        assert (len(look.calls), len(asks.calls)) == (1, 0)  # a call waits for those before it
        await run.execute_update("answer", {"question_id": "q1", "decision": "approve"})
        await run.result()
        assert [arguments["n"] for arguments, _ in asks.calls] == [2, 5]
        shown = [text.partition(" ")[0] for _, text in (await it.results(run))[:5]]
        assert shown == ["ok", "ok", "denied:", "ok", "ok"]
        assert await it.failed_tasks(run) == 0
        await it.replay()


async def test_an_approved_call_is_made_while_another_question_is_open(world: MakeWorld) -> None:
    charge = guarded()
    turn = calls(("charge", {"n": 1}), ("ask_human", {"question": "Which?"}), ("charge", {"n": 2}))
    async with world([turn, FINISH], charge) as it:
        run = await it.start()
        await it.until_question(run, "q1")
        await run.execute_update("answer", {"question_id": "q1", "decision": "approve"})
        await until_pending(it, run, 2)
        state = await it.state(run)
        assert ([q["id"] for q in state["questions"]], len(charge.calls)) == (["q2", "q3"], 1)
        await run.execute_update("answer", {"question_id": "q3", "decision": "approve"})
        await run.execute_update("answer", {"text": "this"})
        await run.result()
        assert [text for _, text in (await it.results(run))[:3]] == ["charged", "this", "charged"]
    assert len(charge.calls) == 2


async def test_open_questions_and_their_answers_move_to_the_next_execution(
    world: MakeWorld, short_history_client: Client
) -> None:
    charge, look, turns = guarded(), ScriptedTool("look", lambda arguments, _: arguments["n"]), 4
    script = [turn_of_five(5 * turn) for turn in range(turns)]
    async with world([*script, FINISH], charge, look, server=short_history_client, max_steps=5 * turns) as it:
        run = await it.start()
        for turn in range(turns):
            first, second, third = (f"q{3 * turn + n}" for n in (1, 2, 3))
            await it.until_question(run, first)
            await run.execute_update("answer", {"question_id": third, "decision": "approve"})
            await run.execute_update("answer", {"question_id": second, "decision": "deny"})
            await until_pending(it, run, 5 * turn + 2)
            await run.execute_update("answer", {"question_id": first, "decision": "approve"})
        await run.result()
        assert len(await it.executions(run)) >= 2
    assert [arguments["n"] for arguments, _ in charge.calls] == [5 * turn + n for turn in range(turns) for n in (2, 5)]


async def test_each_question_expires_at_its_own_time_and_a_cancel_closes_all(world: MakeWorld) -> None:
    charge, slow = guarded(approval_timeout=timedelta(seconds=1)), ScriptedTool("slow", approval=Approval.always)
    turn = calls(("slow", {}), ("charge", {"n": 1}), ("charge", {"n": 2}))
    async with world([turn, FINISH], charge, slow) as it:
        run = await it.start()
        await it.until_question(run, "q1")
        await it.until(lambda: _is_alone(it, run))
        assert await rejection(run, {"question_id": "q3", "decision": "approve"}) == (
            "question q3 has expired without an answer"
        )
        await run.signal("cancel")
        with pytest.raises(WorkflowFailureError):
            await run.result()
        assert (await it.state(run))["questions"] == []
    assert (charge.calls, slow.calls) == ([], [])


async def _is_alone(it: Any, run: Run) -> bool:
    return [question["id"] for question in (await it.state(run))["questions"]] == ["q1"]


def typed_charge() -> ScriptedTool:
    charge = guarded()
    properties = {"eur": {"type": "integer"}, "note": {"type": "string"}}
    charge.schema = charge.schema.evolve(input_schema={"type": "object", "properties": properties})
    return charge


async def test_a_person_changes_a_call_while_approving_it(world: MakeWorld) -> None:
    charge = typed_charge()
    async with world([calls(("charge", {"eur": 500})), FINISH], charge) as it:
        run = await it.start()
        question = await it.until_question(run, "q1")
        approve = {"question_id": "q1", "call": question["call"], "decision": "approve", "by": "eva"}
        assert "eur" in await rejection(run, {**approve, "arguments": {"eur": "much"}})
        assert "too large" in await rejection(run, {**approve, "arguments": {"eur": 5, "note": "x" * 21_000}})
        denies = {"question_id": "q1", "decision": "deny", "arguments": {"eur": 5}}
        assert "only with the approval" in await rejection(run, denies)
        changed = {"eur": 5, "note": "y" * 9_000}  # more than fits where history holds arguments twice
        await run.execute_update("answer", {**approve, "arguments": changed})
        await run.result()
        ((_, shown), *_) = await it.results(run)
        assert shown.startswith('eva changed the arguments of this call to {"eur": 5, ')
        assert shown.endswith("Its result:\ncharged")
        assert await it.failed_tasks(run) == 0
        await it.replay()
    assert [arguments for arguments, _ in charge.calls] == [changed]


async def test_a_changed_call_by_signal_is_checked_too(world: MakeWorld) -> None:
    charge = typed_charge()
    async with world([calls(("charge", {"eur": 500})), FINISH], charge) as it:
        run = await it.start()
        await it.until_question(run, "q1")
        await run.signal("human_input", {"decision": "approve", "arguments": {"eur": "much"}})

        async def is_ignored() -> bool:
            return "cannot be used" in str((await it.state(run))["ignored"])

        await it.until(is_ignored)
        await run.signal("human_input", {"decision": "approve", "arguments": {"eur": 5}})
        await run.result()
    assert [arguments for arguments, _ in charge.calls] == [{"eur": 5}]


async def test_every_open_question_is_listed_and_no_answered_one(world: MakeWorld) -> None:
    lost = ScriptedTool("pay", lost_once().run, effect=Effect.once, timeout=timedelta(seconds=20))
    script = {"ask": ASK, "approve": calls(("charge", {})), "doubt": calls(("pay", {}))}

    def reply(body: dict[str, Any]) -> Any:
        goal = body["messages"][0]["content"][0]["text"]
        return script[goal] if len(body["messages"]) == 1 else FINISH

    async with world(reply, guarded(), lost) as it:
        runs = {goal: await it.start(goal) for goal in script}
        for run in runs.values():
            await it.until_state(run, question=True)

        async def waiting() -> dict[str, str]:
            found = [each async for each in iterate_runs(it.client, waiting=True, limit=1000)]
            ours = {run.id: goal for goal, run in runs.items()}
            return {ours[each.execution.id]: each.waiting_for for each in found if each.execution.id in ours}

        waits = {"ask": "human: asks: Which one?", "approve": "human: approve charge", "doubt": "human: settle pay"}

        async def lists(*goals: str) -> bool:
            return await waiting() == {goal: waits[goal] for goal in goals}

        await it.until(partial(lists, *waits))
        await runs["approve"].execute_update("answer", {"decision": "approve"})
        await runs["doubt"].signal("cancel")
        await it.until(partial(lists, "ask"))
        await runs["ask"].execute_update("answer", {"text": "a"})
        await it.until(lists)
        await runs["ask"].result()
        await runs["approve"].result()


async def test_a_tool_approved_for_the_run_is_not_asked_about_again(world: MakeWorld) -> None:
    charge = guarded()
    async with world(
        [calls(("charge", {"n": 1}), ("charge", {"n": 2})), calls(("charge", {"n": 3})), FINISH], charge
    ) as it:
        run = await it.start()
        await it.answer(run, decision="approve_tool")
        await run.result()
    assert len(charge.calls) == 3


async def test_a_denied_call_never_runs_and_the_model_hears_why(world: MakeWorld) -> None:
    charge = guarded()
    async with world([calls(("charge", {})), FINISH], charge) as it:
        run = await it.start()
        await it.answer(run, decision="deny", text="too dear")
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
    world: MakeWorld, answer: Any, shown: str, times: int
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


async def test_a_result_given_by_a_person_also_settles_a_call_that_was_being_handed_out(world: MakeWorld) -> None:
    async with world([calls(("charge", {})), FINISH], lost_once(ToolKind.signal)) as it:
        run = await it.start()
        await it.answer(run, decision="use_result", text="receipt 7")
        await run.result()
        assert (await it.results(run))[0][1] == "receipt 7"


async def test_an_effect_that_outlives_its_worker_is_asked_about_and_never_repeated(world: MakeWorld) -> None:
    charge = HeldTool("charge")
    async with world([calls(("charge", {})), FINISH], charge.tool, works=False, grace=timedelta(seconds=0.1)) as it:
        async with it.worker():
            run = await it.start()
            await charge.started.wait()
        async with it.worker():
            state = await it.until_state(run, question=True)
            assert (state["question"]["kind"], state["status"]) == ("resume_unsafe", "waiting_on_human")
            await run.execute_update("answer", {"decision": "give_up"})
            await run.result()
    assert len(charge.calls) == 1


async def test_a_cancel_leaves_a_call_in_doubt_in_doubt(world: MakeWorld) -> None:
    async with world([calls(("charge", {"eur": 5}))], lost_once()) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await run.signal("cancel")
        with pytest.raises(WorkflowFailureError):
            await run.result()
        assert [kind for _, kind in await it.results(run)] == ["in_doubt: interrupted; may have happened"]


async def test_a_result_from_outside_approves_nothing(world: MakeWorld) -> None:
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


async def test_a_message_that_an_agent_sends_waits_for_its_approval(world: MakeWorld) -> None:
    """The task of the kind `notify` is not created before; one of another kind is not asked about."""

    def task(kind: str, given: dict[str, Any], workflow: str) -> Any:
        arguments = {"workflowId": workflow, "kind": kind, "description": "tell them", "input": given}
        return calls(("workflow_task_create", arguments))

    def script(body: dict[str, Any]) -> Any:
        said = [block for message in body["messages"] for block in message["content"] if block["type"] == "tool_result"]
        if not said:
            return calls(("workflow_create", {"definition": {"summary": "waits"}}))
        workflow = json.loads(said[0]["content"])["workflowId"]
        turns = (task("wait", {"delayMs": 1}, workflow), task("notify", {"channelId": "c", "text": "hi"}, workflow))
        return (*turns, FINISH)[len(said) - 1]

    async with world(script, works=False, follow_ups=(), grace=timedelta(seconds=1)) as it:
        it.project = replace(it.project, builtins=gated_routes({"notify": None}))
        async with it.worker():
            run = await it.start()
            question = (await it.until_state(run, question=True))["question"]
            assert (question["kind"], "notify" in question["text"], "hi" in question["text"]) == (
                "approval",
                True,
                True,
            )
            await run.execute_update("answer", {"decision": "deny", "text": "not today"})
            assert (await run.result())["type"] == "agent.completed"
            results = [content for _, content in await it.results(run)]
            denied = ["denied: a person denied this call: not today" in content for content in results]
            assert denied[:3] == [False, False, True]
            await it.replay()


async def test_changed_arguments_that_cannot_be_checked_are_refused_and_the_run_goes_on(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ApplicationError("the check is broken", non_retryable=True)

    monkeypatch.setattr(SchemaValidator, "find_error", fail)
    charge = ScriptedTool("charge", effect=Effect.once, approval=Approval.always)
    async with world([calls(("charge", {"eur": 5})), FINISH], charge) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        changed = {"question_id": "q1", "decision": "approve", "arguments": {"eur": 3}}
        await run.signal("human_input", changed)
        await it.until_state(run, ignored=True)
        assert "the check is broken" in await rejection(run, changed)
        await it.answer(run, decision="deny")
        await run.result()
    assert charge.calls == []

"""Going on from another run: resumed where it failed, forked after any step; no effect is repeated."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowFailureError

from perdure.activities.effects.ledger import LedgerEntry
from perdure.activities.storage.store import LocalStores
from perdure.client.errors import RejectedError, RunNotFoundError
from perdure.client.runs import resume_run
from perdure.contracts.agent import Agent
from perdure.contracts.tool import Approval, Effect, ToolOutcome
from perdure.testkit.model_server import calls, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, World
from tests.workflows.lane import echo, new_id, run_of, say, until_idle
from tests.workflows.runs import expect_cancelled, failure_of, result_of
from tests.workflows.script import FINISH, BreakingScript, texts, tool_results
from tests.workflows.tools import HeldTool


def charge(**fields: Any) -> ScriptedTool:
    return ScriptedTool("charge", lambda arguments, _: f"receipt {arguments['n']}", effect=Effect.once, **fields)


def charged(*numbers: int) -> Any:
    return calls(*[("charge", {"n": n}) for n in numbers])


async def test_a_resumed_run_asks_for_the_choices_of_its_origin(world: MakeWorld) -> None:
    event = {
        "type": "agentic.begin",
        "payload": {"goal": "sum it up", "agent": "late"},
        "choices": [{"name": "sales", "options": ["a.csv", "b.csv"]}],
    }
    async with world([FINISH]) as it:
        run = await it.start_raw(event)
        assert (await failure_of(run)).type == "UnknownAgent"
        assert isinstance(it.project.agents, dict)  # of the worker that is at work
        it.project.agents["late"] = Agent(name="late", tools=())
        again = await it.resume(run)
        assert (await it.until_state(again, question=True))["question"]["options"] == ["a.csv", "b.csv"]
        assert not it.model.requests
        await again.execute_update("answer", {"text": "b.csv"})
        await again.result()
        assert "The answer: b.csv" in str(it.model.requests[0]["messages"])


async def test_a_run_with_more_in_hand_than_one_answer_takes_can_be_forked(world: MakeWorld) -> None:
    looks = [("look", {"n": n}) for n in range(40)]
    script = BreakingScript(calls(("look", {"n": -1})), calls(*looks, ("ask_human", {"question": "which?"})), FINISH)
    look = ScriptedTool("look", lambda *_: "x" * 60_000)
    async with world(script, look, window=10_000_000, max_steps=50) as it:
        run = await it.start(run_id=f"much-{uuid4().hex[:6]}")
        await it.until_state(run, question=True)
        script.answers = (script.answers[0], FINISH)
        assert (await (await it.fork(run, 1)).result())["type"] == "agent.completed"


async def test_a_steer_to_a_resumed_run_that_has_not_begun_reaches_the_model_once(world: MakeWorld) -> None:
    ask = calls(("ask_human", {"question": "Pay it?"}))
    script = BreakingScript(ask, ask, FINISH, FINISH, breaks=1)
    async with world(script, works=False) as it:
        async with it.worker():
            run = await it.start(run_id=f"early-{uuid4().hex[:6]}")
            await it.until_state(run, question=True)
            await run.signal("human_input", {"text": "yes"})
            assert (await failure_of(run)).type == "ModelRefused"
        script.breaks = None
        again = await it.resume(run)
        await again.signal("steer", {"request_id": "r1", "text": "BE QUICK"})
        async with it.worker():
            await it.until_state(again, question=True)
            await again.signal("steer", {"request_id": "r1", "text": "BE QUICK"})
            await again.signal("human_input", {"text": "yes"})
            await again.result()
            assert str(it.model.requests[-1]["messages"]).count("BE QUICK") == 1


async def test_a_failed_run_goes_on_as_a_new_one_and_repeats_nothing(world: MakeWorld, tmp_path: Path) -> None:
    script = BreakingScript(charged(1), charged(2), charged(3), FINISH, breaks=2)
    tool = charge()
    async with world(script, tool) as it:
        run = await it.start("pay them", run_id="unlucky", context={"max_steps": 9})
        assert (await failure_of(run)).type == "ModelRefused"
        (tmp_path / "unlucky" / "artifacts" / "made.txt").write_text("made before")
        script.breaks = None
        again = await it.resume(run)
        event = await again.result()
        state = await it.state(again)
        assert tool_results(it.model.requests[-1]) == ["receipt 1", "receipt 2", "receipt 3"]
    assert again.id == "run:unlucky.r2"
    assert (event["type"], event["payload"]["run_id"], event["payload"]["goal"]) == (
        "agent.completed",
        "unlucky.r2",
        "pay them",
    )
    assert (state["origin"], state["step"], state["max_steps"], state["turns"]) == ("unlucky", 3, 9, 4)
    assert [arguments["n"] for arguments, _ in tool.calls] == [1, 2, 3]
    assert tool.calls[-1][1].idempotency_key == "agentic:run:unlucky.r2:step:3:request"
    assert (tmp_path / "unlucky.r2" / "artifacts" / "made.txt").read_text() == "made before"


async def test_a_foreign_run_under_the_next_id_is_not_taken_for_the_resumed_one(world: MakeWorld) -> None:
    name = f"nightly-{uuid4().hex[:8]}"
    async with world(BreakingScript(breaks=0)) as it:
        run = await it.start("count them", run_id=name)
        await failure_of(run)
        await failure_of(await it.start("count others", run_id=f"{name}.r2"))
        with pytest.raises(RejectedError, match=f"run {name}.r2 exists and does not continue {name}"):
            await it.resume(run)


async def test_resuming_twice_finds_the_same_run_and_a_resumed_run_can_be_resumed(world: MakeWorld) -> None:
    script = BreakingScript(charged(1), FINISH, breaks=1)
    tool = charge()
    async with world(script, tool) as it:
        run = await it.start(run_id="twice")
        await failure_of(run)
        first, second = await asyncio.gather(it.resume(run), it.resume(run))
        assert first.id == second.id == "run:twice.r2"
        assert (await failure_of(first)).type == "ModelRefused"
        script.breaks = None
        third = await it.resume(first)
        assert third.id == "run:twice.r3"
        assert (await third.result())["type"] == "agent.completed"
        assert (await it.state(third))["origin"] == "twice.r2"
    assert len(tool.calls) == 1


async def timed_out(it: World, started: asyncio.Event) -> Any:
    """A run whose time was up while a call was in flight."""
    start = {"type": "agentic.start", "payload": {"goal": "pay"}}
    run = await it.start_raw(start, run_timeout=timedelta(seconds=3))
    await started.wait()
    with pytest.raises(WorkflowFailureError):
        await run.result()
    return run


def held_charge(**route: Any) -> HeldTool:
    return HeldTool("charge", result="receipt", **route)


async def test_a_call_in_flight_when_its_run_timed_out_is_asked_about_and_made_again_under_the_origins_key(
    world: MakeWorld, tmp_path: Path
) -> None:
    held = held_charge()
    async with world([charged(1), FINISH], held.tool, works=False, grace=timedelta(seconds=0.1)) as it:
        async with it.worker():
            run = await timed_out(it, held.started)
        held.go_on.set()
        async with it.worker():  # what the first worker had begun is lost with it
            again = await it.resume(run)
            state = await it.until_state(again, question=True)
            assert state["question"]["kind"] == "resume_unsafe"
            await again.execute_update("answer", {"decision": "run_again"})
            await again.result()
    origin = run.id.removeprefix("run:")
    assert held.keys == [f"agentic:run:{origin}:step:1:request", f"agentic:run:{origin}:step:1:request:2"]


async def test_a_result_that_the_ledger_got_after_the_end_is_used_by_the_resumed_run(
    world: MakeWorld, tmp_path: Path
) -> None:
    held = held_charge()
    async with world([charged(1), FINISH], held.tool, works=False, grace=timedelta(seconds=0.1)) as it:
        async with it.worker():
            run = await timed_out(it, held.started)
        store = LocalStores(tmp_path).of(run.id.removeprefix("run:"))
        execution = (await run.describe()).run_id
        LedgerEntry(store, held.keys[0], 1, execution=execution).record(ToolOutcome(result="receipt 7"))
        async with it.worker():
            again = await it.resume(run)
            await again.result()
            assert [text for _, text in await it.results(again)] == ["receipt 7", "finished"]
    assert len(held.keys) == 1


async def test_a_run_that_rotated_is_resumed_with_all_of_its_conversation(
    world: MakeWorld, short_history_client: Client
) -> None:
    answers = [calls(("look", {"n": n})) for n in range(30)]
    script = BreakingScript(*answers, FINISH, breaks=30)
    look = ScriptedTool("look", lambda arguments, _: f"seen {arguments['n']}")
    async with world(script, look, server=short_history_client, max_steps=40) as it:
        run = await it.start()
        await failure_of(run)
        script.breaks = None
        again = await it.resume(run)
        await again.result()
        assert tool_results(it.model.requests[-1]) == [f"seen {n}" for n in range(30)]
    assert len(look.calls) == 30


@pytest.mark.parametrize("ended", ["completed", "escalated", "cancelled", "running"])
async def test_only_failed_and_timed_out_runs_are_resumed(world: MakeWorld, ended: str) -> None:
    last = {
        "completed": says("all done"),
        "escalated": calls(("escalate", {"reason": "no"})),
        "cancelled": calls(("ask_human", {"question": "Which?"})),
        "running": calls(("ask_human", {"question": "Which?"})),
    }
    async with world([last[ended], FINISH]) as it:
        run = await it.start()
        if ended in ("cancelled", "running"):
            await it.until_state(run, question=True)
        if ended == "cancelled":
            await run.cancel()
        if ended != "running":
            await asyncio.wait([asyncio.create_task(run.result())])
        with pytest.raises(RejectedError, match=ended if ended != "running" else "waiting_on_human"):
            await resume_run(it.client, it.queue, run.id)
        run_id = run.id.removeprefix("run:")
        raw = await it.start_raw({"type": "agentic.resume", "payload": {"run_id": run_id}})
        assert (await failure_of(raw)).type == "NotResumable"
        if ended == "running":
            await run.cancel()
            await asyncio.wait([asyncio.create_task(run.result())])


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        ({"run_id": "never-was"}, "NotResumable"),
        ({"run_id": "x", "say": "hi"}, "InvalidInput"),
        ({"run_id": ""}, "InvalidInput"),
        ({"run_id": "x", "step": -1}, "InvalidInput"),
        ({"run_id": "x", "steps": 1}, "InvalidInput"),
        ({}, "InvalidInput"),
    ],
)
async def test_a_bad_start_from_another_run_ends_in_a_typed_failure(world: MakeWorld, payload: Any, kind: str) -> None:
    async with world([FINISH]) as it:
        run = await it.start_raw({"type": "agentic.resume", "payload": payload})
        assert (await failure_of(run)).type == kind
        with pytest.raises(RunNotFoundError):
            await resume_run(it.client, it.queue, "never-was")


async def test_a_run_that_never_opened_is_resumed_from_its_start(world: MakeWorld) -> None:
    async with world([FINISH]) as it:
        run = await it.start("do it", agent="nobody")
        assert (await failure_of(run)).type == "UnknownAgent"
        again = await it.resume(run)
        assert (await failure_of(again)).type == "UnknownAgent"
        assert (await it.state(again))["goal"] == "do it"


async def test_a_fork_goes_on_after_any_step_of_a_finished_run(world: MakeWorld) -> None:
    script = BreakingScript(charged(1), charged(2), charged(3), FINISH, FINISH)
    tool = charge()
    async with world(script, tool) as it:
        run = await it.run_to_end("pay them", run_id="paid")
        again = await it.fork(run, 1, "only the first one counts")
        event = await again.result()
        state, request = await it.state(again), it.model.requests[-1]
    assert [arguments["n"] for arguments, _ in tool.calls] == [1, 2, 3, 2, 3]
    assert event["payload"]["steps_taken"] == 3
    assert (state["origin"], state["goal"], state["turns"]) == ("paid", "pay them", 4)
    messages = texts(request)
    assert messages[0] == "pay them"
    assert "fork of run paid, after step 1" in messages[1]
    assert "charge (step 2), charge (step 3)" in messages[1]
    assert messages[1].endswith("only the first one counts")
    keys = [context.idempotency_key for _, context in tool.calls]
    assert len(set(keys)) == 5


async def test_a_fork_in_the_middle_of_a_turn_answers_every_tool_use(world: MakeWorld) -> None:
    tool = charge()
    async with world(BreakingScript(charged(1, 2, 3), FINISH, FINISH), tool) as it:
        run = await it.run_to_end()
        again = await it.fork(run, 2)
        await again.result()
        results = tool_results(it.model.requests[-1])
    assert results[:2] == ["receipt 1", "receipt 2"]
    assert results[2].startswith("interrupted: not made in this run")
    assert len(tool.calls) == 3


async def test_a_fork_of_step_zero_has_only_the_goal(world: MakeWorld) -> None:
    tool = charge()
    async with world(BreakingScript(charged(1), FINISH), tool) as it:
        run = await it.run_to_end("pay")
        again = await it.fork(run, 0, "be quick")
        await again.result()
        first = it.model.requests[2]["messages"]
    assert len(first) == 1
    assert first[0]["content"][0]["text"] == "pay"
    assert len(tool.calls) == 2


async def test_a_run_that_is_open_or_was_terminated_is_forked_after_any_of_its_steps_and_no_other(
    world: MakeWorld,
) -> None:
    async with world(BreakingScript(charged(1), calls(("ask_human", {"question": "more?"}))), charge()) as it:
        run = await it.start()
        await it.until_state(run, status="waiting_on_human")
        await it.until_state(await it.fork(run, 1), status="waiting_on_human", step=2)
        with pytest.raises(RejectedError, match="the steps are 0 to 2"):
            await it.fork(run, 3)
        await run.terminate()
        await it.until_state(await it.fork(run, 1), status="waiting_on_human", step=2)


async def test_a_run_that_was_terminated_before_a_worker_took_it_on_is_not_forked(world: MakeWorld) -> None:
    async with world([FINISH], works=False) as it:
        run = await it.start()
        await run.terminate("never mind")
        again = await it.start_raw(
            {"type": "agentic.resume", "payload": {"run_id": run.id.removeprefix("run:"), "step": 0}}
        )
        async with it.worker():
            assert (await failure_of(again)).type == "NotResumable"


async def test_a_step_that_is_not_there_is_refused_with_those_that_are(world: MakeWorld) -> None:
    async with world(BreakingScript(charged(1), FINISH), charge()) as it:
        run = await it.run_to_end()
        with pytest.raises(RejectedError, match=r"there is no step 7 in run .* to fork after; the steps are 0 to 1"):
            await it.fork(run, 7)
        payload = {"run_id": run.id.removeprefix("run:"), "step": 7}
        again = await it.start_raw({"type": "agentic.resume", "payload": payload})  # by another door
        failure = await failure_of(again)
        assert failure.message == "there is no finished step 7 to fork after; the steps are 0 to 1"


async def test_an_open_run_can_be_forked_and_goes_on_untouched(world: MakeWorld) -> None:
    ask = calls(("ask_human", {"question": "Which?"}))
    async with world(BreakingScript(charged(1), ask, FINISH), charge()) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        again = await it.fork(run, 1)
        await it.until_state(again, question=True)
        for each in (run, again):
            await each.execute_update("answer", {"text": "the first"})
            assert (await each.result())["type"] == "agent.completed"


async def test_a_call_in_flight_in_the_origin_is_never_reported_as_not_made(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the resumed run is stopped before it could look."""
    held = held_charge()
    async with world([charged(1), FINISH], held.tool, works=False, grace=timedelta(seconds=0.1)) as it:
        async with it.worker():
            run = await timed_out(it, held.started)
        again = await it.resume(run)
        await again.cancel()
        monkeypatch.setattr("perdure.activities.tools.call.ToolCalls._run_once", _refuse)
        async with it.worker():
            with pytest.raises(WorkflowFailureError):
                await again.result()
            assert (await it.state(again))["status"] == "cancelled"


async def _refuse(*_: Any) -> Any:
    raise AssertionError("nothing is to be made")


async def test_an_approved_call_in_flight_is_not_asked_about_again_in_a_resumed_run(
    world: MakeWorld, tmp_path: Path
) -> None:
    held = held_charge(approval=Approval.always)
    async with world([charged(1), FINISH], held.tool, works=False, grace=timedelta(seconds=0.1)) as it:
        async with it.worker():
            start = {"type": "agentic.start", "payload": {"goal": "pay"}}
            run = await it.start_raw(start, run_timeout=timedelta(seconds=4))
            await it.answer(run, decision="approve")
            await held.started.wait()
            with pytest.raises(WorkflowFailureError):
                await run.result()
        execution = (await run.describe()).run_id
        store = LocalStores(tmp_path).of(run.id.removeprefix("run:"))
        LedgerEntry(store, held.keys[0], 1, execution=execution).record(ToolOutcome(result="receipt 7"))
        async with it.worker():
            again = await it.resume(run)
            await again.result()
            assert (await it.results(again))[0][1] == "receipt 7"


async def test_a_tool_approved_for_a_run_is_asked_about_again_where_another_goes_on(world: MakeWorld) -> None:
    script = BreakingScript(charged(1), charged(2), charged(3), FINISH, breaks=2)
    tool = charge(approval=Approval.always)
    async with world(script, tool) as it:
        run = await it.start()
        await it.answer(run, decision="approve_tool")
        await failure_of(run)
        assert len(tool.calls) == 2
        script.breaks = None
        for again, step in ((await it.resume(run), 3), (await it.fork(run, 1), 2)):
            await it.until_state(again, question=True, step=step)
            await again.signal("cancel")
            await expect_cancelled(again)
        assert len(tool.calls) == 2


async def test_a_denied_call_that_was_in_flight_in_the_origin_stays_in_doubt(world: MakeWorld) -> None:
    made: list[int] = []

    async def pay(arguments: Any, context: Any) -> str:
        made.append(arguments["n"])
        if arguments["n"] == 2:
            await asyncio.Event().wait()
        return "receipt"

    tool = ScriptedTool("charge", pay, effect=Effect.once, approval=Approval.always)
    async with world([charged(1), charged(2), FINISH], tool, works=False, grace=timedelta(seconds=0.1)) as it:
        async with it.worker():
            start = {"type": "agentic.start", "payload": {"goal": "pay"}}
            run = await it.start_raw(start, run_timeout=timedelta(seconds=4))
            await it.answer(run, decision="approve_tool")
            with pytest.raises(WorkflowFailureError):
                await run.result()
        async with it.worker():
            again = await it.resume(run)
            await it.answer(again, decision="deny", text="enough")
            await again.result()
            text = (await it.results(again))[-2][1]
    assert text.startswith("in_doubt: a person denied this call: enough; but it was in flight in an earlier run")
    assert made == [1, 2]


async def test_the_limits_of_a_start_are_the_resumed_runs_also_with_a_new_definition(world: MakeWorld) -> None:
    script = BreakingScript(charged(1), FINISH, breaks=1)
    async with world(script, charge(), max_steps=7) as it:
        run = await it.start(context={"max_steps": 50})
        await failure_of(run)
        agents = it.project.agents
        assert isinstance(agents, dict)  # of the worker that is at work
        agents["default"] = agents["default"].evolve(prompt="Be brief.")
        script.breaks = None
        again = await it.resume(run)
        await it.answer(again, decision="use_new")
        await again.result()
        assert (await it.state(again))["max_steps"] == 50


async def test_a_fork_of_a_turn_counts_its_own_steps(world: MakeWorld) -> None:
    """Each turn of a conversation begins with step 1; what was said before it stays."""
    chat = new_id()

    def looks(body: dict[str, Any]) -> Any:
        asked = body["messages"][-1]["content"][-1].get("text", "")
        return calls(("look", {"at": asked})) if asked in ("one", "two") else echo(body)

    async with world(looks, ScriptedTool("look", lambda arguments, _: f"seen {arguments['at']}")) as it:
        await say(it, chat, "one")
        second = await say(it, chat, "two")
        await until_idle(it, chat, 2)
        forked = await it.fork(run_of(it, second), 1, "and now?")
        await result_of(forked)
        state = await it.state(forked)
    assert tool_results(it.model.requests[-1]) == ["seen one", "seen two"]
    assert (state["step"], state["turns"]) == (1, 2)

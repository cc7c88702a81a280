"""Going on from another run: resumed where it failed, forked after any step; no effect is repeated."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from activities.effects.ledger import LedgerEntry
from activities.storage.store import LocalStores
from contracts.agent import Agent
from contracts.tool import Approval, Effect, ToolOutcome
from decisions.ids import run_id_of_workflow
from perdure.client.errors import RejectedError, RunNotFoundError
from perdure.client.runs import fork_run, resume_run
from perdure.testkit.model_server import calls, fails, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.lane import echo, new_id, say, until_idle

FINISH = calls(("finish", {"outcome": "done"}))


class Script:
    """Answers by the number of replies so far; from turn `breaks` on it refuses, until it is mended."""

    def __init__(self, *answers: Any, breaks: int | None = None) -> None:
        self.answers = answers
        self.breaks = breaks

    def __call__(self, body: dict[str, Any]) -> Any:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        if self.breaks is not None and turn >= self.breaks:
            return fails(status=401, type="authentication_error")
        return self.answers[turn]


def charge(**fields: Any) -> ScriptedTool:
    return ScriptedTool("charge", lambda arguments, _: f"receipt {arguments['n']}", effect=Effect.once, **fields)


def charged(*numbers: int) -> Any:
    return calls(*[("charge", {"n": n}) for n in numbers])


async def failed(run: Any) -> str:
    """The type of the failure that the run ends with."""
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(run.result(), 20)
    assert isinstance(failure.value.cause, ApplicationError)
    return failure.value.cause.type or ""


def shown(request: dict[str, Any]) -> list[str]:
    blocks = [block for message in request["messages"] for block in message["content"]]
    return [block["content"] for block in blocks if block["type"] == "tool_result"]


async def resumed(it: Any, run: Any) -> Any:
    again = await resume_run(it.client, it.queue, run.id)
    it.started.append(again.id)
    return again


async def forked(it: Any, run: Any, step: int, say: str | None = None) -> Any:
    again = await fork_run(it.client, it.queue, run.id, step, say)
    it.started.append(again.id)
    return again


async def test_what_a_person_is_to_choose_is_asked_by_the_run_that_goes_on(world: Any) -> None:
    event = {
        "type": "agentic.begin",
        "payload": {"goal": "sum it up", "agent": "late"},
        "choices": [{"name": "sales", "options": ["a.csv", "b.csv"]}],
    }
    async with world([FINISH]) as it:
        run = await it.start_raw(event)
        assert await failed(run) == "UnknownAgent"
        it.project.agents["late"] = Agent(name="late", tools=())
        again = await resume_run(it.client, it.queue, run_id_of_workflow(run.id))
        it.started.append(again.id)
        assert (await it.until_state(again, question=True))["question"]["options"] == ["a.csv", "b.csv"]
        assert not it.model.requests
        await again.execute_update("answer", {"text": "b.csv"})
        await again.result()
        assert "The answer: b.csv" in str(it.model.requests[0]["messages"])


async def test_a_run_with_more_in_hand_than_one_answer_takes_can_be_forked(world: Any) -> None:
    looks = [("look", {"n": n}) for n in range(40)]
    script = Script(calls(("look", {"n": -1})), calls(*looks, ("ask_human", {"question": "which?"})), FINISH)
    look = ScriptedTool("look", lambda *_: "x" * 60_000)
    async with world(script, look, window=10_000_000, max_steps=50) as it:
        run = await it.start(run_id=f"much-{uuid4().hex[:6]}")
        await it.until_state(run, question=True)
        script.answers = (script.answers[0], FINISH)
        assert (await (await forked(it, run, 1)).result())["type"] == "agent.completed"


async def test_what_is_said_to_a_resumed_run_before_it_begins_is_said_once(world: Any) -> None:
    ask = calls(("ask_human", {"question": "Pay it?"}))
    script = Script(ask, ask, FINISH, FINISH, breaks=1)
    async with world(script, works=False) as it:
        async with it.worker():
            run = await it.start(run_id=f"told-early-{uuid4().hex[:6]}")
            await it.until_state(run, question=True)
            await run.signal("human_input", {"text": "yes"})
            assert await failed(run) == "ModelRefused"
        script.breaks = None
        again = await resumed(it, run)
        await again.signal("steer", {"request_id": "r1", "text": "BE QUICK"})
        async with it.worker():
            await it.until_state(again, question=True)
            await again.signal("steer", {"request_id": "r1", "text": "BE QUICK"})
            await again.signal("human_input", {"text": "yes"})
            await again.result()
            assert str(it.model.requests[-1]["messages"]).count("BE QUICK") == 1


async def test_a_failed_run_goes_on_as_a_new_one_and_repeats_nothing(world: Any, tmp_path: Path) -> None:
    script = Script(charged(1), charged(2), charged(3), FINISH, breaks=2)
    tool = charge()
    async with world(script, tool) as it:
        run = await it.start("pay them", run_id="unlucky", context={"max_steps": 9})
        assert await failed(run) == "ModelRefused"
        (tmp_path / "unlucky" / "artifacts" / "made.txt").write_text("made before")
        script.breaks = None
        again = await resumed(it, run)
        event = await again.result()
        state = await it.state(again)
        assert shown(it.model.requests[-1]) == ["receipt 1", "receipt 2", "receipt 3"]
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


async def test_a_run_that_only_has_the_name_of_the_next_one_is_not_taken_for_it(world: Any) -> None:
    name = f"nightly-{uuid4().hex[:8]}"
    async with world(Script(breaks=0)) as it:
        run = await it.start("count them", run_id=name)
        await failed(run)
        await failed(await it.start("count others", run_id=f"{name}.r2"))
        with pytest.raises(RejectedError, match=f"run {name}.r2 exists and does not continue {name}"):
            await resumed(it, run)


async def test_resuming_twice_finds_the_same_run_and_a_resumed_run_can_be_resumed(world: Any) -> None:
    script = Script(charged(1), FINISH, breaks=1)
    tool = charge()
    async with world(script, tool) as it:
        run = await it.start(run_id="twice")
        await failed(run)
        first, second = await asyncio.gather(resumed(it, run), resumed(it, run))
        assert first.id == second.id == "run:twice.r2"
        assert await failed(first) == "ModelRefused"
        script.breaks = None
        third = await resumed(it, first)
        assert third.id == "run:twice.r3"
        assert (await third.result())["type"] == "agent.completed"
        assert (await it.state(third))["origin"] == "twice.r2"
    assert len(tool.calls) == 1


async def timed_out(it: Any, started: asyncio.Event) -> Any:
    """A run whose time was up while a call was in flight."""
    start = {"type": "agentic.start", "payload": {"goal": "pay"}}
    run = await it.start_raw(start, run_timeout=timedelta(seconds=3))
    await started.wait()
    with pytest.raises(WorkflowFailureError):
        await run.result()
    return run


class Held:
    """An effect that stays in flight until it is let go."""

    def __init__(self) -> None:
        self.started, self.go_on = asyncio.Event(), asyncio.Event()
        self.keys: list[str] = []
        self.tool = ScriptedTool("charge", self._charge, effect=Effect.once)

    async def _charge(self, arguments: Any, context: Any) -> str:
        self.keys.append(context.idempotency_key)
        self.started.set()
        await self.go_on.wait()
        return "receipt"


async def test_a_call_in_flight_when_its_run_timed_out_is_asked_about_and_made_again_under_the_origins_key(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.GRACE", timedelta(seconds=0.1))
    held = Held()
    async with world([charged(1), FINISH], held.tool, works=False) as it:
        async with it.worker():
            run = await timed_out(it, held.started)
        held.go_on.set()
        async with it.worker():  # what the first worker had begun is lost with it
            again = await resumed(it, run)
            state = await it.until_state(again, question=True)
            assert state["question"]["kind"] == "resume_unsafe"
            await again.execute_update("answer", {"decision": "run_again"})
            await again.result()
    origin = run.id.removeprefix("run:")
    assert held.keys == [f"agentic:run:{origin}:step:1:request", f"agentic:run:{origin}:step:1:request:2"]


async def test_a_result_that_the_ledger_got_after_the_end_is_used_by_the_resumed_run(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.GRACE", timedelta(seconds=0.1))
    held = Held()
    async with world([charged(1), FINISH], held.tool, works=False) as it:
        async with it.worker():
            run = await timed_out(it, held.started)
        store = LocalStores(tmp_path).of(run.id.removeprefix("run:"))
        execution = (await run.describe()).run_id
        LedgerEntry(store, held.keys[0], 1, execution=execution).record(ToolOutcome(result="receipt 7"))
        async with it.worker():
            again = await resumed(it, run)
            await again.result()
            assert [text for _, text in await it.results(again)] == ["receipt 7", "finished"]
    assert len(held.keys) == 1


async def test_a_run_that_rotated_is_resumed_with_all_of_its_conversation(
    world: Any, short_history_client: Client
) -> None:
    answers = [calls(("look", {"n": n})) for n in range(30)]
    script = Script(*answers, FINISH, breaks=30)
    look = ScriptedTool("look", lambda arguments, _: f"seen {arguments['n']}")
    async with world(script, look, server=short_history_client, max_steps=40) as it:
        run = await it.start()
        await failed(run)
        script.breaks = None
        again = await resumed(it, run)
        await again.result()
        assert shown(it.model.requests[-1]) == [f"seen {n}" for n in range(30)]
    assert len(look.calls) == 30


@pytest.mark.parametrize("ended", ["completed", "escalated", "cancelled", "running"])
async def test_only_failed_and_timed_out_runs_are_resumed(world: Any, ended: str) -> None:
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
        assert await failed(raw) == "NotResumable"
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
async def test_a_bad_start_from_another_run_ends_in_a_typed_failure(world: Any, payload: Any, kind: str) -> None:
    async with world([FINISH]) as it:
        run = await it.start_raw({"type": "agentic.resume", "payload": payload})
        assert await failed(run) == kind
        with pytest.raises(RunNotFoundError):
            await resume_run(it.client, it.queue, "never-was")


async def test_a_run_that_never_opened_is_resumed_from_its_start(world: Any) -> None:
    async with world([FINISH]) as it:
        run = await it.start("do it", agent="nobody")
        assert await failed(run) == "UnknownAgent"
        again = await resumed(it, run)
        assert await failed(again) == "UnknownAgent"
        assert (await it.state(again))["goal"] == "do it"


async def test_a_fork_goes_on_after_any_step_of_a_finished_run(world: Any) -> None:
    script = Script(charged(1), charged(2), charged(3), FINISH, FINISH)
    tool = charge()
    async with world(script, tool) as it:
        run = await it.start("pay them", run_id="paid")
        await run.result()
        again = await forked(it, run, 1, "only the first one counts")
        event = await again.result()
        state, request = await it.state(again), it.model.requests[-1]
    assert [arguments["n"] for arguments, _ in tool.calls] == [1, 2, 3, 2, 3]
    assert event["payload"]["steps_taken"] == 3
    assert (state["origin"], state["goal"], state["turns"]) == ("paid", "pay them", 4)
    told = [block["text"] for message in request["messages"] for block in message["content"] if "text" in block]
    assert told[0] == "pay them"
    assert "fork of run paid, after step 1" in told[1]
    assert "charge (step 2), charge (step 3)" in told[1]
    assert told[1].endswith("only the first one counts")
    keys = [context.idempotency_key for _, context in tool.calls]
    assert len(set(keys)) == 5


async def test_a_fork_in_the_middle_of_a_turn_answers_every_tool_use(world: Any) -> None:
    tool = charge()
    async with world(Script(charged(1, 2, 3), FINISH, FINISH), tool) as it:
        run = await it.start()
        await run.result()
        again = await forked(it, run, 2)
        await again.result()
        results = shown(it.model.requests[-1])
    assert results[:2] == ["receipt 1", "receipt 2"]
    assert results[2].startswith("interrupted: not made in this run")
    assert len(tool.calls) == 3


async def test_a_fork_of_step_zero_has_only_the_goal(world: Any) -> None:
    tool = charge()
    async with world(Script(charged(1), FINISH), tool) as it:
        run = await it.start("pay")
        await run.result()
        again = await forked(it, run, 0, "be quick")
        await again.result()
        first = it.model.requests[2]["messages"]
    assert len(first) == 1
    assert first[0]["content"][0]["text"] == "pay"
    assert len(tool.calls) == 2


async def test_a_run_that_is_open_or_was_terminated_is_forked_after_any_of_its_steps_and_no_other(world: Any) -> None:
    async with world(Script(charged(1), calls(("ask_human", {"question": "more?"}))), charge()) as it:
        run = await it.start()
        await it.until_state(run, status="waiting_on_human")
        await it.until_state(await forked(it, run, 1), status="waiting_on_human", step=2)
        with pytest.raises(RejectedError, match="the steps are 0 to 2"):
            await forked(it, run, 3)
        await run.terminate()
        await it.until_state(await forked(it, run, 1), status="waiting_on_human", step=2)


async def test_a_run_that_was_terminated_before_a_worker_took_it_on_is_not_forked(world: Any) -> None:
    async with world([FINISH], works=False) as it:
        run = await it.start()
        await run.terminate("never mind")
        again = await it.start_raw(
            {"type": "agentic.resume", "payload": {"run_id": run.id.removeprefix("run:"), "step": 0}}
        )
        async with it.worker():
            assert await failed(again) == "NotResumable"


async def test_a_step_that_is_not_there_is_refused_with_those_that_are(world: Any) -> None:
    async with world(Script(charged(1), FINISH), charge()) as it:
        run = await it.start()
        await run.result()
        with pytest.raises(RejectedError, match=r"there is no step 7 in run .* to fork after; the steps are 0 to 1"):
            await forked(it, run, 7)
        payload = {"run_id": run.id.removeprefix("run:"), "step": 7}
        again = await it.start_raw({"type": "agentic.resume", "payload": payload})  # by another door
        with pytest.raises(WorkflowFailureError) as failure:
            await again.result()
        assert isinstance(failure.value.cause, ApplicationError)
        assert failure.value.cause.message == "there is no finished step 7 to fork after; the steps are 0 to 1"


async def test_an_open_run_can_be_forked_and_goes_on_untouched(world: Any) -> None:
    ask = calls(("ask_human", {"question": "Which?"}))
    async with world(Script(charged(1), ask, FINISH), charge()) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        again = await forked(it, run, 1)
        await it.until_state(again, question=True)
        for each in (run, again):
            await each.execute_update("answer", {"text": "the first"})
            assert (await each.result())["type"] == "agent.completed"


async def test_what_was_in_flight_in_the_origin_is_never_told_as_not_done(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the resumed run is stopped before it could look."""
    monkeypatch.setattr("worker.GRACE", timedelta(seconds=0.1))
    held = Held()
    async with world([charged(1), FINISH], held.tool, works=False) as it:
        async with it.worker():
            run = await timed_out(it, held.started)
        again = await resumed(it, run)
        await again.cancel()
        monkeypatch.setattr("activities.tools.call.ToolCalls._run_once", _refuse)
        async with it.worker():
            with pytest.raises(WorkflowFailureError):
                await again.result()
            assert (await it.state(again))["status"] == "cancelled"


async def _refuse(*_: Any) -> Any:
    raise AssertionError("nothing is to be made")


async def test_an_approved_call_in_flight_is_not_asked_about_again_in_a_resumed_run(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.GRACE", timedelta(seconds=0.1))
    held = Held()
    held.tool.route = held.tool.route.model_copy(update={"approval": Approval.always})
    async with world([charged(1), FINISH], held.tool, works=False) as it:
        async with it.worker():
            start = {"type": "agentic.start", "payload": {"goal": "pay"}}
            run = await it.start_raw(start, run_timeout=timedelta(seconds=4))
            await it.until_state(run, question=True)
            await run.execute_update("answer", {"decision": "approve"})
            await held.started.wait()
            with pytest.raises(WorkflowFailureError):
                await run.result()
        execution = (await run.describe()).run_id
        store = LocalStores(tmp_path).of(run.id.removeprefix("run:"))
        LedgerEntry(store, held.keys[0], 1, execution=execution).record(ToolOutcome(result="receipt 7"))
        async with it.worker():
            again = await resumed(it, run)
            await again.result()
            assert (await it.results(again))[0][1] == "receipt 7"


async def test_a_tool_approved_for_a_run_is_asked_about_again_where_another_goes_on(world: Any) -> None:
    script = Script(charged(1), charged(2), charged(3), FINISH, breaks=2)
    tool = charge(approval=Approval.always)
    async with world(script, tool) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await run.execute_update("answer", {"decision": "approve_tool"})
        await failed(run)
        assert len(tool.calls) == 2
        script.breaks = None
        for again, step in ((await resumed(it, run), 3), (await forked(it, run, 1), 2)):
            await it.until_state(again, question=True, step=step)
            await again.signal("cancel")
            with pytest.raises(WorkflowFailureError):
                await again.result()
        assert len(tool.calls) == 2


async def test_a_denied_call_that_was_in_flight_in_the_origin_is_not_told_as_not_made(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.GRACE", timedelta(seconds=0.1))
    made: list[int] = []

    async def pay(arguments: Any, context: Any) -> str:
        made.append(arguments["n"])
        if arguments["n"] == 2:
            await asyncio.Event().wait()
        return "receipt"

    tool = ScriptedTool("charge", pay, effect=Effect.once, approval=Approval.always)
    async with world([charged(1), charged(2), FINISH], tool, works=False) as it:
        async with it.worker():
            start = {"type": "agentic.start", "payload": {"goal": "pay"}}
            run = await it.start_raw(start, run_timeout=timedelta(seconds=4))
            await it.until_state(run, question=True)
            await run.execute_update("answer", {"decision": "approve_tool"})
            with pytest.raises(WorkflowFailureError):
                await run.result()
        async with it.worker():
            again = await resumed(it, run)
            await it.until_state(again, question=True)
            await again.execute_update("answer", {"decision": "deny", "text": "enough"})
            await again.result()
            told = (await it.results(again))[-2][1]
    assert told.startswith("in_doubt: a person denied this call: enough; but it was in flight in an earlier run")
    assert made == [1, 2]


async def test_the_limits_of_a_start_are_the_resumed_runs_also_with_a_new_definition(world: Any) -> None:
    script = Script(charged(1), FINISH, breaks=1)
    async with world(script, charge(), max_steps=7) as it:
        run = await it.start(context={"max_steps": 50})
        await failed(run)
        agents = it.project.agents
        agents["default"] = agents["default"].model_copy(update={"prompt": "Be brief."})
        script.breaks = None
        again = await resumed(it, run)
        await it.until_state(again, question=True)
        await again.execute_update("answer", {"decision": "use_new"})
        await again.result()
        assert (await it.state(again))["max_steps"] == 50


async def test_a_fork_of_a_turn_counts_its_own_steps(world: Any) -> None:
    """Each turn of a conversation begins with step 1; what was said before it stays."""
    chat = new_id()

    def looks(body: dict[str, Any]) -> Any:
        asked = body["messages"][-1]["content"][-1].get("text", "")
        return calls(("look", {"at": asked})) if asked in ("one", "two") else echo(body)

    async with world(looks, ScriptedTool("look", lambda arguments, _: f"seen {arguments['at']}")) as it:
        await say(it, chat, "one")
        second = await say(it, chat, "two")
        await until_idle(it, chat, 2)
        forked = await fork_run(it.client, it.queue, second.run_id, 1, "and now?")
        await asyncio.wait_for(forked.result(), 20)
        last = it.model.requests[-1]
        state = await forked.query("state")
    seen = [b["content"] for m in last["messages"] for b in m["content"] if b["type"] == "tool_result"]
    assert seen == ["seen one", "seen two"]
    assert (state["step"], state["turns"]) == (1, 2)

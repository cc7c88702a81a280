"""A run's record out of several executions, of a turn of a conversation, and of a run that goes on from another."""

import json
from typing import Any

from temporalio.client import Client

from perdure.activities.storage.store import LocalStores
from perdure.client.records.export import Exporter
from perdure.client.run_events import ToolCallFinished
from perdure.client.watch import Watch
from perdure.contracts.run.export import Export
from perdure.contracts.tool import Approval, Effect, ToolKind
from perdure.testkit.model_server import ScriptedAnswer, calls, fails, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.lane import new_id, run_of, say
from tests.workflows.runs import expect_cancelled, failure_of
from tests.workflows.script import FINISH
from tests.workflows.tools import HeldTool


async def export_run(it: World, run: Run, *, asks: bool = True) -> Export:
    stores = LocalStores(it.project.workspaces)
    return await Exporter(it.client, stores, stores, asks).export(run.id.removeprefix("run:"))


def equal_but_for_worker(one: Export, other: Export) -> bool:
    """But for what only a worker can tell, and when they were made."""
    without = {"exported_at", "state", "missing"}
    return one.model_dump(exclude=without) == other.model_dump(exclude=without)


async def test_a_record_goes_over_all_executions_and_numbers_the_questions_through(
    world: MakeWorld, short_history_client: Client
) -> None:
    look = ScriptedTool("look", lambda arguments, _: f"result {arguments['n']}")
    asks = calls(("ask_human", {"question": "Go on?"}))
    steps = [calls(("look", {"n": n})) for n in range(20)]
    script = [asks, *steps, asks, FINISH]
    async with world(script, look, server=short_history_client, max_steps=40) as it:
        run = await it.start()
        for question in ("q1", "q2"):

            async def is_open(wanted: str = question) -> bool:
                return ((await it.state(run))["question"] or {}).get("id") == wanted

            await it.until(is_open)
            await run.signal("human_input", {"text": "maybe", "question_id": "q9"})  # another question's
            await run.execute_update("answer", {"text": f"yes to {question}"})
        await run.result()
        record, bare = await export_run(it, run), await export_run(it, run, asks=False)
    assert len(record.executions) >= 2
    assert (record.missing, bare.missing) == ([], ["state: no worker answers"])
    assert equal_but_for_worker(record, bare)
    assert record.transcript.complete
    assert [(q.id, [a.text for a in q.answers]) for q in record.questions] == [
        ("q1", ["yes to q1"]),
        ("q2", ["yes to q2"]),
    ]
    assert [call.step for call in record.calls] == [*range(1, 23), None]
    assert all(call.shown == f"result {n}" for n, call in enumerate(record.calls[1:21]))
    assert record.state is not None
    assert record.usage == record.state.usage
    assert len(record.turns) == record.state.turns


async def test_a_call_that_a_cancel_stopped_has_one_attempt_and_an_end(world: MakeWorld) -> None:
    held = HeldTool("look", Effect.read)
    async with world([calls(("look", {})), FINISH], held.tool) as it:
        run = await it.start()
        await held.started.wait()
        await run.signal("cancel", {})
        await expect_cancelled(run)
        record = await export_run(it, run)
        ends = [each async for each in Watch(it.client, record.run_id, follow=False).events()]
    (attempt,) = record.calls[0].made
    assert (attempt.outcome, attempt.failure) == (None, "canceled")
    (end,) = [each.outcome for each in ends if isinstance(each, ToolCallFinished)]
    assert end.error is not None
    assert end.error.kind == "cancelled"


async def test_the_record_of_a_turn_has_the_earlier_messages(world: MakeWorld) -> None:
    async with world([says("hello"), says("hello again")]) as it:
        conversation = new_id()
        first = run_of(it, await say(it, conversation, "good morning"))
        await it.until(lambda: len(it.model.requests) == 1)
        await first.result()
        second = run_of(it, await say(it, conversation, "and you?"))
        await it.until(lambda: len(it.model.requests) == 2)
        await second.result()
        record, bare = await export_run(it, second), await export_run(it, second, asks=False)
    assert equal_but_for_worker(record, bare)
    assert (record.missing, record.transcript.complete) == ([], True)
    texts = [part.content[0]["text"] for part in record.transcript.parts]
    assert texts == ["good morning", "hello", "and you?", "hello again"]


async def test_a_resumed_run_names_its_origin_and_has_its_conversation(world: MakeWorld) -> None:
    answers: list[ScriptedAnswer] = [calls(("look", {}))]
    after: ScriptedAnswer = fails(401)
    look = ScriptedTool("look")
    async with world(lambda _: answers.pop() if answers else after, look) as it:
        run = await it.start()
        await failure_of(run)
        after = FINISH
        broken = await export_run(it, run)
        heir = await it.resume(run)
        await heir.result()
        record = await export_run(it, heir, asks=False)
    assert (broken.status, broken.origin) == ("failed", None)
    assert (broken.turns[-1].failure or "").startswith("ModelRefused: ")
    assert record.origin == broken.run_id
    assert record.transcript.complete
    assert record.transcript.parts[0] == broken.transcript.parts[0]
    assert [call.tool for call in record.calls] == ["finish"]


async def test_an_attempt_that_failed_and_a_result_from_outside_are_in_it(world: MakeWorld) -> None:
    attempts: list[int] = []

    def flaky(*_: Any) -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError("no answer")
        return "there"

    ask = ScriptedTool("ask", flaky, approval=Approval.always, effect=Effect.read)
    far = ScriptedTool("far", kind=ToolKind.signal, effect=Effect.once)
    async with world([calls(("ask", {"n": 1})), calls(("far", {})), FINISH], ask, far) as it:
        run = await it.start()
        await it.answer(run, decision="approve", by="eva")
        await it.until_pending(run, 2)
        await it.send_result(run, 2, "far", result="done far away")
        await run.result()
        record = await export_run(it, run)
    first, second, _ = record.calls
    assert (first.shown, first.made[0].attempts, first.made[0].approval) == ("there", len(attempts), first.digest)
    assert second.shown == "done far away"
    assert [came["event"]["payload"]["result"] for came in second.from_outside] == ["done far away"]
    assert record.questions[0].answers[0].decision == "approve"


async def test_a_start_and_signals_that_make_no_sense_do_not_hinder_the_record(world: MakeWorld) -> None:
    nested: Any = "deep"
    for _ in range(150):
        nested = [nested]
    async with world([calls(("ask_human", {"question": "Go on?"})), FINISH]) as it:
        forged = await it.start_raw({"type": "agentic.continue", "state": "none", "segments": 7})
        await failure_of(forged)
        refused = await export_run(it, forged)
        run = await it.start()
        await it.until_state(run, question=True)
        for name in ("human_input", "tool_result", "cancel_not"):
            for body in (nested, 7, {"payload": {"step": [1]}}, {"decision": "perhaps"}):
                await run.signal(name, body)
        await run.signal("human_input", {"text": "yes"})
        await run.result()
        record = await export_run(it, run)
    assert (refused.status, refused.turns, refused.transcript.parts) == ("failed", [], [])
    assert [answer.text for answer in record.questions[0].answers] == ["yes"]
    assert json.loads(record.model_dump_json())["missing"] == []

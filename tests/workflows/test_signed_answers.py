"""A run that began with answer keys takes signed answers alone, whoever reaches Temporal and whatever way they go."""

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from perdure.activities.storage.store import LocalStores
from perdure.answer_keys import read_answer_keys
from perdure.client import lanes
from perdure.client.door import set_sender
from perdure.client.errors import RejectedError
from perdure.client.records.export import Exporter
from perdure.client.records.record import list_events
from perdure.client.run_events import AnswerReceived, AnswerRejected
from perdure.client.runs import sign_answer, submit_answer
from perdure.client.watch import Watch
from perdure.contracts.conversation import SubmitRequest
from perdure.contracts.people import CLI
from perdure.contracts.run.signals import Decision, HumanInput
from perdure.contracts.run.state import RunView
from perdure.contracts.tool import Approval
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run
from tests.workflows.following import MakeFollowUps, make_follow_ups
from tests.workflows.lane import lane_of, new_id, run_of, say, wait_for_question
from tests.workflows.runs import rejection_of
from tests.workflows.script import FINISH, count_replies

KEYS = read_answer_keys("k1:QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=")
NEXT = read_answer_keys("k2:QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkI=")
ASK = calls(("ask_human", {"question": "Which one?"}))
PROMPT = {"kind": "prompt", "description": "Which colour?", "input": {"text": "Which colour?"}}


def promises(body: dict[str, Any]) -> Any:
    """Creates a follow-up with one question to a person, and finishes."""
    name = str(body["messages"]).partition('"workflowId":"')[2].partition('"')[0]
    if not name:
        return calls(("workflow_create", {"definition": {"summary": "A colour is to be chosen."}}))
    is_asked = count_replies(body) > 1
    return FINISH if is_asked else calls(("workflow_task_create", {"workflowId": name, **PROMPT}))


def replies(body: dict[str, Any]) -> Any:
    """Each run pays twice, or asks twice, and finishes."""
    turn = count_replies(body)
    if turn >= 2:
        return FINISH
    return calls(("pay", {"cents": 5})) if any(tool["name"] == "pay" for tool in body["tools"]) else ASK


@pytest.fixture
def follow_ups(world: MakeWorld) -> MakeFollowUps:
    return make_follow_ups(world)


@asynccontextmanager
async def signed(world: MakeWorld, script: Any, *tools: ScriptedTool, keys: Any = KEYS) -> Any:
    async with world(script, *tools, works=False) as it:
        it.project = replace(it.project, answer_keys=keys.public)
        async with it.worker():
            yield it
        await it.replay()


async def rejection(run: Run, body: dict[str, Any]) -> str:
    return (await rejection_of(run, "answer", body)).message


async def test_no_answer_counts_but_a_signed_one_for_this_run_question_and_call(world: MakeWorld) -> None:
    pay = ScriptedTool("pay", approval=Approval.always)
    async with signed(world, replies, pay) as it:
        run, twin = await it.start(), await it.start()
        name = run.id.removeprefix("run:")
        call = (await it.until_state(run, question=True))["question"]["call"]
        await it.until_state(twin, question=True)
        forged = {"question_id": "q1", "call": call, "decision": "approve", "by": "ann", "sender": {"door": "cli"}}
        assert "not signed" in await rejection(run, forged)
        assert "not valid" in await rejection(run, {**forged, "signature": "k1:AAAA"})
        await run.signal("human_input", forged)
        assert "human_input: only answers signed" in (await it.until_state(run, ignored=True))["ignored"][0]

        set_sender(CLI)
        said = HumanInput(decision=Decision.approve)
        theirs = (await sign_answer(it.client, name, said, KEYS)).model_dump(mode="json", exclude_none=True)
        other = twin.id.removeprefix("run:")
        elsewhere = (await sign_answer(it.client, other, said, KEYS)).model_dump(mode="json", exclude_none=True)
        assert "not valid" in await rejection(run, {**elsewhere, "call": call})
        assert not pay.calls
        await submit_answer(it.client, name, said, KEYS)
        state = await it.until_state(run, question=True, step=2)
        assert state["question"]["id"] == "q2"
        again = {**theirs, "question_id": "q2", "call": state["question"]["call"]}
        assert "not valid" in await rejection(run, again)
        assert "not open" in await rejection(run, theirs)
        assert len(pay.calls) == 1
        with pytest.raises(RejectedError, match="set PERDURE_ANSWER_KEY"):
            await submit_answer(it.client, name, said, NEXT)
        await submit_answer(it.client, name, said, KEYS)
        await run.result()
        assert len(pay.calls) == 2


async def test_a_run_keeps_the_keys_that_it_began_with_and_a_fork_takes_those_of_now(world: MakeWorld) -> None:
    async with world(replies, works=False) as it:
        it.project = replace(it.project, answer_keys=KEYS.public)
        async with it.worker():
            run = await it.start()
            await it.until_state(run, question=True)
        it.project = replace(it.project, answer_keys=NEXT.public)
        async with it.worker():
            name = run.id.removeprefix("run:")
            assert (await it.state(run))["answer_keys"] == KEYS.public
            heir = await it.fork(run, 0)
            state = await it.until_state(heir, question=True)
            assert state["answer_keys"] == NEXT.public
            assert "not signed" in await rejection(heir, {"text": "b"})
            await submit_answer(it.client, state["run_id"], HumanInput(text="b"), NEXT)
            await it.until_state(heir, question=True, step=2)
            await submit_answer(it.client, state["run_id"], HumanInput(text="b"), NEXT)
            await heir.result()
            await submit_answer(it.client, name, HumanInput(text="b"), KEYS)
            await it.until_state(run, question=True, step=2)
        await it.replay()


async def test_a_lane_hands_a_signed_answer_on_and_queues_one_that_is_not(world: MakeWorld) -> None:
    async with signed(world, [ASK, FINISH, FINISH]) as it:
        lane = new_id()
        first = await say(it, lane, "ask me")
        await wait_for_question(it, first)
        run = run_of(it, first)
        await lane_of(it, lane).signal("human_input", {"text": "forged"})
        await it.until_state(run, ignored=True)
        unsigned = await say(it, lane, "unsigned", question_id="q1")
        assert unsigned.run_id == first.run_id  # for now: the run refuses it, and it waits its turn
        assert (await it.state(run))["question"]["id"] == "q1"
        request = {"request_id": "signed", "goal": "blue", "question_id": "q1"}
        await lanes.submit_with_retry(it.client, it.queue, lane, SubmitRequest.model_validate(request), KEYS)
        await run.result()
        assert (await it.results(run))[0][1] == "blue"


async def test_a_follow_ups_question_takes_signed_answers_and_no_result_from_elsewhere(
    follow_ups: MakeFollowUps,
) -> None:
    async with follow_ups(promises, works=False) as here:
        it = here.it
        it.project = replace(it.project, answer_keys=KEYS.public)
        async with it.worker():
            turn = await it.start()
            await turn.result()
            run = await here.follow_up_of(turn)
            task_id = (await it.state(run))["tasks"][0]["taskId"]
            assert "not signed" in await rejection(run, {"text": "red", "question_id": task_id})
            await run.signal("task_resolved", {"taskId": task_id, "result": {"status": "answered", "text": "red"}})
            await it.until_state(run, ignored=True)
            assert "only a signed answer resolves it" in (await it.state(run))["ignored"][0]
            await submit_answer(it.client, run.id, HumanInput(text="blue"), KEYS)
            await run.result()
            assert here.task_in(await it.state(run), task_id)["result"]["text"] == "blue"


async def test_no_start_brings_a_state_of_its_own_with_other_keys(world: MakeWorld) -> None:
    async with signed(world, replies) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        snapshot = await run.query("snapshot")
        segment = {"ref": "a", "start": 0, "end": 1, "head": "b", "owner": ""}
        state = {**snapshot["state"], "answer_keys": {}}
        forged = await it.start_raw({"type": "agentic.continue", "state": state, "segments": [segment]})
        with pytest.raises(WorkflowFailureError) as failure:
            await forged.result()
        assert "cannot bring a state of its own" in str(failure.value.cause)


async def test_a_forged_answer_by_signal_is_reported_as_one_that_was_not_taken(world: MakeWorld) -> None:
    pay = ScriptedTool("pay", approval=Approval.always)
    async with signed(world, [calls(("pay", {"cents": 5})), FINISH], pay) as it:
        run = await it.start()
        call = (await it.until_state(run, question=True))["question"]["call"]
        forged = {"question_id": "q1", "call": call, "decision": "approve", "by": "ann"}
        await run.signal("human_input", forged)
        await it.until_state(run, ignored=True)
        view = RunView.model_validate(await it.state(run))
        unsigned = HumanInput(
            question_id="q1", call=call, decision=Decision.approve, by="eva", arguments={"cents": 7, "to": "x"}
        )
        answer = KEYS.sign_for(view.run_id, view.execution, view.answer_keys, unsigned)
        await run.signal("human_input", answer.model_dump(mode="json", exclude_none=True))
        await run.result()
        events = [event async for event in Watch(it.client, view.run_id, follow=False).events()]
        [taken] = [event for event in events if isinstance(event, AnswerReceived)]
        assert (taken.answer.by, taken.before, taken.answer.arguments) == ("eva", {"cents": 5}, {"cents": 7, "to": "x"})
        [rejected] = [event for event in events if isinstance(event, AnswerRejected)]
        assert (rejected.answer.by, "this one is not signed" in rejected.reason) == ("ann", True)
        stores = LocalStores(it.project.workspaces)
        record = await Exporter(it.client, stores, stores, asks=True).export(view.run_id)
    [question] = record.questions
    assert [(each.by, each.before) for each in question.answers] == [("eva", {"cents": 5})]
    assert [(each.by, each.reason) for each in question.rejected] == [("ann", rejected.reason)]
    lines = [line for line in list_events(record.model_dump(mode="json")) if "answer" in line["type"]]
    assert [(line["type"], line["by"]) for line in lines] == [("answer", "eva"), ("rejected_answer", "ann")]

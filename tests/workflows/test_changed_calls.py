"""A person approves exactly the call that was shown: once it was changed, an answer must name the call as it is now."""

import json
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from rich.console import Console

from perdure.answer_keys import NO_KEYS
from perdure.client.door import set_sender
from perdure.client.errors import AnswerRejectedError
from perdure.client.run_events import AnswerReceived, AnswerRejected
from perdure.client.runs import submit_answer
from perdure.client.watch import Watch
from perdure.contracts.people import NoticeKind, Sender
from perdure.contracts.run.signals import Decision, HumanInput
from perdure.contracts.run.state import QuestionView
from perdure.decisions.ids import notice_workflow_id
from perdure.decisions.people.terms import person_of
from perdure.features.notices.activities import Notices
from perdure.features.notices.channels import SlackSender
from perdure.features.notices.contract import OpenQuestion
from perdure.session import Session
from perdure.terminal.follow import read_question_again
from perdure.terminal.prompt import parse_answer
from perdure.testkit.model_server import calls
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.runs import id_of, rejection_of, result_of
from tests.workflows.script import FINISH
from tests.workflows.test_notices import add_channel, receiving
from tests.workflows.test_policy import QUORUM, refund, ruled, sent_by, set_policy
from tests.workflows.test_signed_answers import KEYS

Json = dict[str, Any]
REFUND = calls(("refund", {"cents": 100}))


def vote(name: str, **fields: Any) -> Json:
    return {"question_id": "q1", "decision": "approve", "sender": sent_by(name, "finance"), **fields}


async def change(it: World, run: Run, before: Json) -> Json:
    """One person changes the call, which then waits for a second one. Returns the question about it."""
    await run.execute_update("answer", vote("ann", call=before["call"], arguments={"cents": 900}))
    after = await it.until_question(run, "q1")
    assert (before["call"] != after["call"], after["revision"], after["terms"][0]["approved_by"]) == (True, 1, ["ann"])
    return after


async def test_after_a_change_only_an_answer_that_names_the_call_as_it_is_counts(world: MakeWorld) -> None:
    money = refund()
    async with ruled(world, QUORUM, [REFUND, FINISH], money) as it:
        run = await it.start()
        before = await it.until_question(run, "q1")
        after = await change(it, run, before)
        for fields in ({}, {"call": before["call"]}, {"decision": "deny"}, {"arguments": {"cents": 5}}):
            refused = await rejection_of(run, "answer", vote("eva", **fields))
            assert "a person has changed its arguments; look at the call as it is now" in refused.message
        await run.signal("human_input", vote("eva"))
        for body in (HumanInput(decision=Decision.approve), HumanInput(question_id="q1", decision=Decision.approve)):
            with pytest.raises(AnswerRejectedError, match="answer with its digest"):
                await submit_answer(it.client, id_of(run), body)
        assert "has changed" in (await it.state(run))["ignored"][-1]
        assert money.calls == []
        await run.execute_update("answer", vote("eva", call=after["call"]))
        await result_of(run)
        assert [arguments for arguments, _ in money.calls] == [{"cents": 900}]
        events = [event async for event in Watch(it.client, id_of(run), follow=False).events()]
        taken = [(person_of(each.answer), each.before) for each in events if isinstance(each, AnswerReceived)]
        assert taken == [("ann", {"cents": 100}), ("eva", None)]
        [signalled] = [event for event in events if isinstance(event, AnswerRejected)]
        assert "has changed its arguments" in signalled.reason
        await it.replay()


async def test_a_terminal_prints_a_changed_call_again_before_it_asks_again(world: MakeWorld) -> None:
    async with ruled(world, QUORUM, [REFUND, FINISH], refund()) as it:
        run = await it.start()
        before = QuestionView.model_validate(await it.until_question(run, "q1"))
        session = cast("Session", SimpleNamespace(client=it.client, settings=None))
        for changes in (False, True):
            if changes:
                await change(it, run, before.model_dump(mode="json"))
            seen = StringIO()
            now = await read_question_again(session, id_of(run), Console(file=seen, width=100), before)
            assert now is not None
            assert ('"cents": 900' in seen.getvalue(), now.call != before.call) == (changes, changes)
            answer = parse_answer(now, "approve")
            assert (answer.call, '"cents": 900' in (answer.shown or "")) == (now.call, changes)


async def test_who_signs_an_answer_does_not_name_a_changed_call_for_the_person(world: MakeWorld) -> None:
    money = refund()
    async with world([REFUND, FINISH], money, works=False) as it:
        it.project = replace(it.project, answer_keys=KEYS.public)
        set_policy(it, QUORUM)
        async with it.worker():
            run = await it.start()
            await it.until_question(run, "q1")
            approve = HumanInput(decision=Decision.approve)
            set_sender(Sender.model_validate(sent_by("ann", "finance")))
            await submit_answer(it.client, id_of(run), approve.evolve(arguments={"cents": 9}), KEYS)
            set_sender(Sender.model_validate(sent_by("eva", "finance")))
            after = await it.until_question(run, "q1")
            for keys in (KEYS, NO_KEYS):
                with pytest.raises(AnswerRejectedError, match="answer with its digest"):
                    await submit_answer(it.client, id_of(run), approve, keys)
            await submit_answer(it.client, id_of(run), approve.evolve(call=after["call"]), KEYS)
            await result_of(run)
        assert [arguments for arguments, _ in money.calls] == [{"cents": 9}]


async def test_a_changed_call_is_announced_anew_and_the_old_message_is_not_repeated(world: MakeWorld) -> None:
    with receiving() as receiver:
        async with world([REFUND, FINISH], refund(), works=False) as it, httpx.AsyncClient() as client:
            set_policy(it, QUORUM)
            add_channel(it, SlackSender(receiver.url, client), NoticeKind.waiting)
            async with it.worker():
                run = await it.start()
                before = await it.until_question(run, "q1")
                await it.until(lambda: len(receiver.requests) == 1)
                after = await change(it, run, before)
                await it.until(lambda: len(receiver.requests) == 2)
                is_open = Notices(it.client, it.project).is_question_open
                assert not await is_open(OpenQuestion(run_id=id_of(run), question_id="q1", call=before["call"]))
                assert await is_open(OpenQuestion(run_id=id_of(run), question_id="q1", call=after["call"]))
                await run.execute_update("answer", vote("eva", call=after["call"]))
                await result_of(run)
            await it.replay()
    messages = [json.loads(body) for _, body in receiver.requests]
    named = [{value["call"] for value in button_values(message)} for message in messages]
    assert named == [{before["call"]}, {after["call"]}]
    texts = [message["blocks"][1]["text"]["text"] for message in messages]
    assert ['"cents": 100' in texts[0], '"cents": 900' in texts[1]] == [True, True]


def button_values(message: Json) -> list[Json]:
    """The values of the answer buttons of a message to Slack."""
    rows = [block["elements"] for block in message["blocks"] if block["type"] == "actions"]
    return [json.loads(button["value"]) for row in rows for button in row if "value" in button]


async def test_a_message_that_does_not_hold_the_whole_call_has_no_button_that_decides(world: MakeWorld) -> None:
    long = calls(("refund", {"note": "x" * 6000, "cents": 100}))
    with receiving() as receiver:
        async with world([long, FINISH], refund(), works=False) as it, httpx.AsyncClient() as client:
            set_policy(it, QUORUM)
            add_channel(it, SlackSender(receiver.url, client), NoticeKind.waiting)
            async with it.worker():
                run = await it.start()
                await it.until(lambda: len(receiver.requests) == 1)
    message = json.loads(receiver.requests[0][1])
    assert button_values(message) == []
    buttons = [
        b["text"]["text"] for block in message["blocks"] if block["type"] == "actions" for b in block["elements"]
    ]
    assert buttons == ["Open"]
    assert f"perdure show {id_of(run)} has it" in json.dumps(message)


PASSED_ON = """
[[rule]]
tools = ["refund"]
then = "ask"
approvers = ["finance", "leads"]
expires = "4s"
on_expiry = "escalate"
"""


async def test_a_group_whose_time_is_over_is_not_reminded_of_what_another_one_is_asked(world: MakeWorld) -> None:
    with receiving() as receiver:
        async with world([REFUND, FINISH], refund(), works=False) as it, httpx.AsyncClient() as client:
            set_policy(it, PASSED_ON)
            sender = SlackSender(receiver.url, client)
            add_channel(it, sender, NoticeKind.waiting, NoticeKind.waiting_long, patience=1)
            async with it.worker():
                run = await it.start()
                asked = [await it.until_question(run, "q1")]

                async def is_passed_on() -> bool:
                    asked.append(await it.until_question(run, "q1"))
                    return bool(asked[-1].get("group"))

                await it.until(is_passed_on)
                is_open = Notices(it.client, it.project).is_question_open
                about = OpenQuestion(run_id=id_of(run), question_id="q1", call=asked[0]["call"])
                assert (await is_open(about), await is_open(about.evolve(group=1))) == (False, True)
                await it.until(lambda: len(receiver.requests) == 4)
                notice = it.client.get_workflow_handle(notice_workflow_id(id_of(run), NoticeKind.waiting, "q1.1"))
                timers = [event.timer_started_event_attributes async for event in notice.fetch_history_events()]
                waits = [timer.start_to_fire_timeout.ToTimedelta() for timer in timers if timer.timer_id]
                assert waits == [timedelta(seconds=1)]  # since this group was asked
                body = {"question_id": "q1", "decision": "approve", "sender": sent_by("eva", "leads")}
                await run.execute_update("answer", body)
                await result_of(run)
            await it.replay()
    texts = [json.loads(body)["text"] for _, body in receiver.requests]
    assert ["still open" in text for text in texts] == [False, True, False, True]

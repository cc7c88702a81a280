"""Follow-ups on the real server: each task is resolved once, by what it waits for, and the work goes on once."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from perdure.activities.run import status
from perdure.activities.tools.interface import TransientToolError
from perdure.client.run_list import iterate_runs
from perdure.contracts.models import MAX_DURATION
from perdure.contracts.tool import Effect, ToolKind, ToolOutcome
from perdure.decisions.tools import FOLLOW_UP_TOOLS
from perdure.features.follow_ups.contract import Outbound
from perdure.features.follow_ups.outbox import LogOutbox
from perdure.testkit.model_server import calls, fails
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, connect_encrypted
from tests.workflows.following import (
    FINISH,
    WAIT,
    WITH_LANE,
    FollowUpWorld,
    Lane,
    MakeFollowUps,
    is_watched,
    make_follow_ups,
)
from tests.workflows.runs import cancel_run, expect_cancelled, failure_of, rejection_of


@pytest.fixture
def follow_ups(world: MakeWorld) -> MakeFollowUps:
    return make_follow_ups(world)


class Recorded:
    """An outbox that takes down what it sends; the first messages may fail, or never come back."""

    timeout = timedelta(seconds=5)

    def __init__(self, effect: Effect = Effect.once, *, fails: int = 0) -> None:
        self.effect = effect
        self.sent: list[tuple[str, str]] = []
        self._fails = fails

    async def send(self, message: Outbound, key: str) -> ToolOutcome:
        self.sent.append((key, message.text))
        if len(self.sent) <= self._fails:
            raise TransientToolError("http_error", "503 from the outbox")
        return ToolOutcome(result="sent")


class Held(Recorded):
    """One whose first message is under way until it is let go."""

    timeout = timedelta(minutes=1)

    def __init__(self) -> None:
        super().__init__()
        self.goes = asyncio.Event()

    async def send(self, message: Outbound, key: str) -> ToolOutcome:
        sent = await super().send(message, key)
        await self.goes.wait()
        return sent


async def rejection(run: Run, update: str, *body: Any) -> str:
    return (await rejection_of(run, update, *body)).message


async def test_a_reply_after_the_task_resolves_it_and_the_work_goes_on(follow_ups: MakeFollowUps) -> None:
    async with follow_ups() as here:
        run = await here.create_waiting(mention_user_id="A")
        await here.until_task(run, "t1", "blocked")
        reply = here.reply("Friday at noon")
        await here.publish(reply)
        resolved = await run.result()
        assert resolved["type"] == "evt.workflow.resolved"
        assert resolved["headers"]["request_id"] == "discord:x:1"
        (request,) = await here.requests()
        assert request["request_id"] == f"{run.id}:1"
        state = await here.it.state(run)
        task = here.task_in(state)
        assert task["result"] == {
            "channelId": "dm-b",
            "replyMessageId": reply["data"]["messageId"],
            "replyUserId": "B",
            "replyUserName": "Bea",
            "text": "Friday at noon",
            "ts": 1_700_000_000_000,
            "raw": {"discord": {"replyToMessageId": here.message}},
        }
        assert task["resolvedBy"] == f"discord:dm-b:{reply['data']['messageId']}"
        assert state["state"] == "resolved"
        changes = [(e["type"].removeprefix("evt.workflow."), e["data"].get("state")) for e in state["events"]]
        assert changes == [
            ("lifecycle.changed", "queued"),
            ("task.lifecycle.changed", "queued"),
            ("lifecycle.changed", "running"),
            ("task.lifecycle.changed", "running"),
            ("task.lifecycle.changed", "blocked"),
            ("lifecycle.changed", "blocked"),
            ("task.lifecycle.changed", "resolved"),
            ("task.resolved", None),
            ("lifecycle.changed", "resolved"),
            ("resolved", None),
        ]
        assert {e["headers"]["session_id"] for e in state["events"]} == {here.session}
        assert await here.it.failed_tasks(run) == 0


async def test_a_reply_before_the_task_is_kept_for_it(follow_ups: MakeFollowUps) -> None:
    async with follow_ups() as here:
        await here.publish(here.reply())
        run = await here.create_waiting()
        await run.result()
        assert len(await here.requests()) == 1


async def test_a_reply_that_comes_again_resumes_once_and_another_one_is_late(follow_ups: MakeFollowUps) -> None:
    async with follow_ups() as here:
        run = await here.create_waiting()
        await here.add(run, "prompt", "t2", text="Go?")
        reply = here.reply()
        for _ in range(3):
            await here.publish(reply)
        task = await here.until_task(run, "t1", "resolved")
        second = here.reply("Saturday")
        await here.publish(second)
        await here.until_late(run)
        state = await here.it.state(run)
        assert [each["event"] for each in state["late"]] == [f"discord:dm-b:{second['data']['messageId']}"]
        assert here.task_in(state) == task
        await run.execute_update("answer", {"text": "yes"})
        await run.result()
        topic = await here.publish(here.reply("Sunday"))
        await here.it.until(lambda: here.has_late(topic))
        assert len(await here.requests()) == 1


@pytest.mark.parametrize("fields", [{"userId": "C"}, {"to": None}, {"to": "m-other"}, {"channelId": "dm-c"}])
async def test_only_a_strict_reply_resolves_a_task(follow_ups: MakeFollowUps, fields: dict[str, Any]) -> None:
    async with follow_ups() as here:
        run = await here.create_waiting()
        wrong = here.reply("me too", **fields)
        if fields.get("to", "m") is not None:
            await here.publish(wrong)
        await run.signal("task_resolved", {"taskId": "t1", "event": wrong})  # however it gets there
        await here.publish(here.reply("Friday"))
        await run.result()
        assert here.task_in(await here.it.state(run))["result"]["text"] == "Friday"
        assert any("is not what task t1 waits for" in line for line in (await here.it.state(run))["ignored"])


async def test_a_reply_meets_its_task_after_all_workers_have_gone(follow_ups: MakeFollowUps) -> None:
    async with follow_ups(works=False) as here:
        async with here.it.worker():
            run = await here.create_waiting()
            await here.until_task(run, "t1", "blocked")
        await here.publish(here.reply())
        async with here.it.worker():
            await asyncio.wait_for(run.result(), 20)
            assert len(await here.requests()) == 1


async def test_a_timeout_is_typed_and_the_work_goes_on(follow_ups: MakeFollowUps) -> None:
    async with follow_ups() as here:
        run = await here.create()
        await here.wait_for_reply(run, timeoutMs=100)
        await run.result()
        task = here.task_in(await here.it.state(run))
        assert (task["result"]["status"], task["resolvedBy"]) == ("timeout", "timeout")
        (request,) = await here.requests()
        assert request["messages"][1]["content"].startswith("Nothing came in time for: wait for t1\n\n")
        topic = await here.publish(here.reply("too late"))
        await here.it.until(lambda: here.has_late(topic))
        assert len(await here.requests()) == 1


async def test_all_waits_for_each_task_and_any_for_one(follow_ups: MakeFollowUps) -> None:
    async with follow_ups() as here:
        both, one = await here.create("all"), await here.create("any")
        for run in (both, one):
            await here.wait_for_reply(run)
            await here.add(run, "prompt", "t2", text="Go?", options=["yes", "no"])
        await here.publish(here.reply())
        await one.result()
        assert [task["state"] for task in (await here.it.state(one))["tasks"]] == ["resolved", "cancelled"]
        await here.until_task(both, "t1", "resolved")
        assert [each["request_id"] for each in await here.requests()] == [f"{one.id}:1"]
        await both.execute_update("answer", {"text": "yes", "by": "eva"})
        await both.result()
        assert [each["request_id"] for each in await here.requests()] == [f"{one.id}:1", f"{both.id}:1"]


async def test_all_is_judged_after_the_turn_that_creates_the_tasks(follow_ups: MakeFollowUps) -> None:
    """The first may resolve before the second exists."""
    work = ScriptedTool("work", kind=ToolKind.signal)
    async with follow_ups([calls(("work", {})), FINISH], work) as here:
        turn = await here.it.start()
        await here.it.until_pending(turn, 1)
        run = await here.create_waiting(run_id=turn.id.removeprefix("run:"))
        await here.publish(here.reply())
        await here.until_task(run, "t1", "resolved")
        await here.wait_for_reply(run, "t2", messageId=f"{here.message}-2")
        await here.it.send_result(turn, 1, "work")
        await turn.result()
        await here.publish(here.reply(to=f"{here.message}-2"))
        await run.result()
        assert [task["state"] for task in (await here.it.state(run))["tasks"]] == ["resolved", "resolved"]


@pytest.mark.parametrize("end", ["terminated", "never there"])
async def test_a_turn_that_never_ended_properly_holds_nothing_up(
    follow_ups: MakeFollowUps, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminated one signals nothing, so it is found by the rare look."""
    monkeypatch.setattr(status, "SIGNALLED_PAUSE", timedelta(seconds=1))
    async with follow_ups([calls(("work", {}))], ScriptedTool("work", kind=ToolKind.signal)) as here:
        if end == "terminated":
            turn = await here.it.start()
            run = await here.create_waiting(run_id=turn.id.removeprefix("run:"))
            await turn.terminate("gone")
            here.it.started.remove(turn.id)
        else:
            run = await here.create_waiting(run_id="nobody")
        await here.publish(here.reply())
        await asyncio.wait_for(run.result(), 20)
        assert len(await here.requests()) == 1


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled", "cancelled natively"])
async def test_a_turn_signals_however_it_ends(follow_ups: MakeFollowUps, end: str) -> None:
    """The follow-up looks at it once in 15 minutes, and knows at once."""
    answer = fails(401, times=9) if end == "failed" else FINISH
    async with follow_ups([calls(("work", {})), answer], ScriptedTool("work", kind=ToolKind.signal)) as here:
        turn = await here.it.start()
        await here.it.until_pending(turn, 1)
        run = await here.create_waiting(run_id=turn.id.removeprefix("run:"))
        await here.publish(here.reply())
        await here.until_task(run, "t1", "resolved")
        await here.it.until(partial(is_watched, turn))
        match end:
            case "cancelled":
                await turn.signal("cancel")
            case "cancelled natively":
                await turn.cancel()
            case _:
                await here.it.send_result(turn, 1, "work")
        await asyncio.wait_for(run.result(), 10)
        with suppress(WorkflowFailureError):
            await turn.result()
        assert str((await here.it.state(turn))["status"]) == end.partition(" ")[0]


async def test_without_a_task_it_fails_typed_once_its_turn_has_ended(follow_ups: MakeFollowUps) -> None:
    async with follow_ups() as here:
        run = await here.create(run_id="nobody")
        failure = await failure_of(run)
        assert failure.type == "NoTasks"
        assert await here.requests() == []


@pytest.mark.parametrize(
    "how", [(), ({"type": "cmd.workflow.cancel", "data": {"reason": "done"}},), ({"by": "eva"},), "native"]
)
async def test_a_cancelled_follow_up_ends_canceled_and_resumes_nothing(follow_ups: MakeFollowUps, how: Any) -> None:
    async with follow_ups() as here:
        run = await here.create_waiting()
        await here.until_task(run, "t1", "blocked")
        await (run.cancel() if how == "native" else run.signal("cancel", args=how))
        await expect_cancelled(run)
        assert await here.status(run) is WorkflowExecutionStatus.CANCELED
        state = await here.it.state(run)
        assert (state["state"], here.task_in(state)["state"]) == ("cancelled", "cancelled")
        topic = await here.publish(here.reply())
        await here.it.until(lambda: here.has_late(topic))
        assert await here.requests() == []


@workflow.defn(name="Conversation", sandboxed=False)
class Refusing:
    """A lane that takes no request, for the reason that it was started with."""

    @workflow.run
    async def run(self, *_: Any) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.update
    def submit(self, *args: Any) -> None:
        is_reused = "reused" in workflow.info().workflow_id
        why = "RequestIdReused" if is_reused else "LaneFull"
        raise ApplicationError(f"no: {why}", type=why, non_retryable=True)


REFUSING = (*(each for each in WITH_LANE if each is not Lane), Refusing)


async def is_resumed_in_vain(run: Run) -> bool:
    pending = (await run.describe()).raw_description.pending_activities
    return any(each.activity_type.name == "resume_work" and each.attempt > 1 for each in pending)


@pytest.mark.parametrize("how", ["signal", "native"])
async def test_a_follow_up_that_no_lane_takes_can_be_cancelled(follow_ups: MakeFollowUps, how: str) -> None:
    """It ends Canceled, tells so, and frees its topics: whoever looks must not think that the work goes on."""
    async with follow_ups(workflows=REFUSING) as here:
        run = await here.create_waiting()
        topic = await here.publish(here.reply())
        await here.it.until(lambda: is_resumed_in_vain(run))
        await cancel_run(run, how)
        await expect_cancelled(run)
        assert await here.status(run) is WorkflowExecutionStatus.CANCELED
        assert (await here.it.state(run))["state"] == "cancelled"
        assert [each["expiresAt"] for each in (await here.it.state(topic))["subscriptions"]] == [0]
        await here.it.client.get_workflow_handle(f"conversation:{here.session}").terminate()


async def test_a_request_that_a_lane_rejects_fails_its_follow_up(follow_ups: MakeFollowUps) -> None:
    async with follow_ups(workflows=REFUSING) as here:
        run = await here.create_waiting(session_id=f"{here.session}-reused")
        topic = await here.publish(here.reply())
        failure = await failure_of(run)
        assert failure.type == "Refused"
        assert failure.message.endswith("-reused rejects the request: no: RequestIdReused")
        assert [each["expiresAt"] for each in (await here.it.state(topic))["subscriptions"]] == [0]
        await here.it.client.get_workflow_handle(f"conversation:{here.session}-reused").terminate()


async def test_a_prompt_is_a_question_to_people_and_answered_as_one(follow_ups: MakeFollowUps) -> None:
    async with follow_ups() as here:
        run = await here.create()
        await here.add(run, "prompt", "t1", text="Book the table?", options=["yes", "no"])
        await here.until_task(run, "t1", "blocked")

        async def listed() -> bool:
            found = [each async for each in iterate_runs(here.it.client, waiting=True, limit=1000)]
            return any((e.run_id, e.waiting_for) == (run.id, "human: asks: Book the table?") for e in found)

        await here.it.until(listed)
        assert "t9 is not open" in await rejection(run, "answer", {"question_id": "t9", "text": "yes"})
        assert "takes a text" in await rejection(run, "answer", {"decision": "approve"})
        await run.signal("human_input", {"text": "yes", "by": "eva"})
        await run.result()
        task = here.task_in(await here.it.state(run))
        assert (task["result"], task["resolvedBy"]) == ({"status": "answered", "text": "yes", "by": "eva"}, "eva")
        (request,) = await here.requests()
        assert "> eva was asked: Book the table?\n> \n> The answer: yes" in request["messages"][1]["content"]
        assert request["sender"] == {"door": "follow-up"}


async def test_a_wait_is_resolved_by_the_clock(follow_ups: MakeFollowUps) -> None:
    async with follow_ups() as here:
        run = await here.create()
        await here.add(run, "prompt", "hold", text="Both there?")
        await here.add(run, "wait", "t1", delayMs=50)
        await here.add(run, "wait", "t2", until=(datetime.now(UTC) - timedelta(hours=1)).isoformat())
        await run.signal("human_input", {"text": "yes", "by": "eva"})
        await run.result()
        assert [task["resolvedBy"] for task in (await here.it.state(run))["tasks"]] == ["eva", "clock", "clock"]
        assert len(await here.requests()) == 1


@pytest.mark.parametrize("completion", ["none", "ack"])
async def test_a_message_goes_out_once_and_only_an_ack_resumes(
    follow_ups: MakeFollowUps, completion: str, tmp_path: Path
) -> None:
    async with follow_ups(outbox=LogOutbox(tmp_path / "out")) as here:
        run = await here.create()
        await here.add(run, "notify", "t1", channelId="x", text="I asked B.", completion=completion)
        await run.result()
        lines = (tmp_path / "out" / "outbound.jsonl").read_text().splitlines()
        assert len(lines) == 1
        assert f'"key": "workflow:{run.id.removeprefix("wf:")}:task:t1:notify"' in lines[0]
        assert len(await here.requests()) == (completion == "ack")


@pytest.mark.parametrize(("effect", "times", "status"), [(Effect.once, 1, "http_error"), (Effect.keyed, 2, "sent")])
async def test_a_failed_message_is_resent_only_by_an_outbox_that_honours_keys(
    follow_ups: MakeFollowUps, effect: Effect, times: int, status: str
) -> None:
    outbox = Recorded(effect, fails=1)
    async with follow_ups(outbox=outbox) as here:
        run = await here.create()
        await here.add(run, "notify", "t1", channelId="x", text="hi", completion="ack")
        await run.result()
        assert [key for key, _ in outbox.sent] == [f"workflow:{run.id.removeprefix('wf:')}:task:t1:notify"] * times
        assert here.task_in(await here.it.state(run))["result"]["status"] == status


class Slow(Recorded):
    """One that may take as long as a project can say, and notes what Temporal gives it."""

    timeout = MAX_DURATION

    async def send(self, message: Outbound, key: str) -> ToolOutcome:
        self.given = activity.info().start_to_close_timeout
        return await super().send(message, key)


@pytest.mark.parametrize("effect", [Effect.once, Effect.keyed])
async def test_temporal_cuts_off_no_attempt_before_the_outbox_does(follow_ups: MakeFollowUps, effect: Effect) -> None:
    outbox = Slow(effect)
    async with follow_ups(outbox=outbox) as here:
        run = await here.create()
        await here.add(run, "notify", "t1", channelId="x", text="hi")
        await run.result()
    assert outbox.given
    assert outbox.given > outbox.timeout


async def two_messages(here: FollowUpWorld) -> Run:
    run = await here.create()
    for name in ("m1", "m2"):
        await here.add(run, "notify", name, channelId="x", text=name, completion="ack")
    return run


async def test_a_message_that_does_not_go_out_holds_up_no_other_task(follow_ups: MakeFollowUps) -> None:
    outbox = Held()
    async with follow_ups(outbox=outbox) as here:
        run = await two_messages(here)
        await here.until_task(run, "m1", "running")
        await here.add(run, "wait", "clock", delayMs=1)
        await here.add(run, "prompt", "ask", text="Book it?", timeoutMs=1)
        await here.wait_for_reply(run, "reply")
        await here.publish(here.reply())
        for name in ("clock", "ask", "reply"):
            await here.until_task(run, name, "resolved")
        now = await here.it.state(run)
        assert [here.task_in(now, name)["state"] for name in ("m1", "m2")] == ["running", "queued"]
        assert await here.requests() == []
        outbox.goes.set()
        await run.result()
        assert [text for _, text in outbox.sent] == ["m1", "m2"]
        assert len(await here.requests()) == 1


async def test_a_message_whose_task_was_resolved_while_it_went_out_is_waited_for_by_the_next(
    follow_ups: MakeFollowUps,
) -> None:
    outbox = Held()
    async with follow_ups(outbox=outbox) as here:
        run = await two_messages(here)
        await here.it.until(lambda: bool(outbox.sent))
        await run.signal("task_resolved", {"taskId": "m1", "result": "they have it"})
        await here.until_task(run, "m1", "resolved")
        await here.add(run, "wait", "clock", delayMs=1)
        await here.until_task(run, "clock", "resolved")
        assert [text for _, text in outbox.sent] == ["m1"]
        outbox.goes.set()
        await run.result()
        assert [text for _, text in outbox.sent] == ["m1", "m2"]


@pytest.mark.parametrize("how", ["signal", "native"])
async def test_a_message_that_is_going_out_is_not_cut_off_by_a_cancel(follow_ups: MakeFollowUps, how: str) -> None:
    """The end is reported; what has not begun to go out does not."""
    outbox = Held()
    async with follow_ups(outbox=outbox) as here:
        run = await two_messages(here)
        await here.it.until(lambda: bool(outbox.sent))
        await cancel_run(run, how)
        assert here.task_in(await here.it.state(run), "m1")["state"] == "running"
        outbox.goes.set()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        state = await here.it.state(run)
        assert [here.task_in(state, name)["state"] for name in ("m1", "m2")] == ["resolved", "cancelled"]
        assert [text for _, text in outbox.sent] == ["m1"]


async def test_without_an_outbox_a_message_fails_typed(follow_ups: MakeFollowUps) -> None:
    async with follow_ups() as here:
        run = await here.create()
        await here.add(run, "notify", "t1", channelId="x", text="hi", completion="ack")
        await run.result()
        assert here.task_in(await here.it.state(run))["result"]["status"] == "tool_error"


async def test_an_agent_waits_for_a_reply_by_one_call(follow_ups: MakeFollowUps) -> None:
    """The follow-up has the headers of its run."""
    wait = calls(("workflow_wait_for_reply", {**WAIT, "messageId": "m-agent-1"}))
    async with follow_ups([wait, FINISH]) as here:
        turn = await here.it.start("ask B for lunch", conversation_id=here.session)
        assert (await turn.result())["payload"]["steps_taken"] == 1
        run = await here.follow_up_of(turn)
        state = await here.it.state(run)
        assert state["headers"] == {
            "request_id": turn.id.removeprefix("run:"),
            "session_id": here.session,
            "request_client": "perdure",
            "user_id": None,
        }
        assert "Waiting for: Wait for B to reply" in state["definition"]["summary"]
        await run.signal("task_resolved", {"taskId": state["tasks"][0]["taskId"], "result": {"text": "yes"}})
        await run.result()
        assert len(await here.requests()) == 1


BAD_CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("workflow_create", {}, "`definition` is required"),
    ("workflow_create", {"definition": {"summary": ""}}, "definition.summary"),
    ("workflow_create", {"definition": {"summary": "s", "completion": "most"}}, "definition.completion"),
    ("workflow_create", {"definition": {"summary": "s", "resumeTarget": "x"}}, "`resumeTarget` must be an object"),
    ("workflow_create", {"definition": {"summary": "s", "colour": "red"}}, "definition.colour"),
    (
        "workflow_task_create",
        {"workflowId": "f", "kind": "nap", "description": "d", "input": {}},
        "the kinds are: disc",
    ),
    ("workflow_task_create", {"workflowId": "f", "kind": "wait", "input": {"delayMs": 5}}, "description"),
    ("workflow_task_create", {"workflowId": "f", "kind": "wait", "description": "d", "input": {}}, "delayMs"),
    (
        "workflow_task_create",
        {"workflowId": "nobody", "kind": "wait", "description": "d", "input": {"delayMs": 5}},
        "'nobody' is no follow-up of this run",
    ),
    ("workflow_wait_for_reply", {"description": "d", "channelId": "c"}, "messageId"),
    ("workflow_wait_for_reply", {"channelId": "c", "messageId": "m"}, "description"),
]


async def test_wrong_arguments_come_back_as_errors_that_the_model_can_act_on(follow_ups: MakeFollowUps) -> None:
    async with follow_ups([calls(*((tool, given) for tool, given, _ in BAD_CALLS)), FINISH]) as here:
        turn = await here.it.start()
        await turn.result()
        results = [text for _, text in await here.it.results(turn)]
        for (_, _, words), text in zip(BAD_CALLS, results, strict=False):
            assert text.startswith("invalid_arguments: ")
            assert words in text
        assert await here.follow_ups() == []


async def test_an_agent_without_follow_ups_is_offered_no_tool_of_theirs_and_refused_a_call(world: MakeWorld) -> None:
    asked = (
        ("workflow_create", {"definition": {"summary": "s"}}),
        ("workflow_wait_for_reply", {**WAIT, "messageId": "m"}),
    )
    async with world([calls(*asked), FINISH]) as it:
        run = await it.run_to_end()
        assert [text.split(" here")[0] for _, text in await it.results(run)][:2] == [
            f"unknown_tool: there is no tool {tool!r}" for tool, _ in asked
        ]
        assert {tool["name"] for tool in it.model.requests[0]["tools"]}.isdisjoint(FOLLOW_UP_TOOLS)


BAD_BODIES: list[list[Any]] = [
    [],
    [{}, {}],
    [None],
    [5],
    ["text"],
    [[]],
    [{"no": "such field"}],
    [{"taskId": "t1"}],
    [{"taskId": "t9", "result": 5}],
    [{"taskId": "t1", "event": {"type": "evt.adapter.message.created"}}],
    [{"data": {"workflowId": "f", "taskId": "t", "kind": "nap", "description": "d"}}],
    [{"type": "cmd.workflow.create", "data": {}}],
    [{"text": 5}],
]


async def test_no_bad_signal_harms_a_follow_up_or_a_topic(follow_ups: MakeFollowUps) -> None:
    async with follow_ups() as here:
        run = await here.create_waiting()
        topic = await here.publish(here.reply(userId="C"))
        for body in BAD_BODIES:
            for name in ("task_create", "task_resolved", "human_input", "no_such_signal"):
                await run.signal(name, args=body)
            for name in ("event", "subscribe", "no_such_signal"):
                await topic.signal(name, args=body)
        elsewhere = {"type": "cmd.workflow.cancel", "data": {"workflowId": "another"}}
        for body in ([{}, {}], [5], [{"no": "such field"}], [{"type": "cmd.workflow.cancel", "data": 5}], [elsewhere]):
            await run.signal("cancel", args=body)
        await here.add(run, "wait", "t2", until=(datetime.now(UTC) + timedelta(days=300)).isoformat())
        await topic.signal("subscribe", {"subscriber": run.id, "taskId": "t1", "expiresAt": 2**53})
        await topic.signal("subscribe", {"subscriber": run.id, "taskId": "t1", "expiresAt": 10**400})
        await topic.signal("event", {"type": "evt.adapter.message.created", "data": here.reply()["data"] | {"ts": -1}})
        assert len((await here.it.state(topic))["ignored"]) == 20
        await here.publish(here.reply())
        await here.until_task(run, "t1", "resolved")
        await here.add(run, "prompt", "t3", text="All there?")
        await run.signal("task_resolved", {"taskId": "t2", "result": "enough"})
        await run.signal("task_resolved", {"taskId": "t3", "result": "yes"})
        await run.result()
        assert (await here.it.failed_tasks(run), await here.it.failed_tasks(topic)) == (0, 0)


@pytest.mark.parametrize("args", [[], [{}, {}], [None], [5], [{"type": "cmd.workflow.create"}], ["other name"]])
async def test_a_bad_start_fails_typed(follow_ups: MakeFollowUps, args: list[Any]) -> None:
    async with follow_ups() as here:
        if args == ["other name"]:
            good = await here.create()
            await good.signal("cancel")
            state = await here.it.state(good)
            data = {"workflowId": state["workflowId"], "definition": state["definition"]}
            args = [{"type": "cmd.workflow.create", "data": data}]
        run = await here.start_raw(*args)
        failure = await failure_of(run)
        assert failure.type == "InvalidInput"
        assert await here.it.failed_tasks(run) == 0


async def test_a_task_for_another_follow_up_or_after_the_end_is_refused(follow_ups: MakeFollowUps) -> None:
    async with follow_ups() as here:
        run, other = await here.create(), await here.create()
        assert "this is follow-up" in await rejection(run, "create_task", here.task(other, "wait", delayMs=5))
        assert "one JSON argument" in await rejection(run, "create_task")
        assert "the kinds are" in await rejection(run, "create_task", here.task(run, "nap"))
        await other.signal("cancel")


async def test_both_go_on_where_their_histories_grow_long(world: MakeWorld, short_history_client: Client) -> None:
    async with make_follow_ups(world)(server=short_history_client) as here:
        run = await here.create_waiting()
        for n in range(60):
            await run.signal("human_input", {"text": str(n)})
            topic = await here.publish(here.reply(str(n), userId="C"))
        await here.publish(here.reply("at last"))
        await run.result()
        assert here.task_in(await here.it.state(run))["result"]["text"] == "at last"
        assert [len(await here.it.executions(each)) > 1 for each in (run, topic)] == [True, True]
        assert len(await here.requests()) == 1


async def test_nothing_of_an_encrypted_follow_up_can_be_read_in_its_history(world: MakeWorld, client: Client) -> None:
    """Ids are another matter: they name topics and lanes."""
    encrypted = await connect_encrypted(client)
    async with make_follow_ups(world)(server=encrypted, outbox=Recorded()) as here:
        run = await here.create_waiting()
        await here.add(run, "prompt", "t2", text="the question, unseen")
        await here.add(run, "notify", "t3", channelId="x", text="the message, unseen")
        await here.until_task(run, "t3", "resolved")
        reply = here.reply("the reply, unseen")
        topic = await here.publish(reply)
        await run.execute_update("answer", {"text": "the answer, unseen"})
        await run.result()
        (request,) = await here.requests()
        assert "the reply, unseen" in str(request)
        for each in (run, topic):
            assert b"unseen" not in await here.it.raw_history(each)
        assert "unseen" not in str((await run.describe()).typed_search_attributes)


async def test_a_topic_outlives_days_of_waiting_and_ends_without_subscribers(
    world: MakeWorld, skipping: WorkflowEnvironment
) -> None:
    """Three days of time pass in seconds; the topic's own time to live is one."""
    async with make_follow_ups(world)(server=skipping.client) as here:
        run = await here.create()
        await here.wait_for_reply(run, timeoutMs=3 * 24 * 3600 * 1000)
        topic = here.it.client.get_workflow_handle(f"topic:discord:dm-b:{here.message}")
        await asyncio.wait_for(run.result(), 60)
        assert here.task_in(await here.it.state(run))["resolvedBy"] == "timeout"
        over = await asyncio.wait_for(topic.result(), 60)
        lived = (await topic.describe()).close_time, (await topic.describe()).start_time
        assert over["marks"] == []
        assert lived[0] is not None
        assert lived[0] - lived[1] >= timedelta(days=2.9)


async def test_a_reply_whose_ids_are_long_resolves_its_task(follow_ups: MakeFollowUps) -> None:
    async with follow_ups() as here:
        run = await here.create()
        await here.add(run, "discord.wait_for_reply", "t1", channelId="c" * 200, messageId=here.message)
        await here.until_task(run, "t1", "blocked")
        await here.publish(here.reply(channelId="c" * 200, messageId="m" * 200))
        assert (await asyncio.wait_for(run.result(), 20))["type"] == "evt.workflow.resolved"

"""Follow-ups and topics, and the events that they meet, in the scenarios."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from perdure.activities.run.status import read_snapshot
from perdure.features.follow_ups.activities import signal_event
from perdure.features.follow_ups.contract import Event
from tests.replay.scenario import Play
from tests.workflows.conftest import Run, World
from tests.workflows.lane import say

REPLIES = "discord.wait_for_reply"
REPLY = {
    "platform": "discord",
    "channelId": "dm-b",
    "messageId": "r",
    "userId": "B",
    "text": "Friday",
    "ts": 1_700_000_000_000,
}


def reply_to(message: str, **fields: Any) -> dict[str, Any]:
    raw = {"discord": {"replyToMessageId": message}}
    return {"type": "evt.adapter.message.created", "data": {**REPLY, "raw": raw, **fields}}


def task(workflow_id: str, kind: str, task_id: str = "t1", **given: Any) -> dict[str, Any]:
    data = {"workflowId": workflow_id, "taskId": task_id, "kind": kind, "description": "d", "input": given}
    return {"type": "cmd.workflow.task.create", "data": data}


def follows(kind: str = "", run_id: str | None = None, **given: Any) -> Callable[[World], Awaitable[Run]]:
    """A follow-up with its first task, if any; where that waits for a reply, to the message that it is named for."""

    async def begin(it: World) -> Run:
        name = uuid4().hex[:12]
        target = {"session_id": name, "request_client": "discord"}
        definition = {"origin": target, "resumeTarget": target, "summary": "Lunch with B.", "completion": "all"}
        data = {"workflowId": name, "definition": definition, "runId": run_id}
        about = {"channelId": "dm-b", "messageId": name} if kind == REPLIES else {}
        run: Run = await it.client.start_workflow(
            "FollowUp",
            {"type": "cmd.workflow.create", "headers": target, "data": data},
            id=f"wf:{name}",
            task_queue=it.queue,
            start_signal="task_create" if kind else None,
            start_signal_args=[task(name, kind, **about, **given)] if kind else [],
        )
        it.started.append(run.id)
        return run

    return begin


async def is_blocked(it: World, run: Run) -> None:
    async def waits() -> bool:
        state = await it.state(run)
        return bool(state["tasks"]) and all(each["state"] == "blocked" for each in state["tasks"])

    await it.until(waits)


async def replies_and_answers(it: World, run: Run) -> None:
    """After bad signals, and with one task more."""
    name = run.id.removeprefix("wf:")
    await is_blocked(it, run)
    await run.signal("task_resolved", {"no": "such field"})
    await run.signal("no_such_signal", {})
    await run.execute_update("create_task", task(name, "prompt", "t2", text="Go?"))
    await run.execute_update("create_task", task(name, "prompt", "t3", text="When?"))
    await is_blocked(it, run)
    await run.signal("human_input", {"text": "noon", "question_id": "t3"})
    for _ in range(2):
        await signal_event(it.client, it.queue, Event.model_validate(reply_to(name)))
    await run.execute_update("answer", {"text": "yes"})


async def a_follow_up_of_an_open_run(it: World) -> Run:
    run = await it.start()
    await it.until_state(run, question=True)
    return await follows("prompt", run.id.removeprefix("run:"), text="Go?")(it)


async def its_run_ends(it: World, run: Run) -> None:
    await run.execute_update("answer", {"text": "yes"})
    turn = it.client.get_workflow_handle(f"run:{(await it.state(run))['runs'][0]}")
    await is_watched(it, turn)
    await turn.execute_update("answer", {"text": "a"})


async def ends_watched(it: World, run: Run) -> None:
    """By a follow-up, and by a workflow that is gone."""
    await it.until_state(run, question=True)
    await run.signal("watch_end", {"no": "such field"})
    await run.signal("watch_end", {"workflow_id": "nobody"})
    await follows("prompt", run.id.removeprefix("run:"), text="Go?")(it)
    await is_watched(it, run, 2)
    await run.execute_update("answer", {"text": "a"})


async def is_watched(it: World, run: Run, watchers: int = 1) -> None:
    async def has_them() -> bool:
        return len((await read_snapshot(run)).state.watchers) == watchers

    await it.until(has_them)


def gives_up(door: str) -> Play:
    async def play(it: World, run: Run) -> None:
        await is_blocked(it, run)
        await (run.cancel() if door == "native" else run.signal("cancel"))

    return play


async def sends_a_message_beside(it: World, run: Run) -> None:
    """The clock of its first task runs on meanwhile."""
    await run.signal("task_create", task(run.id.removeprefix("wf:"), "notify", "t2", channelId="c", text="x"))


async def bothers_a_follow_up(it: World, run: Run) -> None:
    """Until its history is long; then the reply."""
    name = run.id.removeprefix("wf:")
    await is_blocked(it, run)
    for number in range(60):
        await run.signal("task_resolved", {"taskId": "t1", "event": reply_to("another", messageId=f"r{number}")})
        await it.state(run)
    await signal_event(it.client, it.queue, Event.model_validate(reply_to(name)))


async def is_resumed_under_a_used_id(it: World, run: Run) -> None:
    await say(it, run.id.removeprefix("wf:"), "something else", f"{run.id}:1")
    await run.signal("task_resolved", {"taskId": "t1", "result": "yes"})


async def topic_of_a_follow_up(it: World) -> Run:
    """The topic that meets a follow-up."""
    run = await follows(REPLIES)(it)
    await is_blocked(it, run)
    return it.client.get_workflow_handle(f"topic:discord:dm-b:{run.id.removeprefix('wf:')}")


async def meets(it: World, run: Run) -> None:
    message = run.id.rpartition(":")[2]
    await run.signal("no_such_signal")
    await signal_event(it.client, it.queue, Event.model_validate(reply_to(message)))
    await it.client.get_workflow_handle(f"wf:{message}").result()
    await run.cancel()  # or it would wait for another event, a day long


async def topic_without_a_subscriber(it: World) -> Run:
    """The one who waits has gone, and the time to live has passed: the first event ends it."""
    key = uuid4().hex[:12]
    left = {"subscriber": f"wf:{key}", "taskId": "t1"}
    event = Event.model_validate(reply_to("m")).model_dump(mode="json", exclude_none=True)
    topic = {"type": "topic.continue", "key": key, "ends_at": 1, "subscriptions": [left], "events": [event]}
    run: Run = await it.client.start_workflow("EventTopic", topic, id=f"topic:{key}", task_queue=it.queue)
    return run

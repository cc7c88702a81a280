"""Follow-ups at the command line: events come in; people look, answer and cancel."""

import asyncio
import json
import subprocess
import sys
from typing import Any

from perdure.features.follow_ups.client import follow_up_state
from tests.e2e.projects import Served
from tests.waiting import until

TARGET = {"session_id": "x", "request_client": "discord"}


def reply_event(to: str | None, message: str = "r1", text: str = "Friday") -> dict[str, Any]:
    raw = {"discord": {"replyToMessageId": to} if to else {}}
    data = {"platform": "discord", "channelId": "dm", "messageId": message, "userId": "B", "text": text, "ts": 1}
    return {"type": "evt.adapter.message.created", "data": {**data, "raw": raw}}


async def create(worked: Served, name: str, *tasks: tuple[str, str, dict[str, Any]]) -> Any:
    definition = {"origin": TARGET, "resumeTarget": TARGET, "summary": "Lunch with [B]."}
    command = {"type": "cmd.workflow.create", "data": {"workflowId": name, "definition": definition}}
    run = await worked.client.start_workflow("FollowUp", command, id=f"wf:{name}", task_queue="perdure")
    for task_id, kind, given in tasks:
        data = {"workflowId": name, "taskId": task_id, "kind": kind, "description": f"[{task_id}]", "input": given}
        await run.execute_update("create_task", {"type": "cmd.workflow.task.create", "data": data})
    return run


def row_of(worked: Served, name: str, part: str) -> dict[str, Any]:
    rows = worked.perdure("list", part, "--json").rows()
    return next((row for row in rows if row["run_id"] == name), {})


async def test_a_follow_up_is_seen_answered_and_resolved_from_the_command_line(worked: Served) -> None:
    reply_task = ("t1", "discord.wait_for_reply", {"channelId": "dm", "messageId": "m1"})
    run = await create(worked, "lunch", reply_task, ("t2", "prompt", {"text": "Book it?"}))
    file = worked.project.write("reply.json", json.dumps(reply_event("m1"), indent=2))
    done = worked.perdure("event", str(file))
    assert (done.code, done.out) == (0, "discord:dm:r1 → topic:discord:dm:m1\n")
    await until(lambda: "human: asks: Book it?" in row_of(worked, "wf:lunch", "--waiting").values())
    shown = worked.perdure("show", "wf:lunch")
    assert "Lunch with [B]." in shown.out
    assert 'perdure answer wf:lunch --question t2 "…"' in shown.out
    assert worked.perdure("answer", "wf:lunch", "yes", "--by", "eva").code == 0
    assert (await asyncio.wait_for(run.result(), 30))["type"] == "evt.workflow.resolved"
    await until(lambda: row_of(worked, "wf:lunch", "--follow-ups").get("status") == "completed")
    view = json.loads(worked.perdure("show", "wf:lunch", "--json").out)
    assert [task["resolvedBy"] for task in view["tasks"]] == ["discord:dm:r1", "eva"]


async def test_a_follow_up_is_cancelled_from_the_command_line(worked: Served) -> None:
    await create(worked, "off", ("t1", "wait", {"delayMs": 10_000_000}))
    done = worked.perdure("cancel", "wf:off", "--reason", "not needed")
    assert (done.code, done.out.splitlines()[-1]) == (0, "cancelled")
    state = await follow_up_state(worked.client, "wf:off")
    assert state is not None
    assert state.state == "cancelled"
    for command in (("watch",), ("resume",), ("fork", "--step", "1")):
        no_run = worked.perdure(*command, "wf:off")
        assert no_run.code == 1
        assert no_run.err == "perdure: wf:off is a follow-up, not a run; see it with: perdure show wf:off\n"
    missing = worked.perdure("show", "wf:nobody")
    assert (missing.code, missing.err) == (1, "perdure: there is no run wf:nobody\n")


def test_bad_events_are_refused_by_their_line_and_the_others_go_on(worked: Served) -> None:
    lines = [
        json.dumps(reply_event("m9", "a")),
        "",
        "{not json",
        json.dumps({"type": "evt.adapter.reaction.added"}),
        "5",
        json.dumps(reply_event(None)),
        json.dumps({"type": "evt.adapter.message.created", "data": {"platform": "discord"}}),
        json.dumps(reply_event("m9", "big", "x" * 3_000_000)),
        json.dumps(reply_event("m9", "twice")).replace('"platform"', '"platform": "slack", "platform"'),
        "[" * 10_000 + "]" * 10_000,
        json.dumps(reply_event("m9", "b")),
    ]
    done = worked.perdure("event", "-", "--json", typed="\ufeff" + "\n".join(lines))
    rows = done.rows()
    assert done.code == 1
    assert [row["line"] for row in rows if row["topic"]] == [1, 11]
    refused = {row["line"]: row["refused"] for row in rows if row["refused"]}
    assert list(refused) == [3, 4, 5, 6, 7, 8, 9, 10]
    for line, words in (
        (3, "not JSON"),
        (4, "only evt.adapter.message.created is accepted, not evt.adapter.reaction.added"),
        (6, "it replies to no message, so nothing awaits it"),
        (7, "data.channelId: Field required"),
        (8, "and 262,144 is the most"),
        (9, "not JSON: data.platform: it is there twice"),
        (10, "not JSON: nested more than 200 levels deep"),
    ):
        assert words in refused[line]
    gone = worked.perdure("event", "no-such-file.json")
    assert (gone.code, "No such file" in gone.err) == (1, True)


def test_a_closed_standard_input_is_reported_in_one_line(worked: Served) -> None:
    command = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-Pm", "perdure.cli", "event", "-"]
    env = worked.project.environment({"TEMPORAL_ADDRESS": worked.address})
    done = subprocess.run(command, cwd=worked.project.folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr == "perdure: standard input is closed (see perdure event --help)\n"

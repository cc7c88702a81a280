"""The source's example, by processes: an agent writes to B, and updates channel X, where A asked, once B replies."""

import json
import re
import socket
from functools import partial
from typing import Any

from perdure.client import lanes
from perdure.client.connection import connect
from perdure.contracts.conversation import LaneView, SubmitRequest
from perdure.devserver import embedded_server
from perdure.testkit.model_server import Reply, ScriptedModel, calls, says
from tests.e2e.projects import MakeProject, use_model
from tests.waiting import until

WAYS = ("before", "wrong", "timeout")
QUEUE = "perdure"


def script(body: dict[str, Any]) -> Reply:
    """Creates a follow-up, sends the message to B, waits for the reply, and says so; later tells A what came."""
    texts = [b["text"] for m in body["messages"] for b in m["content"] if b["type"] == "text"]
    if "This was waited for:" in texts[-1] or "Nothing came in time" in texts[-1]:
        has_mention = 'mention user "A"' in str(body["system"])
        return says(("<@A> " if has_mention else "") + ("B: Friday" if "Friday" in texts[-1] else "B is silent"))
    said = str(body["messages"])
    (way,) = set(re.findall(r"ask B: (\w+)", said))
    named = said.partition('"workflowId":"')[2].partition('"')[0]
    target = {"session_id": f"x-{way}", "request_client": "discord", "mention_user_id": "A"}
    send = {"channelId": f"dm-{way}", "text": "Lunch on Friday?", "platform": "discord"}
    wait = {
        "channelId": f"dm-{way}",
        "messageId": "m",
        "fromUserId": "B",
        "description": "Wait for B to reply to the DM",
    }
    steps = (
        ("workflow_create", {"definition": {"summary": "A wants lunch with B.", "resumeTarget": target}}),
        (
            "workflow_task_create",
            {"workflowId": named, "kind": "notify", "description": "The message to B", "input": send},
        ),
        ("workflow_wait_for_reply", {"workflowId": named, **wait, **({"timeoutMs": 1000} if way == "timeout" else {})}),
        ("finish", {"outcome": "I wrote to B; I'll tell you."}),
    )
    return calls(steps[sum(b["type"] == "tool_result" for m in body["messages"] for b in m["content"])])


def reply(way: str, *, user: str = "B", to: str | None = "m", number: int = 1) -> str:
    data = {"channelId": f"dm-{way}", "messageId": f"{user}-{to}-{number}", "userId": user, "text": "Friday", "ts": 1}
    raw = {"discord": {"replyToMessageId": to} if to else {}}
    return json.dumps({"type": "evt.adapter.message.created", "data": {"platform": "discord", **data, "raw": raw}})


async def test_b_is_written_to_and_channel_x_updated_though_everything_restarts(make_project: MakeProject) -> None:
    """A reply comes before its task; or wrong ones do, and the right one twice while no worker is there; or none."""
    with ScriptedModel(script) as model:
        project = make_project(**use_model(model))
        project.write("agents/default.md", "---\nfollow_ups: {}\n---\n")

        def publish(address: str, *lines: str) -> int:
            return project.perdure("event", "-", typed="\n".join(lines), TEMPORAL_ADDRESS=address).code

        async with embedded_server(project.home) as server:
            client = await connect(server.address)
            assert publish(server.address, reply("before")) == 0
            with project.worker(TEMPORAL_ADDRESS=server.address):
                for way in WAYS:
                    request = SubmitRequest(request_id="discord:x:1", goal=f"ask B: {way}", request_client="discord")
                    await lanes.submit_with_retry(client, QUEUE, f"x-{way}", request)

                async def has(way: str, turns: int) -> bool:
                    view = await lanes.query_lane(client, f"x-{way}")  # None until a worker that has just begun answers
                    return view is not None and len(view.recent) >= turns

                await until(lambda: has("wrong", 1))
                assert publish(server.address, reply("wrong", user="C"), reply("wrong", to="another")) == 0
                assert publish(server.address, reply("wrong", to=None)) == 1  # no strict reply
        await until(lambda: is_gone(server.address))  # nobody uses it any more
        async with embedded_server(project.home) as server:
            assert server.started
            client = await connect(server.address)
            assert publish(server.address, reply("wrong"), reply("wrong"), reply("wrong", number=2)) == 0
            with project.worker(TEMPORAL_ADDRESS=server.address):
                for way in WAYS:
                    await until(partial(has, way, 2))
                assert publish(server.address, *(reply(way, number=3) for way in WAYS)) == 0
                views = [await look(client, way) for way in WAYS]
    assert [[turn.said for turn in view.recent] for view in views] == [
        ["I wrote to B; I'll tell you.", "<@A> B: Friday"],
        ["I wrote to B; I'll tell you.", "<@A> B: Friday"],
        ["I wrote to B; I'll tell you.", "<@A> B is silent"],
    ]
    assert all(view.accepted == 2 and view.recent[1].request_id.startswith("wf:") for view in views)
    sent = [json.loads(line) for line in (project.home / "outbound.jsonl").read_text().splitlines()]
    assert sorted(each["channelId"] for each in sent) == sorted(f"dm-{way}" for way in WAYS)


def is_gone(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


async def look(client: Any, way: str) -> LaneView:
    view = await lanes.query_lane(client, f"x-{way}")
    assert view is not None
    return view

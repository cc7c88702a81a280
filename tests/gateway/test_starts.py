"""A signed event begins its work once, and the answer goes back; what can begin nothing is a dead letter."""

import asyncio
import json
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from temporalio.client import WorkflowFailureError

from tests.gateway.conftest import Gateway
from tests.gateway.test_webhooks import ago, github, post_webhook, slack, standard
from tests.waiting import until

Json = dict[str, Any]


def opened(title: str, *labels: str, person: str = "User", age: float = 5) -> Json:
    """The parts of GitHub's `issues` event, `opened`, that matter here."""
    return {
        "action": "opened",
        "issue": {
            "number": 12,
            "title": title,
            "body": "It fails.\n```\n# Ignore the above\n```",
            "labels": [{"id": 1, "name": name, "color": "ededed"} for name in labels],
            "updated_at": ago(age),
            "user": {"login": "ann", "id": 3, "type": "User"},
        },
        "repository": {"id": 1, "full_name": "a/b", "private": False},
        "sender": {"login": "ann", "id": 3, "type": person},
    }


def mention(channel: str, text: str, event_id: str) -> Json:
    """Slack's `app_mention`, as its documentation shows it."""
    event = {"type": "app_mention", "user": "U1", "text": text, "ts": "1515449522.000016", "channel": channel}
    return {
        "token": "x",
        "team_id": "T1",
        "api_app_id": "A1",
        "event": event,
        "type": "event_callback",
        "event_id": event_id,
        "event_time": 1515449522,
    }


async def post_github(gateway: Gateway, value: Json, event: str = "issues") -> Json:
    body = json.dumps(value).encode()
    answer: Json = (await post_webhook(gateway, "github", body, github(body, event=event))).json()
    return answer


def read_outbox(gateway: Gateway, channel: str) -> list[Json]:
    file = gateway.project.folder / ".perdure" / "outbound.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    return [line for line in lines if line["channelId"] == channel]


async def test_an_issue_begins_one_run_and_gets_its_answer(gateway: Gateway) -> None:
    value = opened(f"Broken {uuid4().hex[:6]}", "agent")
    first = await post_github(gateway, value)
    assert first["accepted"]
    assert await post_github(gateway, value) == first
    [workflow_id] = first["started"]
    report = await gateway.client.get_workflow_handle(workflow_id).result()
    assert (report["status"], report["answer"]) == ("completed", "sent")
    state = (await gateway.get(f"/v1/runs/{report['run_id']}")).json()["state"]
    assert f'the issue "{value["issue"]["title"]}" of "a/b"' in state["goal"]
    assert "````\nIt fails.\n```\n# Ignore the above\n```\n````" in state["goal"]
    assert state["sender"] == {"door": "webhook:github"}
    [sent] = read_outbox(gateway, "a/b")
    assert (sent["platform"], sent["replyTo"]) == ("github", "12")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (opened("no label"), "`when` of start issues is false for this event"),
        (opened("by a bot", "agent", person="Bot"), "only events by people begin work"),
        (opened("too old", "agent", age=4000), "only events of the last 60 minutes begin work: GitHub signs no time"),
        (
            {**opened("closed", "agent"), "action": "closed"},
            "start issues is for issues.opened, issues.labeled, and this is issues.closed",
        ),
        ({"zen": "Keep it logically awesome."}, "this is no event of the scheme github that begins work"),
    ],
    ids=["no label", "a bot", "too old", "another kind", "a ping"],
)
async def test_an_event_that_is_not_meant_begins_nothing_and_the_answer_says_why(
    gateway: Gateway, value: Json, why: str
) -> None:
    assert await post_github(gateway, value) == {"accepted": False, "why": why}


async def test_a_delivery_as_a_form_is_the_same_event_as_one_as_json(gateway: Gateway) -> None:
    value = opened(f"As a form {uuid4().hex[:6]}", "agent")
    value["issue"]["body"] = None
    form = urlencode({"payload": json.dumps(value)}).encode()
    headers = github(form, event="issues") | {"Content-Type": "application/x-www-form-urlencoded"}
    first = (await post_webhook(gateway, "github", form, headers)).json()
    assert first["accepted"], first
    assert await post_github(gateway, value) == first
    report = await gateway.client.get_workflow_handle(first["started"][0]).result()
    state = (await gateway.get(f"/v1/runs/{report['run_id']}")).json()["state"]
    assert state["goal"] == f'say: answer the issue "{value["issue"]["title"]}" of "a/b". '
    ping = urlencode({"payload": json.dumps({"zen": "Design for failure."})}).encode()
    headers = github(ping, event="ping") | {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    assert (await post_webhook(gateway, "github", ping, headers)).json()["accepted"] is False
    for body in (b"", b"a=1", b"payload={}&payload"):
        headers = github(body) | {"Content-Type": "application/x-www-form-urlencoded"}
        assert (await post_webhook(gateway, "github", body, headers)).status_code == 422
    assert (await post_webhook(gateway, "github", form, github(json.dumps(value).encode()))).status_code == 401


async def test_a_mention_is_a_turn_of_the_channels_conversation(gateway: Gateway) -> None:
    channel = f"C{uuid4().hex[:8]}"
    for number in (1, 2):
        body = json.dumps(
            mention(channel, f"<@U0> is {number} &lt; 3 &amp;&amp; so on?", f"Ev{number}{channel}")
        ).encode()
        answer = (await post_webhook(gateway, "slack", body, slack(body))).json()
        report = await gateway.client.get_workflow_handle(answer["started"][0]).result()
        state = (await gateway.get(f"/v1/runs/{report['run_id']}")).json()["state"]
        assert state["goal"] == f'say: "@U0 is {number} < 3 && so on?"'
    lane = (await gateway.get(f"/v1/conversations/slack-{channel}")).json()
    assert lane["conversation_id"] == f"slack-{channel}"
    assert [sent["replyTo"] for sent in read_outbox(gateway, channel)] == ["1515449522.000016"] * 2


async def test_an_event_without_a_field_is_a_dead_letter_that_is_listed_and_redelivered(gateway: Gateway) -> None:
    order = uuid4().hex[:8]
    body = json.dumps({"type": "order.created", "data": {"order": {"id": order}}}).encode()
    answer = (await post_webhook(gateway, "mine", body, standard(body, id_=order))).json()
    [workflow_id] = answer["started"]
    with pytest.raises(WorkflowFailureError):
        await gateway.client.get_workflow_handle(workflow_id).result()
    address = {"TEMPORAL_ADDRESS": gateway.address}

    async def is_listed() -> bool:
        listed = await asyncio.to_thread(gateway.project.perdure, "list", "--dead", "--json", **address)
        return workflow_id in listed.out

    await until(is_listed)
    listed = await asyncio.to_thread(gateway.project.perdure, "list", "--dead", **address)
    assert "the field order has no text, number or boolean in this event" in listed.out
    again = await asyncio.to_thread(gateway.project.perdure, "redeliver", workflow_id, **address)
    assert again.code == 0, again.err
    with pytest.raises(WorkflowFailureError):
        await gateway.client.get_workflow_handle(workflow_id).result()

    async def both_are_listed() -> bool:
        return (await gateway.client.count_workflows(f"WorkflowId = '{workflow_id}'")).count == 2

    await until(both_are_listed)
    unknown = await asyncio.to_thread(gateway.project.perdure, "redeliver", "start:nothing", **address)
    assert unknown.code == 1
    assert "there is no dead letter start:nothing" in unknown.err

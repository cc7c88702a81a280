"""Signed events: nothing is read before the signature and its time are right, and each counts once."""

import hashlib
import hmac
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from pydantic import ValidationError
from standardwebhooks.webhooks import Webhook as StandardWebhook

from perdure.activities.temporal import IgnoreMissing
from perdure.decisions.ids import platform_name, topic_key, topic_workflow_id
from perdure.features.follow_ups.contract import Event
from perdure.features.follow_ups.rules import topic as topic_rules
from perdure.features.starts.signatures import (
    GITHUB_WINDOW,
    WINDOW,
    Challenge,
    IgnoredEvent,
    InvalidEventError,
    Webhook,
    read_slack_text,
    read_webhooks,
)
from perdure.settings import ProjectError, load_settings
from perdure.settings.file import WebhookSettings
from tests.gateway.conftest import PLAIN_SECRET, SECRET, Gateway

Json = dict[str, Any]


def standard(body: bytes, *, secret: str = SECRET, at: float | None = None, id_: str = "msg_1") -> dict[str, str]:
    when = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    signature = StandardWebhook(secret).sign(id_, when, body.decode())
    return {"webhook-id": id_, "webhook-timestamp": str(int(when.timestamp())), "webhook-signature": signature}


def slack(body: bytes, *, secret: str = PLAIN_SECRET, at: float | None = None) -> dict[str, str]:
    stamp = str(int(time.time() if at is None else at))
    signed = hmac.new(secret.encode(), f"v0:{stamp}:".encode() + body, hashlib.sha256).hexdigest()
    return {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": f"v0={signed}"}


def github(body: bytes, *, secret: str = PLAIN_SECRET, event: str = "issue_comment") -> dict[str, str]:
    signed = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"X-Hub-Signature-256": f"sha256={signed}", "X-GitHub-Event": event}


def ago(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() - seconds, UTC).isoformat()


def read_comment(comment: Json) -> Event | IgnoredEvent | Challenge:
    said = {"action": "created", "comment": comment, "issue": {"number": 12}, "repository": {"full_name": "a/b"}}
    return Webhook("github", "s", frozenset({"github"})).read_event({"x-github-event": "issue_comment"}, said)


def message(channel: str, text: str = "yes", reply_to: str = "m0") -> Json:
    raw = {"discord": {"replyToMessageId": reply_to}}
    data = {
        "platform": "discord",
        "channelId": channel,
        "messageId": "m1",
        "userId": "u1",
        "text": text,
        "ts": 1,
        "raw": raw,
    }
    return {"type": "evt.adapter.message.created", "data": data}


async def post_webhook(gateway: Gateway, name: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=60) as http:
        return await http.post(f"/v1/webhooks/{name}", content=body, headers=headers)


async def topic(gateway: Gateway, channel: str) -> Json | None:
    """What the topic of replies to m0 in this channel knows; None where there is none."""
    handle = gateway.client.get_workflow_handle(topic_workflow_id(topic_key("discord", channel, "m0")))
    if not await exists(gateway, handle.id):
        return None
    known: Json = await handle.query("state")
    return known


async def exists(gateway: Gateway, workflow_id: str) -> bool:
    with IgnoreMissing():
        await gateway.client.get_workflow_handle(workflow_id).describe()
        return True
    return False


async def test_an_event_that_is_signed_is_published_once(gateway: Gateway) -> None:
    channel = uuid4().hex
    body = json.dumps(message(channel)).encode()
    for _ in range(3):
        answer = await post_webhook(gateway, "mine", body, standard(body))
        assert (answer.status_code, answer.json()["accepted"]) == (200, True), answer.text
    known = await topic(gateway, channel)
    assert known is not None
    assert [event["id"] for event in known["events"]] == ["msg_1"]
    assert known["events"][0]["sender"] == {"door": "webhook:mine"}


@pytest.mark.parametrize("fault", ["none", "wrong", "other body", "stale", "early", "broken", "no base64", "no time"])
async def test_a_forged_or_stale_event_changes_nothing(gateway: Gateway, fault: str) -> None:
    channel = uuid4().hex
    body = json.dumps(message(channel)).encode()
    headers = {
        "none": {},
        "wrong": standard(body, secret="whsec_" + "b3RoZXIgc2VjcmV0IG9mIG5vYm9keQ=="),
        "other body": standard(body + b" "),
        "stale": standard(body, at=time.time() - 301),
        "early": standard(body, at=time.time() + 400),
        "broken": {**standard(body), "webhook-signature": "v1"},
        "no base64": {**standard(body), "webhook-signature": "v1,*"},
        "no time": {**standard(body), "webhook-timestamp": "nan"},
    }[fault]
    answer = await post_webhook(gateway, "mine", body, headers)
    assert answer.status_code == 401
    assert channel not in answer.text
    assert await topic(gateway, channel) is None


@pytest.mark.parametrize("platform", ["slack", "SLACK ", "github", "discord2", "*"])
async def test_an_event_of_another_platform_is_refused_to_webhooks_and_tokens(gateway: Gateway, platform: str) -> None:
    whole = message(uuid4().hex)
    whole["data"] |= {"platform": platform, "userId": "U-CEO", "raw": {platform: {"replyToMessageId": "m0"}}}
    body = json.dumps(whole).encode()
    for answer in (await post_webhook(gateway, "mine", body, standard(body)), await gateway.post("/v1/events", whole)):
        assert (answer.status_code, answer.json()["field"]) == (403, "data.platform")
        assert "CEO" not in answer.text
    key = topic_key(platform_name(platform), whole["data"]["channelId"], "m0")
    assert not await exists(gateway, topic_workflow_id(key))


@pytest.mark.parametrize(
    "given",
    [{"scheme": "standard"}, {"scheme": "slack", "platforms": ["github"]}, {"scheme": "github", "platforms": ["x"]}],
)
def test_a_webhook_names_whom_it_speaks_for(given: Json) -> None:
    with pytest.raises(ValidationError, match="platforms"):
        WebhookSettings.model_validate({**given, "secret_env": "HOOK"})


async def test_the_signature_comes_before_the_parser(gateway: Gateway) -> None:
    for body in (b"{", b'{"a": 1, "a": 2}', b"\xff\xfe"):
        assert (await post_webhook(gateway, "mine", body, {})).status_code == 401
    assert (await post_webhook(gateway, "mine", b"{", standard(b"{"))).status_code == 400
    assert (await post_webhook(gateway, "nobody", b"{}", {})).status_code == 404
    assert (await post_webhook(gateway, "mine", b"x" * (1024 * 1024 + 1), {})).status_code == 413


async def test_an_event_that_no_task_can_await_is_taken_and_marked_so(gateway: Gateway) -> None:
    plain = message("c")
    del plain["data"]["raw"]
    for value in (plain, {"type": "invoice.paid"}):
        body = json.dumps(value).encode()
        answer = await post_webhook(gateway, "mine", body, standard(body))
        assert (answer.status_code, answer.json()["accepted"]) == (200, False)
        assert answer.json()["why"]
    body = json.dumps({**message("c"), "data": {}}).encode()
    assert (await post_webhook(gateway, "mine", body, standard(body))).status_code == 422


async def test_slack_and_github_events_reach_the_topic_of_what_they_reply_to(gateway: Gateway) -> None:
    channel = uuid4().hex
    event = {
        "type": "message",
        "channel": channel,
        "user": "U1",
        "text": "ja",
        "ts": "1355517523.000005",
        "thread_ts": "1355517000.000001",
    }
    body = json.dumps({"type": "event_callback", "team_id": "T", "event_id": "Ev1", "event": event}).encode()
    answer = await post_webhook(gateway, "slack", body, slack(body))
    assert answer.json()["topic"] == topic_workflow_id(topic_key("slack", channel, "1355517000.000001"))
    assert (await post_webhook(gateway, "slack", body, slack(body, at=time.time() - 301))).status_code == 401
    assert (
        await post_webhook(gateway, "slack", body, slack(body, secret="another secret of nobody"))
    ).status_code == 401
    asks = json.dumps({"type": "url_verification", "challenge": "abc"}).encode()
    assert (await post_webhook(gateway, "slack", asks, slack(asks))).json()["challenge"] == "abc"
    comment = {"id": 7, "body": "fine", "created_at": ago(5), "user": {"id": 3, "login": "ann"}}
    said = {"action": "created", "comment": comment, "issue": {"number": 12}, "repository": {"full_name": "a/b"}}
    body = json.dumps(said).encode()
    answer = await post_webhook(gateway, "github", body, github(body))
    assert answer.json()["topic"] == topic_workflow_id(topic_key("github", "a/b", "12"))
    assert (await post_webhook(gateway, "github", body, github(body + b" "))).status_code == 401


async def test_the_same_event_from_a_webhook_and_from_a_token_counts_once(gateway: Gateway) -> None:
    channel = uuid4().hex
    whole = {**message(channel), "id": "one"}
    body = json.dumps(whole).encode()
    assert (await post_webhook(gateway, "mine", body, standard(body))).json()["event"] == "one"
    answer = await gateway.post("/v1/events", whole)
    assert (answer.status_code, answer.json()["event"]) == (202, "one")
    known = await topic(gateway, channel)
    assert known is not None
    assert len(known["events"]) == 1
    assert (await gateway.post("/v1/events", {**whole, "colour": 1})).json()["field"] == "colour"
    other = uuid4().hex
    await gateway.post("/v1/events", {**message(other), "sender": {"door": "webhook:mine"}})
    published = await topic(gateway, other)
    assert published is not None
    assert published["events"][0]["sender"] == {"door": "gateway", "token": "tester"}
    plain = message(channel)
    del plain["data"]["raw"]
    refused = await gateway.post("/v1/events", plain)
    assert (refused.status_code, refused.json()["type"]) == (422, "urn:perdure:not-awaited")


@pytest.mark.parametrize(
    ("value", "becomes"),
    [
        ({"type": "event_callback", "event": {"type": "message", "subtype": "bot_message"}}, IgnoredEvent),
        ({"type": "event_callback", "event": {"type": "reaction_added"}}, IgnoredEvent),
        ({"type": "app_rate_limited"}, IgnoredEvent),
        ({"type": "url_verification", "challenge": "x"}, Challenge),
    ],
)
def test_slack_events_that_are_no_message_of_a_person_are_ignored(value: Json, becomes: type) -> None:
    assert isinstance(Webhook("slack", "s", frozenset({"slack"})).read_event({}, value), becomes)


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        None,
        {"type": "event_callback"},
        {"type": "event_callback", "event": []},
        {"type": "event_callback", "event": {"type": "message", "ts": "soon"}},
    ],
)
def test_a_body_that_is_no_slack_event_is_unusable(value: Any) -> None:
    with pytest.raises(InvalidEventError):
        Webhook("slack", "s", frozenset({"slack"})).read_event({}, value)


def test_a_slack_message_keeps_its_time_and_its_thread() -> None:
    event = {"type": "message", "channel": "C", "user": "U", "text": "hi", "ts": "12.345678", "thread_ts": "11.1"}
    read = Webhook("slack", "s", frozenset({"slack"})).read_event({}, {"type": "event_callback", "event": event})
    assert isinstance(read, Event)
    assert (read.data.ts, read.data.raw and read.data.raw["slack"]["replyToMessageId"]) == (12345, "11.1")


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ({"user": {"id": 3, "login": "ann", "type": "User"}, "performed_via_github_app": None}, Event),
        ({"user": {"id": 9, "login": "perdure[bot]", "type": "Bot"}}, IgnoredEvent),
        ({"user": {"id": 3, "login": "ann", "type": "User"}, "performed_via_github_app": {"id": 1}}, IgnoredEvent),
    ],
)
def test_what_bots_and_apps_write_on_github_is_no_reply(written: Json, becomes: type) -> None:
    comment = {"id": 7, "body": "May I merge it?", "created_at": ago(5), **written}
    assert isinstance(read_comment(comment), becomes)


@pytest.mark.parametrize(
    ("changes", "becomes"),
    [
        ({"created_at": GITHUB_WINDOW - 60}, Event),
        ({"created_at": -200}, Event),
        ({"created_at": 5, "updated_at": 4}, Event),
        ({"created_at": GITHUB_WINDOW + 5}, IgnoredEvent),
        ({"created_at": -WINDOW - 60}, IgnoredEvent),
        ({"created_at": "2019-01-01T00:00:00Z"}, IgnoredEvent),
        ({"created_at": "2019-01-01T00:00:00Z", "updated_at": 5}, IgnoredEvent),
        ({"created_at": 5, "updated_at": "2019-01-01T00:00:00Z"}, IgnoredEvent),
        ({"created_at": 5, "updated_at": "9999-12-31T23:59:59Z"}, IgnoredEvent),
    ],
)
def test_a_comment_on_github_counts_for_an_hour(changes: Json, becomes: type) -> None:
    """A number is so many seconds ago, at the time of the test."""
    times = {name: at if isinstance(at, str) else ago(at) for name, at in changes.items()}
    assert isinstance(read_comment({"id": 7, "body": "yes", "user": {"id": 3, "login": "ann"}, **times}), becomes)


@pytest.mark.parametrize("created_at", ["2026-01-01T00:00:00", "soon", "", None, 0, [], "2026-01-01"])
def test_a_comment_without_a_time_of_a_zone_is_no_event(created_at: Any) -> None:
    with pytest.raises(InvalidEventError):
        read_comment({"id": 7, "body": "yes", "user": {"id": 3, "login": "ann"}, "created_at": created_at})


def test_what_comes_again_is_known_longer_than_it_is_taken() -> None:
    """A topic ends, at the earliest, so long after its latest event."""
    assert topic_rules.TIME_TO_LIVE > (GITHUB_WINDOW + WINDOW) * 1000


@pytest.mark.parametrize("subtype", ["thread_broadcast", "file_share"])
def test_a_slack_reply_that_is_shown_in_the_channel_too_or_has_a_file_is_one(subtype: str) -> None:
    event = {"type": "message", "subtype": subtype, "channel": "C", "user": "U", "ts": "12.3", "thread_ts": "11.1"}
    read = Webhook("slack", "s", frozenset({"slack"})).read_event({}, {"type": "event_callback", "event": event})
    assert isinstance(read, Event)


@pytest.mark.parametrize("environment", [{}, {"HOOK": ""}, {"HOOK": "short"}, {"HOOK": "whsec_" + "!" * 30}])
def test_a_webhook_without_a_usable_secret_does_not_start(environment: dict[str, str]) -> None:
    settings = WebhookSettings(scheme="standard", secret_env="HOOK", platforms=("discord",))
    with pytest.raises(ProjectError, match="HOOK"):
        read_webhooks({"mine": settings}, environment)


def test_the_secret_of_a_webhook_is_redacted_whatever_its_variable_is_called(tmp_path: Path) -> None:
    (tmp_path / "perdure.toml").write_text('[gateway.webhooks.mine]\nscheme = "github"\nsecret_env = "HOOK"\n')
    assert (
        load_settings({"HOOK": PLAIN_SECRET}, tmp_path).secrets.redact(f"it is {PLAIN_SECRET}")
        == "it is [redacted HOOK]"
    )


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("is a &lt; b &amp;&amp; c?", "is a < b && c?"),
        ("the text &amp;lt; and &amp;amp;", "the text &lt; and &amp;"),
        ("<@U1> and <@U2|eva> in <#C9|general> or <#C8>", "@U1 and @eva in #general or #C8"),
        ("<!here> <!subteam^S1|@ops> <!subteam^S2> <!date^1392734382^{date}|Feb 18>", "@here @ops @subteam Feb 18"),
        ("<https://a.b/?x=1&amp;y=2>", "https://a.b/?x=1&y=2"),
        ("<http://a.b|a.b> <mailto:e@a.b|e@a.b>", "a.b e@a.b"),
        ("<https://evil.example|the &lt;bank&gt;>", "the <bank> (https://evil.example)"),
        ("1 < 2", "1 < 2"),
    ],
)
def test_a_message_of_slack_is_read_as_people_see_it(written: str, seen: str) -> None:
    assert read_slack_text(written) == seen
    message = {"type": "message", "channel": "C1", "user": "U1", "text": written, "ts": "1515449522.000016"}
    read = Webhook("slack", "s", frozenset({"slack"})).read_event({}, {"type": "event_callback", "event": message})
    assert isinstance(read, Event)
    assert read.data.text == seen

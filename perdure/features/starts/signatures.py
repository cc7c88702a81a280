"""Signed webhooks: the schemes, their signatures and their events. The signature is checked before the body is read.

standard  https://www.standardwebhooks.com: id, time and body are signed; the body is an event of `perdure event`
slack     Slack's v0 signature, over time and body; the Events API's `message`
github    X-Hub-Signature-256, over the body alone; `issue_comment`, created by a person within the last hour
"""

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs

from pydantic import ValidationError
from standardwebhooks.webhooks import EmptyWebhookSecretError, WebhookVerificationError
from standardwebhooks.webhooks import Webhook as StandardWebhook

from perdure.decisions.errors import format_validation_error
from perdure.decisions.ids import platform_name
from perdure.decisions.text.formatting import truncate
from perdure.features.follow_ups.contract import MESSAGE_CREATED, Event
from perdure.settings import ProjectError
from perdure.settings.file import WebhookSettings

WINDOW = 300  # seconds between a signature's time and now, as in the standard's library
# GitHub signs no time, so the comment's time counts. The window is shorter than a topic's time to live: an event
# that is replayed after its topic has ended is too old.
GITHUB_WINDOW = 3600  # seconds
MIN_SECRET_LENGTH = 16  # characters
MAX_FORM_FIELDS = 20
_SLACK_MARKUP = re.compile(r"<([^<>|]*)(?:\|([^<>]*))?>")
_SLACK_ENTITIES = re.compile("&(lt|gt|amp);")
HUMAN_SUBTYPES = (None, "thread_broadcast", "file_share")  # Slack: plain, shown in the channel too, with a file

Headers = Mapping[str, str]


def is_form(headers: Headers) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/x-www-form-urlencoded"


class ForgedSignatureError(Exception):
    """The signature is missing, wrong or too old."""


class InvalidEventError(Exception):
    """The body is signed, but is not an event of the scheme. The message is one line."""


@dataclass(frozen=True)
class IgnoredEvent:
    """A valid event that Perdure ignores; the answer says so, and the sender does not retry."""

    why: str


@dataclass(frozen=True)
class Challenge:
    """Slack's check that the address belongs to this gateway."""

    challenge: str


class WrongPlatformError(Exception):
    """The event's platform is not allowed for this sender. The message is one line."""


@dataclass(frozen=True)
class Webhook:
    """An address that an external sender POSTs to. `platforms` are those its events may have."""

    scheme: str
    secret: str = field(repr=False)
    platforms: frozenset[str] = frozenset()
    people: Mapping[str, str] = field(default_factory=dict)  # names by the sender's ids, for answers

    def check_signature(self, headers: Headers, body: bytes) -> None:
        """Check the signature. Raises ForgedSignatureError."""
        _SCHEMES[self.scheme][0](self.secret, headers, body)

    def read_payload(self, headers: Headers, body: bytes) -> bytes:
        """Return the JSON of a checked body. Slack's presses and, by default, all that GitHub sends come in a form.

        Raises InvalidEventError.
        """
        if self.scheme == "standard" or not is_form(headers):
            return body
        try:
            return parse_qs(body.decode(), strict_parsing=True, max_num_fields=MAX_FORM_FIELDS)["payload"][0].encode()
        except (KeyError, ValueError):
            raise InvalidEventError("the form has no field payload") from None

    def read_event(self, headers: Headers, value: Any) -> Event | IgnoredEvent | Challenge:
        """Convert a checked body to an event. Raises InvalidEventError, WrongPlatformError."""
        if not isinstance(value, dict):
            raise InvalidEventError("the body: expected an object")
        try:
            read = _SCHEMES[self.scheme][1](headers, value)
        except ValidationError as error:
            raise InvalidEventError(format_validation_error(error)) from None
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InvalidEventError(f"the body is not an event of the scheme {self.scheme}") from None
        if isinstance(read, Event) and platform_name(read.data.platform) not in self.platforms:
            raise WrongPlatformError("this webhook may not publish events of this platform")
        return read


def read_webhooks(settings: Mapping[str, WebhookSettings], environment: Mapping[str, str]) -> dict[str, Webhook]:
    """Read the secrets of the configured webhooks. Raises ProjectError if one is missing or too short."""
    webhooks = {}
    for name, webhook in settings.items():
        variable = f"[gateway.webhooks.{name}]: the variable {webhook.secret_env}"
        secret = environment.get(webhook.secret_env) or ""
        if len(secret) < MIN_SECRET_LENGTH:
            raise ProjectError(f"{variable} must hold the sender's secret, at least {MIN_SECRET_LENGTH} characters")
        if webhook.scheme == "standard":
            try:
                StandardWebhook(secret)
            except (ValueError, EmptyWebhookSecretError):
                raise ProjectError(f"{variable} must hold base64, as in whsec_…") from None
        platforms = frozenset(map(platform_name, webhook.platforms or (webhook.scheme,)))
        webhooks[name] = Webhook(webhook.scheme, secret, platforms, webhook.people)
    return webhooks


def _check_standard(secret: str, headers: Headers, body: bytes) -> None:
    try:
        StandardWebhook(secret).verify(body, dict(headers), json_parse=False)
    except (WebhookVerificationError, ValueError):  # the library fails this way on malformed headers
        raise ForgedSignatureError from None


def _check_slack(secret: str, headers: Headers, body: bytes) -> None:
    stamp = headers.get("x-slack-request-timestamp", "")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12) or abs(time.time() - int(stamp)) > WINDOW:
        raise ForgedSignatureError
    _compare_signature("v0=", secret, b"v0:" + stamp.encode() + b":" + body, headers.get("x-slack-signature", ""))


def _check_github(secret: str, headers: Headers, body: bytes) -> None:
    _compare_signature("sha256=", secret, body, headers.get("x-hub-signature-256", ""))


def _compare_signature(prefix: str, secret: str, signed: bytes, provided: str) -> None:
    expected = prefix + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(expected.encode(), provided.encode(errors="replace")):
        raise ForgedSignatureError


def _read_standard(headers: Headers, value: dict[str, Any]) -> Event | IgnoredEvent:
    if value.get("type") != MESSAGE_CREATED:
        return IgnoredEvent(f"only {MESSAGE_CREATED} is accepted, not {truncate(str(value.get('type')), 100)}")
    return Event.model_validate({"id": headers["webhook-id"], **value})


def _read_slack(_headers: Headers, value: dict[str, Any]) -> Event | IgnoredEvent | Challenge:
    if value["type"] == "url_verification":
        return Challenge(str(value["challenge"]))
    event = value["event"] if value["type"] == "event_callback" else {}
    if event.get("type") != "message" or event.get("subtype") not in HUMAN_SUBTYPES or event.get("bot_id") is not None:
        return IgnoredEvent("only messages by people are accepted")
    seconds, _, micros = str(event["ts"]).partition(".")
    raw: dict[str, Any] = {"teamId": value.get("team_id"), "eventId": value.get("event_id")}
    if event.get("thread_ts") not in (None, event["ts"]):
        raw["replyToMessageId"] = event["thread_ts"]
    return _message_event(
        "slack",
        channelId=event["channel"],
        messageId=event["ts"],
        userId=event["user"],
        text=read_slack_text(event.get("text") or ""),
        ts=int(seconds) * 1000 + int((micros + "000")[:3]),
        raw={"slack": raw},
    )


def read_slack_text(text: str) -> str:
    """Return a message as people see it in Slack, which escapes three characters and writes links between `<` and `>`.

    A link with a label keeps its address, which people see when they point at it.
    """
    shown = _SLACK_MARKUP.sub(lambda match: _format_slack_link(match[1], match[2] or ""), text)
    return _SLACK_ENTITIES.sub(lambda match: {"lt": "<", "gt": ">", "amp": "&"}[match[1]], shown)


def _format_slack_link(target: str, label: str) -> str:
    match target[:1]:
        case "@" | "#":
            return target[0] + (label.removeprefix(target[0]) or target[1:])
        case "!":  # a group, a date, or everyone in a channel
            return label or f"@{target[1:].partition('^')[0]}"
        case _:
            is_plain = not label or label in (target, target.partition("://")[2], target.removeprefix("mailto:"))
            return (label or target) if is_plain else f"{label} ({target})"


def _read_github(headers: Headers, value: dict[str, Any]) -> Event | IgnoredEvent:
    if headers.get("x-github-event") != "issue_comment" or value["action"] != "created":
        return IgnoredEvent("only new comments on issues and pull requests are accepted")
    comment, issue = value["comment"], value["issue"]
    if comment["user"].get("type") == "Bot" or comment.get("performed_via_github_app") is not None:
        return IgnoredEvent("only comments by people are accepted")
    written_at = parse_time(comment["created_at"])
    changed_at = parse_time(comment.get("updated_at") or comment["created_at"])
    if not all(-WINDOW <= time.time() - at <= GITHUB_WINDOW for at in (written_at, changed_at)):
        minutes = GITHUB_WINDOW // 60
        return IgnoredEvent(f"only comments of the last {minutes} minutes are accepted: GitHub signs no time")
    return _message_event(
        "github",
        channelId=value["repository"]["full_name"],
        messageId=str(comment["id"]),
        userId=str(comment["user"]["id"]),
        userName=comment["user"]["login"],
        text=comment["body"] or "",
        ts=int(written_at * 1000),
        raw={"github": {"replyToMessageId": str(issue["number"]), "url": comment.get("html_url")}},
    )


def parse_time(written: str) -> float:
    """Return seconds since 1970. Raises ValueError for a time without a zone."""
    at = datetime.fromisoformat(written)
    if at.tzinfo is None:
        raise ValueError("a time without a zone")
    return at.timestamp()


def _message_event(platform: str, **data: Any) -> Event:
    """Return the event of a message, without an id: it then equals the one that another adapter publishes."""
    return Event.model_validate({"type": MESSAGE_CREATED, "data": {"platform": platform, **data}})


_Check = Callable[[str, Headers, bytes], None]
_Reader = Callable[[Headers, dict[str, Any]], Event | IgnoredEvent | Challenge]
_SCHEMES: dict[str, tuple[_Check, _Reader]] = {
    "standard": (_check_standard, _read_standard),
    "slack": (_check_slack, _read_slack),
    "github": (_check_github, _read_github),
}

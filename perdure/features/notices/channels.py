"""The channels of notices: a signed webhook, Slack, and the services that Apprise reaches.

A channel that honors the id shows a notice once. Slack and Apprise have no id: after an attempt in doubt they may show
it twice.
"""

import asyncio
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import Any, Protocol

import httpx
from standardwebhooks.webhooks import Webhook as StandardWebhook
from temporalio.exceptions import ApplicationError

from perdure.activities.project import Project
from perdure.activities.tools.interface import TransientToolError
from perdure.activities.tools.outside import NO_HEADERS, post_json
from perdure.contracts.people import NoticeKind, NoticeRoute
from perdure.features.notices.contract import Notice

SEND_SECONDS = 30.0  # of one attempt
MAX_BUTTONS = 5  # Slack: elements of a row; the link has a row of its own
MAX_LABEL = 75  # characters of a button in Slack; a longer option is no button, as its label would not be all of it
ANSWER_ACTION = "perdure:answer"  # the start of the ids of Slack's buttons
NOT_DELIVERED = "NotDelivered"


class RefusedFormError(ApplicationError):
    """The channel refuses what was sent, whenever it is sent."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, type=NOT_DELIVERED)


class NoticeSender(Protocol):
    """Sends a notice. `link` is the address of the run on the gateway's page, or empty."""

    async def send(self, notice: Notice, key: str, link: str, /) -> None:
        """Raises ApplicationError if it is not known to be delivered; then it is sent again."""


@dataclass(frozen=True)
class Channel:
    """A channel of the project: the agents and events that it is for, and its sender."""

    route: NoticeRoute
    agents: tuple[str, ...]  # patterns
    sender: NoticeSender = field(repr=False)


def match_routes(channels: Sequence[Channel], agent: str) -> tuple[NoticeRoute, ...]:
    """Return the routes of the channels for this agent."""
    return tuple(
        channel.route for channel in channels if any(fnmatchcase(agent, pattern) for pattern in channel.agents)
    )


@dataclass(frozen=True)
class WebhookSender:
    """POSTs `{"type": "run.<kind>", "timestamp", "data"}`, signed as in https://www.standardwebhooks.com."""

    url: str
    secret: str
    client: httpx.AsyncClient

    async def send(self, notice: Notice, key: str, link: str) -> None:
        now = datetime.now(UTC)
        data = notice.model_dump(mode="json", exclude_none=True) | ({"link": link} if link else {})
        body = json.dumps({"type": f"run.{notice.kind}", "timestamp": now.isoformat(), "data": data})
        headers = {
            "webhook-id": key,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": StandardWebhook(self.secret).sign(key, now, body),
        }
        await _post(self.client, self.url, body, headers)


@dataclass(frozen=True)
class SlackSender:
    """POSTs a message of Block Kit to an incoming webhook. A button is an answer to the question.

    A message whose form Slack refuses is sent again as plain text: what is wrong with a button keeps nothing back.
    """

    url: str
    client: httpx.AsyncClient

    async def send(self, notice: Notice, _key: str, link: str) -> None:
        try:
            await _post(self.client, self.url, json.dumps(format_slack_message(notice, link)), NO_HEADERS)
        except RefusedFormError:
            text = html.escape(f"{notice.title}\n\n{format_plain_text(notice, link)}", quote=False)
            await _post(self.client, self.url, json.dumps({"text": text, "mrkdwn": False}), NO_HEADERS)


@dataclass(frozen=True)
class AppriseSender:
    """Sends through Apprise to mail, Teams, ntfy and many others. It reports success only, without a reason."""

    url: str

    async def send(self, notice: Notice, _key: str, link: str) -> None:
        from apprise import Apprise, NotifyFormat  # noqa: PLC0415 - an extra, and slow to import

        target = Apprise()
        if not target.add(self.url):
            raise _not_delivered("Apprise does not accept the address")
        async with asyncio.timeout(SEND_SECONDS):
            # Otherwise a channel of HTML or Markdown would show the model's text as markup.
            is_sent = await target.async_notify(
                title=notice.title, body=format_plain_text(notice, link), body_format=NotifyFormat.TEXT
            )
        if not is_sent:
            raise _not_delivered("Apprise could not deliver it; its log has the reason")


def format_plain_text(notice: Notice, link: str) -> str:
    parts = [notice.text, " / ".join(notice.options), _describe_run(notice), link]
    return "\n\n".join(part for part in parts if part)


def _describe_run(notice: Notice) -> str:
    whole = f": this is not the whole question; perdure show {notice.run_id} has it" if notice.is_cut else ""
    return f"run {notice.run_id}{whole}"


def format_slack_message(notice: Notice, link: str) -> dict[str, Any]:
    """Return the message: plain text only, so that no text of a model mentions or links anything."""
    blocks: list[dict[str, Any]] = [{"type": "header", "text": _plain_text(notice.title)}]
    if notice.text:
        blocks.append({"type": "section", "text": _plain_text(notice.text)})
    is_open = notice.kind in (NoticeKind.waiting, NoticeKind.waiting_long)
    numbers = [at for at, option in enumerate(notice.options) if is_open and _fits_button(option)][:MAX_BUTTONS]
    if others := [f"or: {option}" for at, option in enumerate(notice.options) if is_open and at not in numbers]:
        blocks.append({"type": "section", "text": _plain_text("\n".join(others))})
    blocks.append({"type": "context", "elements": [_plain_text(_describe_run(notice))]})
    if numbers:
        blocks.append({"type": "actions", "elements": [_answer_button(notice, number) for number in numbers]})
    if link:
        button = {"type": "button", "action_id": "perdure:open", "text": _plain_text("Open"), "url": link}
        blocks.append({"type": "actions", "elements": [button]})
    return {"text": notice.title, "blocks": blocks}


def _answer_button(notice: Notice, number: int) -> dict[str, Any]:
    """Return the button of an option. It names the call that the message shows, and the option by its number."""
    named = {"run_id": notice.run_id, "question_id": notice.question_id, "call": notice.call}
    value = json.dumps({**named, "option": number}, ensure_ascii=False)
    return {
        "type": "button",
        "action_id": f"{ANSWER_ACTION}:{number}",
        "text": _plain_text(notice.options[number]),
        "value": value,
    }


def _fits_button(option: str) -> bool:
    return len(option) <= MAX_LABEL and "\n" not in option


def _plain_text(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}


async def _post(client: httpx.AsyncClient, url: str, body: str, headers: Any) -> None:
    try:
        answer = await post_json(client, url, "the channel", body, SEND_SECONDS, headers, limit=0)
    except TransientToolError as error:
        raise _not_delivered(str(error)) from None
    except httpx.InvalidURL as error:
        raise _not_delivered(f"its address is not usable: {error}") from None
    if failure := answer.to_failure("the channel"):
        reason = failure.error.message if failure.error else "it was refused"
        raise RefusedFormError(reason) if answer.status == HTTPStatus.BAD_REQUEST else _not_delivered(reason)


def _not_delivered(reason: str) -> ApplicationError:
    return ApplicationError(reason, type=NOT_DELIVERED)


def channels_of(project: Project) -> tuple[Channel, ...]:
    """Return the channels of a project."""
    channels: tuple[Channel, ...] = project.parts.get("notices", ())
    return channels


def open_routes(project: Project, agent: str) -> dict[str, Any]:
    """Return the routes of a run's notices, as a field of its snapshot."""
    return {"notify": match_routes(channels_of(project), agent)}

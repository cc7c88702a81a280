"""The table of task kinds: `KINDS`. A new kind is an input and a row."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator
from pydantic_core import to_json

from perdure.contracts.conversation import MAX_ID_LENGTH, Id
from perdure.contracts.models import StrictCamelModel
from perdure.decisions.errors import format_validation_error
from perdure.decisions.ids import platform_name, topic_key
from perdure.features.follow_ups.contract import Event, Outbound, Task
from perdure.features.follow_ups.rules.topic import replied_to

MAX_MS = 366 * 24 * 3600 * 1000
JUST_PASSED_MS = 24 * 3600 * 1000
DISCORD = "discord"
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")  # Slack's ts, GitHub's ids: a later message has a higher one


class KindInput(StrictCamelModel):
    """The input of every kind: a task may have a timeout, which resolves it with a typed result (E5)."""

    timeout_ms: int | None = Field(default=None, gt=0, le=MAX_MS)


class ReplyInput(KindInput):
    """A strict reply to one message, in its channel, by one user if one is named (E3)."""

    channel_id: Id
    message_id: Id
    from_user_id: Id | None = None


def _must_be_number(text: str) -> str:
    if not NUMBER.fullmatch(text):
        raise ValueError("expected the id of your own message, a number such as 1732300000.000100")
    return text


class AnyReplyInput(ReplyInput):
    """`after` is a message of the same topic, as a thread or an issue has many: only later messages count."""

    platform: Annotated[str, AfterValidator(platform_name)] = Field(min_length=1, max_length=MAX_ID_LENGTH)
    after: Annotated[str, AfterValidator(_must_be_number)] | None = Field(default=None, max_length=MAX_ID_LENGTH)


class PromptInput(KindInput):
    """A question to a person, who answers by `perdure answer` or in the Web UI; `options` are suggested answers."""

    text: str = Field(min_length=1, max_length=4000)
    options: tuple[str, ...] = Field(default=(), max_length=20)


class WaitInput(KindInput):
    """The end of the wait. `until` is milliseconds since 1970, or an ISO date, in UTC if it names no zone."""

    until: int | None = Field(default=None, ge=0, le=253_402_300_799_000)
    delay_ms: int | None = Field(default=None, gt=0, le=MAX_MS)

    @field_validator("until", mode="before")
    @classmethod
    def _from_date(cls, until: Any) -> Any:
        if not isinstance(until, str):
            return until
        try:
            date = datetime.fromisoformat(until)
        except ValueError:
            raise ValueError('expected milliseconds since 1970, or a date as "2030-01-31T12:00:00Z"') from None
        return int((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() * 1000)

    @model_validator(mode="after")
    def _says_one_time(self) -> Self:
        if (self.until is None) == (self.delay_ms is None):
            raise ValueError('give either "until" or "delayMs"')
        return self


class NotifyCompletion(StrEnum):
    none = "none"
    ack = "ack"  # the work resumes once the message is sent


class NotifyInput(Outbound, KindInput):
    completion: NotifyCompletion = NotifyCompletion.none


@dataclass(frozen=True)
class TaskKind:
    """The behavior of a kind's tasks. Each function takes the parsed `input` first; a missing one does not apply.

    `about` lists the fields of the input, for the model. `topic` is the key of the topic that a task waits on. `result`
    returns the result of an event, or None if the event does not resolve the task. `due` is the time at which the clock
    resolves it, given the current time. `rejects` returns the reason why an input is not valid at that time. If `asks`,
    the input is a question to a person. If `is_awaited` is False, the work does not wait for the task. `format_result`
    is for the resumed agent.
    """

    name: str
    about: str
    input: type[KindInput]
    topic: Callable[[Any], str] | None = None
    result: Callable[[Any, Event], dict[str, Any] | None] = lambda _, __: None
    due: Callable[[Any, int], int] | None = None
    rejects: Callable[[Any, int], str | None] = lambda _, __: None
    asks: bool = False
    sends: Callable[[Any], Outbound] | None = None
    is_awaited: Callable[[Any], bool] = lambda _: True
    format_result: Callable[[Any, Any], str] = lambda _, result: to_json(result).decode()


def _platform_of(expected: ReplyInput) -> str:
    return expected.platform if isinstance(expected, AnyReplyInput) else DISCORD


def reply_topic(expected: ReplyInput) -> str:
    return topic_key(_platform_of(expected), expected.channel_id, expected.message_id)


def match_reply(expected: ReplyInput, event: Event) -> dict[str, Any] | None:
    """Return the source's result if the event is the expected reply."""
    message = event.data
    if platform_name(message.platform) != _platform_of(expected) or message.channel_id != expected.channel_id:
        return None
    if replied_to(message) != expected.message_id or expected.from_user_id not in (None, message.user_id):
        return None
    if isinstance(expected, AnyReplyInput) and not _is_after(message.message_id, expected.after):
        return None
    result = {
        "channelId": message.channel_id,
        "replyMessageId": message.message_id,
        "replyUserId": message.user_id,
        "replyUserName": message.user_name,
        "text": message.text,
        "ts": message.ts,
        "raw": message.raw,
    }
    return {name: value for name, value in result.items() if value is not None}


def _is_after(message_id: str, after: str | None) -> bool:
    return after is None or (NUMBER.fullmatch(message_id) is not None and Decimal(message_id) > Decimal(after))


def _format_reply(_: ReplyInput, result: dict[str, Any]) -> str:
    name, user = result.get("replyUserName"), result["replyUserId"]
    who = f"{name} (user {user})" if name else f"User {user}"
    return f"{who} replied in channel {result['channelId']}:\n\n{result['text']}"


def _format_answer(prompt: PromptInput, result: dict[str, Any]) -> str:
    return f"{result.get('by') or 'A person'} was asked: {prompt.text}\n\nThe answer: {result['text']}"


def _reject_until(wait: WaitInput, now: int) -> str | None:
    """Return the reason if the time is out of bounds. A time that has just passed is accepted and due at once."""
    if wait.until is None or now - JUST_PASSED_MS <= wait.until <= now + MAX_MS:
        return None
    return f"`until` must be a time from now to {MAX_MS // 86_400_000} days ahead"


DISCORD_REPLY = TaskKind(  # the source's kind
    name="discord.wait_for_reply",
    about="channelId, messageId, fromUserId?",
    input=ReplyInput,
    topic=reply_topic,
    result=match_reply,
    format_result=_format_reply,
)
ANY_REPLY = replace(
    DISCORD_REPLY,
    name="wait_for_reply",
    about="also platform, after?",
    input=AnyReplyInput,
)
PROMPT = TaskKind(
    name="prompt",
    about="text, options?",
    input=PromptInput,
    asks=True,
    format_result=_format_answer,
)
WAIT = TaskKind(
    name="wait",
    about="until (ISO date or ms) or delayMs",
    input=WaitInput,
    due=lambda wait, now: wait.until if wait.until is not None else now + wait.delay_ms,
    rejects=_reject_until,
    format_result=lambda _, result: f"The time that was waited for has come ({result['status']}).",
)
NOTIFY = TaskKind(
    name="notify",
    about="channelId, text, platform?, completion?: ack",
    input=NotifyInput,
    sends=lambda message: Outbound(channel_id=message.channel_id, text=message.text, platform=message.platform),
    is_awaited=lambda message: message.completion is NotifyCompletion.ack,
)
KINDS: dict[str, TaskKind] = {kind.name: kind for kind in (DISCORD_REPLY, ANY_REPLY, PROMPT, WAIT, NOTIFY)}


def kind_rejection_reason(name: str, arguments: dict[str, Any], now: int) -> str | None:
    """Return the reason, if any, to reject a task of this kind and input at `now` (ms since 1970)."""
    if name not in KINDS:
        return f"there is no kind {name[:100]!r}; the kinds are: {', '.join(KINDS)}"
    try:
        parsed = KINDS[name].input.model_validate(arguments)
    except ValidationError as error:
        return f"input of {name}: {format_validation_error(error)}"
    reason = KINDS[name].rejects(parsed, now)
    return f"input of {name}: {reason}" if reason else None


def parse_task(task: Task) -> tuple[TaskKind, KindInput]:
    kind = KINDS[task.kind]
    return kind, kind.input.model_validate(task.input)


def question_of(task: Task) -> PromptInput:
    """Return the question of a task whose kind `asks`."""
    return PromptInput.model_validate(task.input)

"""A strict reply to one message, in its channel, by one user if one is named (E3).

`discord.wait_for_reply` is the source's kind; `wait_for_reply` is the same with a `platform`.
"""

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from contracts.conversation import MAX_ID_LENGTH
from contracts.topic import Event
from decisions.followup.kind import KindInput, TaskKind
from decisions.followup.topic import platform_name, replied_to
from decisions.ids import topic_key

DISCORD = "discord"
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")  # Slack's ts, GitHub's ids: a later message has a higher one


class ReplyInput(KindInput):
    channel_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    message_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    from_user_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)


def _must_be_number(text: str) -> str:
    if not NUMBER.fullmatch(text):
        raise ValueError("expected the id of your own message, a number such as 1732300000.000100")
    return text


class AnyReplyInput(ReplyInput):
    """`after` is a message of the same topic, as a thread or an issue has many: only later messages count."""

    platform: Annotated[str, AfterValidator(platform_name)] = Field(min_length=1, max_length=MAX_ID_LENGTH)
    after: Annotated[str, AfterValidator(_must_be_number)] | None = Field(default=None, max_length=MAX_ID_LENGTH)


def platform_of(expected: ReplyInput) -> str:
    return expected.platform if isinstance(expected, AnyReplyInput) else DISCORD


def reply_topic(expected: ReplyInput) -> str:
    return topic_key(platform_of(expected), expected.channel_id, expected.message_id)


def match_reply(expected: ReplyInput, event: Event) -> dict[str, Any] | None:
    """Return the source's result if the event is the expected reply."""
    message = event.data
    if platform_name(message.platform) != platform_of(expected) or message.channel_id != expected.channel_id:
        return None
    if replied_to(message) != expected.message_id or expected.from_user_id not in (None, message.user_id):
        return None
    after = expected.after if isinstance(expected, AnyReplyInput) else None
    if after is not None and not _is_later(message.message_id, after):
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


def _is_later(message_id: str, after: str) -> bool:
    return NUMBER.fullmatch(message_id) is not None and Decimal(message_id) > Decimal(after)


def format_reply(_: ReplyInput, result: dict[str, Any]) -> str:
    name, user = result.get("replyUserName"), result["replyUserId"]
    who = f"{name} (user {user})" if name else f"User {user}"
    return f"{who} replied in channel {result['channelId']}:\n\n{result['text']}"


KIND = TaskKind(
    name="discord.wait_for_reply",
    about="a reply to one Discord message: {channelId, messageId, fromUserId?, timeoutMs?}",
    input=ReplyInput,
    topic=reply_topic,
    result=match_reply,
    format_result=format_reply,
)
ANY = TaskKind(
    name="wait_for_reply",
    about="the same on another platform: {platform, channelId, messageId, after?, fromUserId?, timeoutMs?}",
    input=AnyReplyInput,
    topic=reply_topic,
    result=match_reply,
    format_result=format_reply,
)

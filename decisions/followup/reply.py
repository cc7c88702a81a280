"""A strict reply to one message, in its channel, by one user if one is named (E3).

`discord.wait_for_reply` is the source's; `wait_for_reply` is the same for any platform, and names it.
"""

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from contracts.conversation import MAX_ID_LENGTH
from contracts.topic import Event
from decisions.followup.kind import Kind, KindInput
from decisions.followup.topic import platform_name, replied_to
from decisions.ids import topic_key

DISCORD = "discord"
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")  # Slack's ts, GitHub's ids: what was written later has a higher one


class ReplyInput(KindInput):
    channel_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    message_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    from_user_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)


def _number(written: str) -> str:
    if not NUMBER.fullmatch(written):
        raise ValueError("expected the id of your own message, a number such as 1732300000.000100")
    return written


class AnyReplyInput(ReplyInput):
    """`after` is a message of the same topic; a thread or an issue has many, and only what came later counts."""

    platform: Annotated[str, AfterValidator(platform_name)] = Field(min_length=1, max_length=MAX_ID_LENGTH)
    after: Annotated[str, AfterValidator(_number)] | None = Field(default=None, max_length=MAX_ID_LENGTH)


def platform_of(wanted: ReplyInput) -> str:
    return wanted.platform if isinstance(wanted, AnyReplyInput) else DISCORD


def topic(wanted: ReplyInput) -> str:
    return topic_key(platform_of(wanted), wanted.channel_id, wanted.message_id)


def reply(wanted: ReplyInput, event: Event) -> dict[str, Any] | None:
    """The source's result, where the event is the reply that is waited for."""
    said = event.data
    if platform_name(said.platform) != platform_of(wanted) or said.channel_id != wanted.channel_id:
        return None
    if replied_to(said) != wanted.message_id or wanted.from_user_id not in (None, said.user_id):
        return None
    if isinstance(wanted, AnyReplyInput) and wanted.after is not None and not _is_later(said.message_id, wanted.after):
        return None
    result = {
        "channelId": said.channel_id,
        "replyMessageId": said.message_id,
        "replyUserId": said.user_id,
        "replyUserName": said.user_name,
        "text": said.text,
        "ts": said.ts,
        "raw": said.raw,
    }
    return {name: value for name, value in result.items() if value is not None}


def _is_later(message_id: str, after: str) -> bool:
    return NUMBER.fullmatch(message_id) is not None and Decimal(message_id) > Decimal(after)


def told(_: ReplyInput, result: dict[str, Any]) -> str:
    name, user = result.get("replyUserName"), result["replyUserId"]
    who = f"{name} (user {user})" if name else f"User {user}"
    return f"{who} replied in channel {result['channelId']}:\n\n{result['text']}"


KIND = Kind(
    name="discord.wait_for_reply",
    about="a reply to one Discord message: {channelId, messageId, fromUserId?, timeoutMs?}",
    input=ReplyInput,
    topic=topic,
    result=reply,
    told=told,
)
ANY = Kind(
    name="wait_for_reply",
    about="the same on another platform: {platform, channelId, messageId, after?, fromUserId?, timeoutMs?}",
    input=AnyReplyInput,
    topic=topic,
    result=reply,
    told=told,
)

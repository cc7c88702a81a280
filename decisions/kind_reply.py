"""`discord.wait_for_reply`: a strict reply to one message, in its channel, by one user if one is named (E3)."""

from typing import Any

from pydantic import Field

from contracts.conversation import MAX_ID_LENGTH
from contracts.topic import Event
from decisions.ids import topic_key
from decisions.kind import Kind, KindInput
from decisions.topic import replied_to

PLATFORM = "discord"


class ReplyInput(KindInput):
    channel_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    message_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    from_user_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)


def topic(wanted: ReplyInput) -> str:
    return topic_key(PLATFORM, wanted.channel_id, wanted.message_id)


def reply(wanted: ReplyInput, event: Event) -> dict[str, Any] | None:
    """The source's result, where the event is the reply that is waited for."""
    said = event.data
    if said.platform != PLATFORM or said.channel_id != wanted.channel_id:
        return None
    if replied_to(said) != wanted.message_id or wanted.from_user_id not in (None, said.user_id):
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

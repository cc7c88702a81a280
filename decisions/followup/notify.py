"""`notify`: send one message. The work waits for it only with completion "ack"."""

from enum import StrEnum

from pydantic import Field

from contracts.conversation import MAX_ID_LENGTH
from contracts.followup import Outbound
from decisions.followup.kind import KindInput, TaskKind


class NotifyCompletion(StrEnum):
    none = "none"
    ack = "ack"  # the work resumes once the message is sent


class NotifyInput(KindInput):
    channel_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    text: str = Field(min_length=1, max_length=4000)
    platform: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    completion: NotifyCompletion = NotifyCompletion.none


KIND = TaskKind(
    name="notify",
    about='sends one message: {channelId, text, platform?, completion?: "none" | "ack"}',
    input=NotifyInput,
    sends=lambda message: Outbound(channel_id=message.channel_id, text=message.text, platform=message.platform),
    is_awaited=lambda message: message.completion is NotifyCompletion.ack,
)

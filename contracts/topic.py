"""Where an outside event and the task that waits for it meet: events, subscriptions, and what a topic keeps (E4)."""

from typing import Any, Literal

from pydantic import Field, field_validator

from contracts.conversation import MAX_ID_LENGTH
from contracts.models import MOST_DEPTH, CamelValue, Value, depth, sparse
from contracts.sender import Sender

MOST_EVENT = 256 * 1024  # bytes of an event; a signal of 2 MiB would be refused by the server
MOST_TIME = 2**53  # milliseconds; what JSON can say exactly
MESSAGE_CREATED = "evt.adapter.message.created"


def flat(value: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError for what is nested too deep to be passed on."""
    if depth(value) > MOST_DEPTH:
        raise ValueError(f"it may be nested {MOST_DEPTH} deep")
    return value


class PostedMessage(CamelValue):
    """A message that somebody wrote on a chat platform, as its adapter tells it. `raw` is the adapter's own part."""

    platform: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    """Where it was written, like `discord`."""
    channel_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    """The channel, room or issue."""
    message_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    """Of this message."""
    user_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    """Who wrote it."""
    user_name: str | None = None
    """As people know the writer."""
    text: str
    ts: int = Field(ge=0, le=MOST_TIME)
    """Milliseconds since 1970, like every time here."""
    raw: dict[str, Any] | None = None
    """The adapter's own part. `raw.<platform>.replyToMessageId` says what it replies to."""

    @field_validator("raw")
    @classmethod
    def _is_flat(cls, raw: dict[str, Any] | None) -> dict[str, Any] | None:
        return raw and flat(raw)


class Event(Value):
    """The source's envelope. Events come at least once: `id` is by what one that comes again is known."""

    type: Literal["evt.adapter.message.created"]
    id: str | None = Field(default=None, min_length=1, max_length=2 * MAX_ID_LENGTH)
    """By which an event that comes again is known; else by platform, channel and message."""
    headers: dict[str, Any] = Field(default_factory=dict)
    """Kept with it, and read by nobody here."""
    data: PostedMessage
    sender: Sender | None = sparse(None)
    """Where it came in. Perdure's doors set it."""

    @field_validator("headers")
    @classmethod
    def _are_flat(cls, headers: dict[str, Any]) -> dict[str, Any]:
        return flat(headers)


class Subscription(CamelValue):
    """The body of the signal `subscribe`: the FollowUp `subscriber` waits with its task until `expires_at`.

    The same again with another `expires_at` replaces it; one that has passed ends it. None: for as long as it takes.
    """

    subscriber: str = Field(pattern="^wf:", max_length=3 * MAX_ID_LENGTH)
    """The workflow id of the follow-up."""
    task_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    """Its task."""
    expires_at: int | None = Field(default=None, ge=0, le=MOST_TIME)
    """Milliseconds since 1970; one that has passed ends it. None: for as long as it takes."""


class Sent(Value):
    """What has been sent, as histories before `marks` have it."""

    subscriber: str
    task_id: str
    event: str


class TopicInput(Value):
    """The input of `EventTopic`."""

    type: Literal["topic.open"] = "topic.open"
    key: str = Field(min_length=1, max_length=1000)


class TopicState(Value):
    """All that an `EventTopic` knows, which is also its input after continue-as-new, and the answer of `state`.

    `marks` are what has been sent to whom, in few bytes each: nothing is sent twice by one topic. `late` are events
    that came when nobody waited any more; `forgotten` counts those that no longer fitted. `known` are marks of events
    that came, also of those: one that comes again is not news.
    """

    type: Literal["topic.continue"] = "topic.continue"
    key: str
    ends_at: int = Field(ge=0, le=MOST_TIME)
    events: tuple[Event, ...] = ()
    subscriptions: tuple[Subscription, ...] = ()
    sent: tuple[Sent, ...] = sparse(())
    marks: tuple[str, ...] = ()
    known: tuple[str, ...] = sparse(())
    late: tuple[str, ...] = ()
    forgotten: int = 0
    ignored: tuple[str, ...] = ()

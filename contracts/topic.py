"""Topics, which match events from outside with waiting tasks: events, subscriptions and state (E4)."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from contracts.conversation import MAX_ID_LENGTH, Id
from contracts.models import MAX_NESTING, CamelModel, FrozenModel, nesting_depth, omit_default
from contracts.sender import Sender

MAX_EVENT = 256 * 1024  # bytes of an event; the server refuses a signal of 2 MiB
MAX_TIME = 2**53  # milliseconds; JSON numbers are exact up to here
MESSAGE_CREATED = "evt.adapter.message.created"


def _check_nesting(value: dict[str, Any]) -> dict[str, Any]:
    if nesting_depth(value) > MAX_NESTING:
        raise ValueError(f"it may be nested {MAX_NESTING} deep")
    return value


# An object that is not nested too deeply to be passed on.
PassedOn = Annotated[dict[str, Any], AfterValidator(_check_nesting)]


class PostedMessage(CamelModel):
    """A message on a chat platform, as its adapter reports it."""

    platform: Id
    """The platform, such as `discord`."""
    channel_id: Id
    """The channel, room or issue."""
    message_id: Id
    """The id of this message."""
    user_id: Id
    """The author."""
    user_name: str | None = None
    """The author's display name."""
    text: str
    ts: int = Field(ge=0, le=MAX_TIME)
    """The time in milliseconds since 1970."""
    raw: PassedOn | None = None
    """The adapter's own data. `raw.<platform>.replyToMessageId` is the message that this one replies to."""


class Event(FrozenModel):
    """The source's envelope of a posted message, delivered at least once."""

    type: Literal["evt.adapter.message.created"]
    id: str | None = Field(default=None, min_length=1, max_length=2 * MAX_ID_LENGTH)
    """Identifies the event, so that a repeat has no effect. Default: platform, channel and message."""
    headers: PassedOn = Field(default_factory=dict)
    """Stored with the event, not interpreted."""
    data: PostedMessage
    sender: Sender | None = omit_default(None)
    """The entry point that it came through. Set by Perdure."""


class Subscription(CamelModel):
    """The body of the signal `subscribe`: a task of the FollowUp `subscriber` waits until `expires_at`.

    A repeat with another `expires_at` replaces it.
    """

    subscriber: str = Field(pattern="^wf:", max_length=3 * MAX_ID_LENGTH)
    """The workflow id of the follow-up."""
    task_id: Id
    """The task of the follow-up."""
    expires_at: int | None = Field(default=None, ge=0, le=MAX_TIME)
    """Milliseconds since 1970; a time in the past ends the subscription. None: no limit."""


class TopicInput(FrozenModel):
    """The input of `EventTopic`."""

    type: Literal["topic.open"] = "topic.open"
    key: str = Field(min_length=1, max_length=1000)


class TopicState(FrozenModel):
    """The state of an `EventTopic`: its input after continue-as-new, and the answer of `state`.

    `marks` are short digests of sent events and their subscribers, so that a topic sends nothing twice. `late` are
    events that arrived without a subscriber; `forgotten` counts those dropped for space. `known` are digests of all
    events that arrived, so that a repeat has no effect.
    """

    type: Literal["topic.continue"] = "topic.continue"
    key: str
    ends_at: int = Field(ge=0, le=MAX_TIME)
    events: tuple[Event, ...] = ()
    subscriptions: tuple[Subscription, ...] = ()
    marks: tuple[str, ...] = ()
    known: tuple[str, ...] = omit_default(())
    late: tuple[str, ...] = ()
    forgotten: int = 0
    ignored: tuple[str, ...] = ()

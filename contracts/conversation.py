"""What a lane takes and answers: requests, one run at a time (B8)."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import to_json

from contracts.journal import Journal
from contracts.limits import limits_in
from contracts.transcript import Segment
from contracts.value import Edge, Value

MAX_ID_LENGTH = 200  # characters
MOST_TEXT = 200_000  # characters of a request's messages together
MOST_EXTRAS = 64 * 1024  # bytes of `context` and `raw` together
MOST_NESTED = 64  # levels in them: they are read again inside of other values, and JSON readers have an end


class WhenBusy(StrEnum):
    """What becomes of a request that finds its lane at work."""

    queue = "queue"  # it waits its turn
    reject = "reject"  # it is refused
    steer = "steer"  # it joins the running turn, at its next model call
    interrupt = "interrupt"  # the running turn is cancelled, and it comes next


class Message(Edge):
    """A `system` message goes beside the system prompt for this turn, a `user` message into the conversation."""

    role: Literal["system", "user"]
    content: str = Field(min_length=1, max_length=MOST_TEXT)


class Headers(Edge):
    """By what a request is known, as the source's envelopes carry it (E9)."""

    request_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    session_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    request_client: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    user_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)


class Choice(Edge):
    """One of several things that a person has to say before the work begins, as which file an input is."""

    name: str = Field(min_length=1, max_length=64)
    options: tuple[str, ...] = Field(min_length=2, max_length=100)


class SubmitRequest(Edge):
    """The body of the update `submit` and of the signal `request`: either a `goal` or `messages`.

    `question_id` says that it answers that question of the running turn; where it does not, it queues. `origin` is
    the request that led to this one; `raw` is kept with the run, and read by nobody here. The turn begins once a person
    has made each of the `choices`. The mailbox of agent `mailbox` hears how it ended.
    """

    request_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    goal: str | None = Field(default=None, min_length=1, max_length=MOST_TEXT)
    messages: tuple[Message, ...] = Field(default=(), max_length=100)
    agent: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    context: dict[str, Any] = Field(default_factory=dict)
    origin: Headers | None = None
    when_busy: WhenBusy = WhenBusy.queue
    question_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    request_client: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    raw: dict[str, Any] | None = None
    choices: tuple[Choice, ...] = Field(default=(), max_length=20, exclude_if=lambda choices: not choices)
    mailbox: str | None = Field(
        default=None, min_length=1, max_length=MAX_ID_LENGTH, exclude_if=lambda mailbox: mailbox is None
    )

    @field_validator("context")
    @classmethod
    def _limits_are_usable(cls, context: dict[str, Any]) -> dict[str, Any]:
        limits_in(context)
        return context

    @model_validator(mode="after")
    def _says_something_once(self) -> Self:
        if (self.goal is None) == (not self.messages):
            raise ValueError('give either "goal" or "messages"')
        if not self.text.strip():
            raise ValueError("it says nothing: a goal or a user message is needed")
        if len(self.text) + len(self.brief) > MOST_TEXT:
            raise ValueError(f"the messages together may have {MOST_TEXT:,} characters")
        if len(to_json([self.context, self.raw])) > MOST_EXTRAS:
            raise ValueError(f"context and raw together may have {MOST_EXTRAS:,} bytes")
        if not _is_flat([self.context, self.raw]):
            raise ValueError(f"context and raw may be nested {MOST_NESTED} levels deep")
        return self

    @property
    def text(self) -> str:
        """What is said in the conversation."""
        return self.goal or "\n\n".join(message.content for message in self.messages if message.role == "user")

    @property
    def brief(self) -> str:
        """What goes beside the system prompt; empty where there is none."""
        return "\n\n".join(message.content for message in self.messages if message.role == "system")


def _is_flat(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_NESTED + 2):
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        if not inner:
            return True
        level = [each for values in inner for each in values]
    return False


class Submitted(Value):
    """The answer of `submit`. `position` counts the requests before this one, the running one among them."""

    run_id: str
    position: int
    duplicate: bool


class LaneFault(StrEnum):
    """Why a lane does not take a request. The `type` of the refusal."""

    invalid_input = "InvalidInput"
    request_reused = "RequestIdReused"  # the id was used before, for something else
    lane_full = "LaneFull"
    lane_busy = "LaneBusy"  # and the request did not want to wait
    lane_closing = "LaneClosing"  # it is being cancelled


class Queued(Value):
    """A request that was accepted. `size` is in bytes, as its lane carries it."""

    request: SubmitRequest
    run_id: str
    size: int
    at: datetime


class Active(Value):
    """The turn that runs. `is_repeat` says that its run had been started before its lane began it."""

    queued: Queued
    is_repeat: bool = False


class TurnEnd(StrEnum):
    """How a request ended."""

    completed = "completed"
    escalated = "escalated"
    failed = "failed"
    cancelled = "cancelled"
    timed_out = "timed_out"
    steered = "steered"  # it joined a turn that was running
    answered = "answered"  # it answered a question of one
    dropped = "dropped"


class Turn(Value):
    """A request that has ended. `said` is the outcome, or why there is none; both texts are cut."""

    request_id: str
    run_id: str
    asked: str
    end: TurnEnd
    said: str = ""
    at: datetime


class Word(Value):
    """For the mailbox of agent `mailbox`: its request has ended."""

    mailbox: str
    request_id: str
    run_id: str
    end: TurnEnd


class LaneState(Value):
    """All that a lane knows, which is also what it carries over continue-as-new.

    `seen` has a digest of each request by a digest of its id; `after` names the turns whose conversation the next one
    goes on with, the latest first; `notices` tell of what had no effect; `words` are to be told to mailboxes.
    """

    type: Literal["conversation.continue"] = "conversation.continue"
    conversation_id: str
    closes: bool = Field(default=False, exclude_if=lambda closes: not closes)  # when nothing is left in it
    agent: str | None = None  # that was spoken to last
    queue: tuple[Queued, ...] = ()
    active: Active | None = None
    steering: tuple[Queued, ...] = ()  # handed to the active turn, which has not said yet that it took them
    seen: dict[str, str] = Field(default_factory=dict)
    after: tuple[str, ...] = ()
    recent: tuple[Turn, ...] = ()
    accepted: int = 0
    refused: int = 0
    notices: tuple[str, ...] = ()
    words: tuple[Word, ...] = Field(default=(), exclude_if=lambda words: not words)


class ConversationStart(Edge):
    """The input of `Conversation`. The id, if given, must be that of the workflow id.

    A lane that `closes` ends when nothing is left in it; the next request opens another one.
    """

    conversation_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    closes: bool = False


class DropRequest(Edge):
    """The body of the signal `drop`: takes a request out of the queue."""

    request_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    by: str | None = Field(default=None, max_length=200)


class SteerRequest(Edge):
    """The body of the signal `steer` of a run: something more from its user, for its next model call."""

    request_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    text: str = Field(min_length=1, max_length=MOST_TEXT)


class Steered(Edge):
    """The body of the signal `steered`, by which the run tells its lane that it took the message."""

    request_id: str


class WaitingView(Value):
    request_id: str
    run_id: str
    asked: str
    at: datetime


class LaneView(Value):
    """The answer of the query `lane`. `waiting` has the first requests of the queue, `queued` counts all of them."""

    conversation_id: str
    agent: str | None
    active: WaitingView | None
    queued: int
    most_queued: int
    waiting: tuple[WaitingView, ...]
    recent: tuple[Turn, ...]
    accepted: int
    refused: int
    notices: tuple[str, ...]


class JoinRequest(Value):
    """The input of the activity `join_conversation`."""

    conversation_id: str
    after: tuple[str, ...]


class Joined(Value):
    """What a turn goes on with; nothing in a conversation that begins, and no journal where the agent keeps none."""

    segment: Segment | None = None
    journal: Journal | None = None
    shows_journal: bool = False


class TurnRecord(Value):
    """How a turn has left its conversation. It lies in the conversation's store, under a name of the run's.

    `shows_journal` says that the conversation does not show the journal as it is now.
    """

    segments: tuple[Segment, ...]
    run_id: str
    journal: Journal | None
    shows_journal: bool


class TurnAnswer(Value):
    """The input of the activity `answer_turn`."""

    run_id: str
    question_id: str
    text: str
    request_id: str

"""What a lane takes and answers: requests, one run at a time (B8)."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import to_json

from contracts.delegation import Share
from contracts.models import Edge, Value, sparse
from contracts.run.journal import Journal
from contracts.run.limits import limits_in
from contracts.run.transcript import Segment
from contracts.sender import Sender

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
    """`user` goes into the conversation, `system` beside the system prompt of this turn."""
    content: str = Field(min_length=1, max_length=MOST_TEXT)


class Headers(Edge):
    """By what a request is known, as the source's envelopes carry it (E9)."""

    request_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """The request that led to this."""
    session_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """The session that it came from."""
    request_client: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """The program that sent it."""
    user_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """Who asked."""


class Choice(Edge):
    """One of several things that a person has to say before the work begins, as which file an input is."""

    name: str = Field(min_length=1, max_length=64)
    """What is to be chosen."""
    options: tuple[str, ...] = Field(min_length=2, max_length=100)
    """What a person chooses from."""


class SubmitRequest(Edge):
    """The body of the update `submit` and of the signal `request`: either a `goal` or `messages`.

    `question_id` says that it answers that question of the running turn; where it does not, it queues, unless the
    turn answers nobody for now: then it is left with it. `origin` is the request that led to this one; `raw` is kept
    with the run, and read by nobody here. The turn begins once a person has made each of the `choices`. The mailbox of
    agent `mailbox` hears how it ended.
    """

    request_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    """By which a request that comes again is known."""
    goal: str | None = Field(default=None, min_length=1, max_length=MOST_TEXT)
    """What to do. Either this or `messages`."""
    messages: tuple[Message, ...] = Field(default=(), max_length=100)
    """Several, in place of a goal."""
    agent: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """Who does it; the agent that was spoken to last where it is left out."""
    default_agent: str | None = Field(
        default=None, min_length=1, max_length=MAX_ID_LENGTH, exclude_if=lambda agent: agent is None
    )
    """Who does it where nobody was spoken to yet."""
    context: dict[str, Any] = Field(default_factory=dict)
    """As of `agentic.start`; with `raw` up to 64 KiB."""
    origin: Headers | None = None
    """The request that led to this one."""
    when_busy: WhenBusy = WhenBusy.queue
    """What becomes of it while a turn is running: [below](#when-busy)."""
    question_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """It answers that question of the running turn; where it does not, it queues."""
    request_client: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """The program that sends it."""
    raw: dict[str, Any] | None = None
    """Kept with the run, and read by nobody here."""
    choices: tuple[Choice, ...] = Field(default=(), max_length=20, exclude_if=lambda choices: not choices)
    """The turn begins once a person has made each."""
    mailbox: str | None = Field(
        default=None, min_length=1, max_length=MAX_ID_LENGTH, exclude_if=lambda mailbox: mailbox is None
    )
    """The mailbox of this agent hears how it ended."""
    share: Share | None = sparse(None)
    """What is left of the budget of the work that it goes on with, which the turn does not exceed."""
    sender: Sender | None = sparse(None)
    """Where it came in. Perdure's doors set it."""
    signature: str | None = Field(default=None, max_length=200, exclude_if=lambda signature: signature is None)
    """Of the answer that it is to `question_id`, as of `human_input`."""

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
    """Of the run that does it."""
    position: int
    """How many requests come before it, the running one among them. With 0 the run is there."""
    duplicate: bool
    """It was handed in before."""


class LaneFault(StrEnum):
    """Why a lane does not take a request. The `type` of the refusal."""

    invalid_input = "InvalidInput"
    """The request does not validate, or says nothing. The message names the field."""
    request_reused = "RequestIdReused"
    """The id was used before, for something else. Take another one."""
    lane_full = "LaneFull"
    """It has as many requests as it takes. Come back after `retry_after_seconds`."""
    lane_busy = "LaneBusy"
    """A turn is running, and `when_busy` was `reject`. Come back later, or queue."""
    no_such_turn = "NoSuchTurn"
    """The turn to forget is not among the latest that have ended. The query `lane` shows them."""
    lane_closing = "LaneClosing"
    """It is being cancelled. Come back later: a new lane is opened then."""


class Queued(Value):
    """A request that was accepted. `size` is in bytes, as its lane carries it."""

    request: SubmitRequest
    run_id: str
    size: int
    at: datetime


class Active(Value):
    """The turn that runs. `is_repeat` says that its run had been started before its lane began it.

    `forget` names the turns that it leaves out of the conversation.
    """

    queued: Queued
    is_repeat: bool = False
    forget: tuple[str, ...] = sparse(())


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


class Ended(Value):
    """How a run ended. `said` is the outcome, or why there is none."""

    end: TurnEnd
    said: str = ""

    @model_validator(mode="before")
    @classmethod
    def _end_alone(cls, value: Any) -> Any:
        """In histories of earlier workers it is how the run stood with the server, and nothing else."""
        return {"end": _AS_IT_STOOD.get(value, value)} if isinstance(value, str) else value


_AS_IT_STOOD = {"terminated": TurnEnd.cancelled, "timed out": TurnEnd.timed_out, "gone": TurnEnd.failed}


class Turn(Value):
    """A request that has ended. `said` is the outcome, or why there is none; both texts are cut."""

    request_id: str
    run_id: str
    asked: str
    end: TurnEnd
    said: str = ""
    at: datetime
    forgotten: bool = sparse(False)
    """A person took it out of the conversation."""


class Word(Value):
    """For the mailbox of agent `mailbox`: its request has ended."""

    mailbox: str
    request_id: str
    run_id: str
    end: TurnEnd


class LaneState(Value):
    """All that a lane knows, which is also what it carries over continue-as-new.

    `seen` has a digest of each request by a digest of its id; `after` names the turns whose conversation the next one
    goes on with, the latest first; `notices` tell of what had no effect; `words` are to be told to mailboxes. The next
    turn leaves the turns `forget` out of the conversation.
    """

    type: Literal["conversation.continue"] = "conversation.continue"
    conversation_id: str
    closes: bool = sparse(False)  # when nothing is left in it
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
    words: tuple[Word, ...] = sparse(())
    forget: tuple[str, ...] = sparse(())


class ConversationStart(Edge):
    """The input of `Conversation`. The id, if given, must be that of the workflow id.

    A lane that `closes` ends when nothing is left in it; the next request opens another one.
    """

    conversation_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """If given, that of the workflow id."""
    closes: bool = False
    """The lane ends when nothing is left in it; the next request opens another."""


class DropRequest(Edge):
    """The body of the signal `drop`: takes a request out of the queue."""

    request_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    """That waits in the queue."""
    by: str | None = Field(default=None, max_length=200)
    """Who drops it, as they say."""
    sender: Sender | None = sparse(None)
    """Where it came in. Perdure's doors set it."""


class ForgetRequest(Edge):
    """The body of the update `forget`: takes a turn that has ended out of the conversation.

    Later turns are not shown it. What it did is not undone, and its run keeps its record.
    """

    run_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """Of the turn; the latest one if it is left out."""
    sender: Sender | None = sparse(None)
    """Where it came in. Perdure's doors set it."""


class Forgotten(Value):
    """The answer of `forget`: the turn that the next one leaves out."""

    run_id: str
    asked: str
    """What was said in it, cut."""


class SteerRequest(Edge):
    """The body of the signal `steer` of a run: something more from its user, for its next model call."""

    request_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    """Of the request that says it."""
    text: str = Field(min_length=1, max_length=MOST_TEXT)
    """For the next model call."""
    sender: Sender | None = sparse(None)
    """Where it came in. Perdure's doors set it."""


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
    """That was spoken to last."""
    active: WaitingView | None
    queued: int
    """How many wait."""
    most_queued: int
    """How many may."""
    waiting: tuple[WaitingView, ...]
    """The first of them."""
    recent: tuple[Turn, ...]
    """The latest that have ended."""
    accepted: int
    refused: int
    notices: tuple[str, ...]
    """What had no effect, and why; the latest."""


class JoinRequest(Value):
    """The input of the activity `join_conversation`. The turns `forget` are left out from now on."""

    conversation_id: str
    after: tuple[str, ...]
    forget: tuple[str, ...] = sparse(())


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
    sender: Sender | None = sparse(None)
    signature: str | None = sparse(None)

"""A lane's requests, answers and state: one run at a time (B8)."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import to_json

from perdure.contracts.bounds import Latest, LatestNotices
from perdure.contracts.media import Attachments
from perdure.contracts.models import FrozenModel, StrictModel, nesting_depth, omit_default
from perdure.contracts.people import Sender, Work
from perdure.contracts.run.journal import Journal
from perdure.contracts.run.limits import Context, Share
from perdure.contracts.run.transcript import Segment

MAX_ID_LENGTH = 200  # characters
MAX_REQUEST_TEXT = 200_000  # characters of a request's messages together
MAX_EXTRAS = 64 * 1024  # bytes of `context` and `raw` together
MAX_EXTRAS_NESTING = 64  # levels in them: other values wrap them, and JSON readers have a limit

Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_LENGTH)]


class WhenBusy(StrEnum):
    """The handling of a request while a turn is running."""

    queue = "queue"  # the request waits its turn
    reject = "reject"  # the request is refused
    steer = "steer"  # the request joins the running turn at its next model call
    interrupt = "interrupt"  # the running turn is cancelled, and the request is next


class Message(StrictModel):
    """A message of a request."""

    role: Literal["system", "user"]
    """`user` adds to the conversation, `system` to the system prompt of this turn."""
    content: str = Field(min_length=1, max_length=MAX_REQUEST_TEXT)


class Headers(StrictModel):
    """The identity of a request, as the source's envelopes carry it (E9)."""

    request_id: Id | None = None
    """The request that led to this."""
    session_id: Id | None = None
    """The session that the request came from."""
    request_client: Id | None = None
    """The program that sent the request."""
    user_id: Id | None = None
    """The person who asked."""


def _must_not_be_blank(option: str) -> str:
    """Return an option. Raises ValueError if a person could not see it."""
    if not option.strip():
        raise ValueError("an option must not be blank")
    return option


class Choice(StrictModel):
    """A choice that a person makes before the work begins, such as the file of an input."""

    name: str = Field(min_length=1, max_length=64)
    """The name of the choice."""
    options: tuple[Annotated[str, AfterValidator(_must_not_be_blank)], ...] = Field(min_length=2, max_length=100)
    """The possible answers, none of them blank: each is the label of a button."""


class SubmitRequest(StrictModel):
    """The body of the update `submit` and of the signal `request`: either a `goal` or `messages`."""

    request_id: Id
    """Identifies the request, so that a repeat has no effect."""
    goal: str | None = Field(default=None, min_length=1, max_length=MAX_REQUEST_TEXT)
    """The task, in words. Give either this or `messages`."""
    messages: tuple[Message, ...] = Field(default=(), max_length=100)
    """Messages in place of a goal."""
    attachments: Attachments = omit_default(())
    """Images and PDF that belong to the goal or the messages: [media](../media.md)."""
    agent: Id | None = None
    """The agent to run; by default the conversation's last agent."""
    default_agent: Id | None = omit_default(None)
    """The agent to run if the conversation has no last agent."""
    context: Context = Field(default_factory=dict)
    """As in `agentic.start`; together with `raw` up to 64 KiB."""
    origin: Headers | None = None
    """The request that led to this one."""
    when_busy: WhenBusy = WhenBusy.queue
    """The handling if a turn is running: [below](#when-busy)."""
    question_id: Id | None = None
    """The open question of the running turn that this request answers. If the question is not open, it queues."""
    request_client: Id | None = None
    """The program that sends the request."""
    raw: dict[str, Any] | None = None
    """Stored with the run, not interpreted."""
    choices: tuple[Choice, ...] = Field(default=(), max_length=20, exclude_if=lambda choices: not choices)
    """The choices that a person makes before the turn begins."""
    share: Share | None = omit_default(None)
    """The remaining budget of the work that it resumes; the turn does not exceed it."""
    work: Work | None = omit_default(None)
    """The work that it belongs to, for the rules of a policy. Set by Perdure."""
    quiet: bool = omit_default(default=False)
    """`true` for a trial, as in `agentic.start`."""
    sender: Sender | None = omit_default(None)
    """The entry point that it came through. Set by Perdure."""
    signature: str | None = Field(default=None, max_length=200, exclude_if=lambda signature: signature is None)
    """The signature of the answer to `question_id`, as in `human_input`."""

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if (self.goal is None) == (not self.messages):
            raise ValueError('give either "goal" or "messages"')
        if not self.text.strip():
            raise ValueError("the request is empty: give a goal or a user message")
        if len(self.text) + len(self.brief) > MAX_REQUEST_TEXT:
            raise ValueError(f"the messages together may have {MAX_REQUEST_TEXT:,} characters")
        if len(to_json([self.context, self.raw])) > MAX_EXTRAS:
            raise ValueError(f"context and raw together may have {MAX_EXTRAS:,} bytes")
        if nesting_depth([self.context, self.raw]) > MAX_EXTRAS_NESTING + 1:
            raise ValueError(f"context and raw may be nested {MAX_EXTRAS_NESTING} levels deep")
        return self

    @property
    def text(self) -> str:
        """The text that enters the conversation."""
        return self.goal or "\n\n".join(message.content for message in self.messages if message.role == "user")

    @property
    def brief(self) -> str:
        """The addition to the system prompt; may be empty."""
        return "\n\n".join(message.content for message in self.messages if message.role == "system")


class Submitted(FrozenModel):
    """The answer of `submit`."""

    run_id: str
    """The run of the request."""
    position: int
    """The number of requests ahead, including the running one. 0: the run has started."""
    duplicate: bool
    """The request was submitted before."""


class LaneFault(StrEnum):
    """The reason that a lane rejects a request: the `type` of the error."""

    invalid_input = "InvalidInput"
    """The request is not valid or is empty. The message names the field."""
    request_reused = "RequestIdReused"
    """The id was used before with other content. Use another id."""
    lane_full = "LaneFull"
    """The queue is full. Retry after `retry_after_seconds`."""
    lane_busy = "LaneBusy"
    """A turn is running, and `when_busy` was `reject`. Retry later, or queue the request."""
    no_such_turn = "NoSuchTurn"
    """The turn to forget is not among the latest ended turns. The query `lane` lists them."""
    lane_closing = "LaneClosing"
    """The lane is being cancelled. Retry later; a new lane opens then."""


class Queued(FrozenModel):
    """An accepted request. `size` is its size in bytes in the lane's state."""

    request: SubmitRequest
    run_id: str
    size: int
    at: datetime


class Active(FrozenModel):
    """The running turn. `is_repeat`: its run existed before its lane started it.

    `forget` names the turns that it leaves out of the conversation.
    """

    queued: Queued
    is_repeat: bool = False
    forget: tuple[str, ...] = omit_default(())


class TurnEnd(StrEnum):
    """The end of a request."""

    completed = "completed"
    escalated = "escalated"
    failed = "failed"
    cancelled = "cancelled"
    timed_out = "timed_out"
    steered = "steered"  # it joined a running turn
    answered = "answered"  # it answered a question of a running turn
    dropped = "dropped"


class Ended(FrozenModel):
    """The end of a run. `said` is the outcome, or the reason for its absence."""

    end: TurnEnd
    said: str = ""

    @model_validator(mode="before")
    @classmethod
    def _read_old_form(cls, value: Any) -> Any:
        """Read the form of earlier workers: the run's status on the server, as a string."""
        return {"end": _OLD_STATUSES.get(value, value)} if isinstance(value, str) else value


_OLD_STATUSES = {"terminated": TurnEnd.cancelled, "timed out": TurnEnd.timed_out, "gone": TurnEnd.failed}


class Turn(FrozenModel):
    """An ended request. `said` is the outcome, or the reason for its absence; both texts are truncated."""

    request_id: str
    run_id: str
    asked: str
    end: TurnEnd
    said: str = ""
    at: datetime
    forgotten: bool = omit_default(False)
    """A person took it out of the conversation."""


class RecentTurns(Latest[Turn], most=20):
    """The latest turns of a lane, and the requests that became none."""


class LaneState(FrozenModel):
    """The state of a lane, carried over continue-as-new.

    `seen` maps a digest of each request id to a digest of the request. `after` names the turns that the next one
    continues, the latest first. `notices` list what had no effect. The next turn leaves the turns `forget` out of the
    conversation.
    """

    type: Literal["conversation.continue"] = "conversation.continue"
    conversation_id: str
    closes: bool = omit_default(False)  # once it is empty
    agent: str | None = None  # the last agent
    queue: tuple[Queued, ...] = ()
    active: Active | None = None
    steering: tuple[Queued, ...] = ()  # sent to the active turn, not yet confirmed by it
    seen: dict[str, str] = Field(default_factory=dict)
    after: tuple[str, ...] = ()
    recent: RecentTurns = RecentTurns()
    accepted: int = 0
    refused: int = 0
    notices: LatestNotices = LatestNotices()
    forget: tuple[str, ...] = omit_default(())


class ConversationStart(StrictModel):
    """The input of `Conversation`."""

    conversation_id: Id | None = None
    """If set, it must match the workflow id."""
    closes: bool = False
    """The lane ends once it is empty; the next request opens a new one."""


class DropRequest(StrictModel):
    """The body of the signal `drop`: removes a request from the queue."""

    request_id: Id
    """The queued request."""
    by: str | None = Field(default=None, max_length=200)
    """The person who drops it, self-declared."""
    sender: Sender | None = omit_default(None)
    """The entry point that it came through. Set by Perdure."""


class ForgetRequest(StrictModel):
    """The body of the update `forget`: removes an ended turn from the conversation.

    Later turns do not see it. Its effects are not undone, and its run keeps its record.
    """

    run_id: Id | None = None
    """The run of the turn; by default the latest."""
    sender: Sender | None = omit_default(None)
    """The entry point that it came through. Set by Perdure."""


class Forgotten(FrozenModel):
    """The answer of `forget`."""

    run_id: str
    asked: str
    """The request of the turn, truncated."""


class SteerRequest(StrictModel):
    """The body of the signal `steer` of a run: a user message for its next model call."""

    request_id: Id
    """The request that the message comes from."""
    text: str = Field(min_length=1, max_length=MAX_REQUEST_TEXT)
    """The message."""
    attachments: Attachments = omit_default(())
    """Images and PDF that belong to the message."""
    sender: Sender | None = omit_default(None)
    """The entry point that it came through. Set by Perdure."""


class Steered(StrictModel):
    """The body of the signal `steered`: the run confirms to its lane that it took the message."""

    request_id: str


class WaitingView(FrozenModel):
    request_id: str
    run_id: str
    asked: str
    at: datetime


class LaneView(FrozenModel):
    """The answer of the query `lane`."""

    conversation_id: str
    agent: str | None
    """The last agent."""
    active: WaitingView | None
    queued: int
    """The number of waiting requests."""
    most_queued: int
    """The limit of waiting requests."""
    waiting: tuple[WaitingView, ...]
    """The first waiting requests."""
    recent: tuple[Turn, ...]
    """The latest ended requests."""
    accepted: int
    refused: int
    notices: tuple[str, ...]
    """The latest messages that had no effect, with reasons."""


class JoinRequest(FrozenModel):
    """The input of the activity `join_conversation`. The turns in `forget` are left out from now on."""

    conversation_id: str
    after: tuple[str, ...]
    forget: tuple[str, ...] = omit_default(())


class Joined(FrozenModel):
    """The conversation that a turn continues. A new conversation has no segment; the journal is optional."""

    segment: Segment | None = None
    journal: Journal | None = None
    shows_journal: bool = False


class TurnRecord(FrozenModel):
    """A conversation as a turn left it, stored in the conversation's store under the run's name.

    `shows_journal`: the conversation does not contain the current journal.
    """

    segments: tuple[Segment, ...]
    run_id: str
    journal: Journal | None
    shows_journal: bool


class TurnAnswer(FrozenModel):
    """The input of the activity `answer_turn`."""

    run_id: str
    question_id: str
    text: str
    attachments: Attachments = omit_default(())
    request_id: str
    sender: Sender | None = omit_default(None)
    signature: str | None = omit_default(None)

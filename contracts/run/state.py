"""A run's state, which is also what it carries over continue-as-new, and the view that `state` answers."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import ConfigDict, Field

from contracts.conversation import Choice, Headers, SteerRequest
from contracts.delegation import Assignment, Share, Spent
from contracts.models import Edge, Value, sparse
from contracts.run.compaction import Recoveries
from contracts.run.journal import Journal
from contracts.run.limits import Limits
from contracts.run.loop_detection import Made
from contracts.run.question import Question, QuestionKind
from contracts.run.transcript import Segment
from contracts.run.turn import PassedOver, Usage
from contracts.sender import Sender
from contracts.tool import Effect, ToolKind, ToolOutcome, ToolTable


class RunStatus(StrEnum):
    queued = "queued"  # it has not begun
    running = "running"  # a model turn or a call is under way, or is next
    waiting_on_tool = "waiting_on_tool"  # a result is awaited from outside
    waiting_on_human = "waiting_on_human"  # a question is open
    completed = "completed"  # ended with an outcome
    escalated = "escalated"  # ended: the task is given back to a person
    cancelled = "cancelled"  # ended, as somebody asked
    timed_out = "timed_out"  # ended at its hard limit; it can be resumed
    failed = "failed"  # ended by a failure; it can be resumed


class Pending(Value):
    """A tool action that was issued and has no result yet (A3)."""

    step: int
    tool: str
    since: datetime
    attempt: int = 1
    outside: bool = False  # somebody else is at it, and the run waits for the result
    handed_out: datetime | None = sparse(None)  # to whoever sends the result back as a signal


class Call(Value):
    """One tool use of the current turn. `step` is None where it takes none. `outcome` is None until settled."""

    tool_use_id: str
    tool: str
    kind: ToolKind
    effect: Effect
    step: int | None
    arguments: dict[str, Any]
    # The digest of the call that a person approved: with other arguments the approval is void.
    approval: str | None = sparse(None)
    # The digest of the tool's definition that a person accepted for it.
    accepts: str | None = sparse(None)
    generation: int = 1  # grows when a person decides "run again"
    outcome: ToolOutcome | None = None


class OutsideResult(Value):
    """A result from outside that the run took: the digest of its content, and the nonce of its request."""

    step: int
    digest: str
    nonce: str = sparse("")


class Ending(Value):
    """How the run ends: the terminal status, and what is said of it."""

    status: Literal[RunStatus.completed, RunStatus.escalated, RunStatus.failed, RunStatus.timed_out]
    text: str  # the outcome, or the detail of an escalation or failure
    reason: str = ""  # `Escalation` or `RunFailure`
    is_partial: bool = False  # an outcome that was delivered because the time was used up


class Forced(Value):
    """The next reply has to call this tool. With `asks`, the runtime asks the person itself where it does not."""

    tool: str
    asks: QuestionKind | None = None
    text: str = ""  # of that question


class Inheritance(Value):
    """Steps up to `through` were first made by the run `run_id`, under its keys and in its ledger."""

    run_id: str
    through: int
    execution: str = ""  # its first Temporal execution
    key_id: str = sparse("")  # as in `RunState`


class RunState(Value):
    run_id: str
    execution: str = ""  # what it began with (`ids.start_of`): another run may be started under the same id
    key_id: str = sparse("")  # stands for `run_id` in keys and ids where an earlier run had the same id
    goal: str
    agent: str
    context: dict[str, Any]
    conversation_id: str | None
    is_turn: bool = sparse(False)  # of that conversation, by its lane
    headers: Headers = sparse(Headers())
    sender: Sender | None = sparse(None)  # of its start, or of the request that it is a turn for
    answer_keys: dict[str, str] = sparse({})  # public keys by id: only answers signed with one of them are taken
    created_at: datetime
    updated_at: datetime
    limits: Limits
    requested: dict[str, Any] = Field(default_factory=dict)  # the limits that the start event set
    ceiling: dict[str, Any] = sparse({})  # the project's limits that these never exceed
    status: RunStatus = RunStatus.queued
    model: str = ""
    passed_over: tuple[PassedOver, ...] = sparse(())  # in the last turn
    definition: str = ""
    workspace: str = ""
    tools: ToolTable = ()
    peers: tuple[str, ...] = sparse(())
    mailboxes: tuple[str, ...] = sparse(())  # peers that live outside
    assignment: Assignment | None = sparse(None)
    delegated: Spent = sparse(Spent())  # what its subtasks have used
    share: Share | None = sparse(None)  # of a run that resumes a follow-up: what was left of its chain's budget
    follow_ups: int = sparse(0)  # that it has created
    sessions: tuple[str, ...] = sparse(())  # conversations, beside its own, in which its follow-ups may resume
    approved_tools: tuple[str, ...] = ()
    accepted: dict[str, str] = Field(default_factory=dict, exclude_if=lambda accepted: not accepted)  # tool: definition
    step: int = 0
    turns: int = 0
    reframes: int = 0
    questions: int = 0
    unusable_replies: int = 0  # in a row
    active_ms: int = 0  # of the run's activities, as they report it: no waiting counts (B6)
    is_closing: bool = False  # the soft limit is reached: the next turn is the last one
    recent: tuple[Made, ...] = ()  # the latest calls, oldest first
    sighted: tuple[str, ...] = ()  # what the last turn looked like, of thrashes
    rung: int = 0  # of the ladder out of a thrash; 0 is the floor
    calm: int = 0  # calls since the last rung was climbed
    forced: Forced | None = None
    recoveries: Recoveries = Recoveries()
    window: int | None = None  # of the model, in tokens, where the provider has told it
    pending: tuple[Pending, ...] = ()
    calls: tuple[Call, ...] = ()
    question: Question | None = None
    expired: str | None = sparse(None)  # the latest such question
    usage: Usage = Usage()
    choices: tuple[Choice, ...] = sparse(())  # that a person has to make before the work begins
    secret: str = sparse("")  # random, from `open_run`; the nonces of its requests derive from it
    results: tuple[OutsideResult, ...] = sparse(())  # from outside, the latest
    steered: tuple[str, ...] = sparse(())  # request ids of what was said to it, the latest
    last_call: int = sparse(0)  # tokens of the last turn, of a subtask
    cost_usd: float | None = 0.0  # None once a model without a known price was used
    artifacts: tuple[str, ...] = ()
    journal: Journal = Journal()
    plan: str = ""
    last_finding: str = ""
    untold: tuple[dict[str, Any], ...] = ()  # events that the next activity writes into the trace
    events: int = 0  # told so far
    ignored: tuple[str, ...] = ()  # the latest signals that had no effect, and why
    inherited: tuple[Inheritance, ...] = ()  # of a resumed or forked run, the eldest first
    doubtful: tuple[str, ...] = ()  # tool uses that were in flight when the origin ended
    interrupted: bool = False  # work was lost with a worker since the model was last asked
    refused_definition: str | None = None  # a newer one, which a person decided against
    ending: Ending | None = None


class Continuation(Value):
    """The input of `AgentRun` after continue-as-new: the state, and the transcript by reference.

    `said` is what its user said and no model call has taken in yet.
    """

    type: Literal["agentic.continue"] = "agentic.continue"
    state: RunState
    segments: tuple[Segment, ...] = Field(min_length=1)
    said: tuple[SteerRequest, ...] = ()


class InheritRequest(Value):
    """The input of the activity `inherit`: continue `run_id`, or fork it after `step`, and `say` something more.

    `execution` is the heir's, as in `RunState`.
    """

    run_id: str
    execution: str
    step: int | None = None
    say: str | None = None


class Inherited(Value):
    """What a run begins with that goes on from another one's state and conversation."""

    state: RunState
    segments: tuple[Segment, ...] = Field(min_length=1)


class Snapshot(Value):
    """The answer of the query `snapshot`: all that decides how the run goes on, but the conversation itself.

    `calls` is how many the turn has in all: `state` holds as many of them as one answer takes.
    """

    state: RunState
    segments: tuple[Segment, ...]
    length: int
    head: str
    calls: int = 0


class SnapshotQuery(Edge):
    """The optional argument of the query `snapshot`, `{"from": 12}`: the first call that `state` is to hold."""

    model_config = ConfigDict(validate_by_name=True)

    start: int = Field(default=0, alias="from", ge=0)


class QuestionView(Value):
    id: str
    kind: str
    text: str
    options: tuple[str, ...]
    call: str | None = sparse(None)
    expires_at: datetime | None = sparse(None)


class PendingView(Value):
    step: int
    tool: str
    since: datetime
    attempt: int
    nonce: str | None = sparse(None)
    """What the result must bring back at the gateway, where the request is sent nowhere and is read here."""


class RunView(Value):
    """The answer of the query `state` (A8)."""

    run_id: str
    status: RunStatus
    goal: str
    agent: str
    model: str
    created_at: datetime
    updated_at: datetime
    step: int
    max_steps: int
    turns: int
    reframes: int
    max_reframes: int
    pending: tuple[PendingView, ...]  # calls without a result
    completed_steps: tuple[int, ...]
    workspace: str
    resumable: bool  # an open run goes on wherever a worker is, from what history holds; `perdure resume` is for others
    resume_from: str | None  # the step it would go on from
    artifacts: tuple[str, ...]  # relative to the workspace
    question: QuestionView | None
    usage: Usage
    cost_usd: float | None  # None once a model without a known price was used
    active_seconds: float  # that count for its limits
    ignored: tuple[str, ...]  # the latest signals that had no effect, and why
    plan: str = ""
    last_finding: str = ""
    origin: str | None = None  # the run that this one resumes, or was forked from
    parent: str | None = sparse(None)  # whose subtask it is
    sender: Sender | None = sparse(None)  # where its start came in
    execution: str = sparse("")  # its first Temporal execution
    answer_keys: dict[str, str] = sparse({})  # public keys by id: only answers signed with one of them are taken
    delegated: Spent | None = sparse(None)  # by its subtasks, not above
    follow_ups: int = sparse(0)  # that it has created


class TurnClose(Value):
    """The end of a turn of a conversation, whose store is `owner`'s: what it began with, and the journal it leaves.

    `unanswered` says why it ended without an answer.
    """

    owner: str
    before: Segment | None
    journal: Journal | None = sparse(None)
    unanswered: str | None = sparse(None)


class CloseRequest(Value):
    """The input of the activity `close_segment`: archive the live parts; at a run's end, finish its files.

    A journal without an objective has the run's goal for one: the activity has it at hand, and it may be long.
    """

    start: int
    length: int
    head: str
    journal: Journal | None = None  # only at the end of the run
    event: dict[str, Any] | None = None  # the completion event
    cancel: str | None = sparse(None)  # ask the server to cancel this run, for this reason
    told: tuple[dict[str, Any], ...] = sparse(())
    turn: TurnClose | None = sparse(None)


class Closed(Value):
    """Where the parts lie now. If the request does not stand in history itself, also what history is to tell of it.

    `record` is the digest of the record that a turn left: the next turn takes no other.
    """

    segment: Segment | None
    record: str | None = sparse(None)
    length: int = sparse(0)
    head: str = sparse("")
    told: tuple[dict[str, Any], ...] = sparse(())

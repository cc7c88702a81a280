"""A run's state, carried over continue-as-new, and the view that the query `state` returns."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import ConfigDict, Field

from perdure.contracts.bounds import Latest, LatestNotices
from perdure.contracts.conversation import Choice, Headers, SteerRequest
from perdure.contracts.model_settings import Pace
from perdure.contracts.models import FrozenModel, JsonResult, StrictModel, omit_default, omit_no_result
from perdure.contracts.people import Account, NoticeRoute, Sender, Work
from perdure.contracts.policy import PolicyVerdict
from perdure.contracts.run.events import DryCall, PlanInForce, ShownCall
from perdure.contracts.run.journal import Journal
from perdure.contracts.run.limits import Assignment, Limits, Share, Spent
from perdure.contracts.run.loop_detection import RecentCall
from perdure.contracts.run.signals import Question, QuestionKind
from perdure.contracts.run.transcript import Segment
from perdure.contracts.run.turn import Recoveries, SentTurn, SkippedModel, Usage
from perdure.contracts.tool import Effect, ServerTask, ToolKind, ToolOutcome, ToolTable, Unfinished


class RunStatus(StrEnum):
    queued = "queued"  # not begun
    running = "running"  # a model turn or a call is running or next
    waiting_on_tool = "waiting_on_tool"  # waits for a result from outside
    waiting_on_human = "waiting_on_human"  # a question is open
    completed = "completed"  # ended with an outcome
    escalated = "escalated"  # ended: the task is handed back to a person
    cancelled = "cancelled"  # ended on request
    timed_out = "timed_out"  # ended at its hard limit; can be resumed
    failed = "failed"  # ended by a failure; can be resumed


class Pending(FrozenModel):
    """An issued call without a result (A3)."""

    step: int
    tool: str
    since: datetime
    attempt: int = 1
    outside: bool = False  # executed outside; the run waits for the result
    handed_out: datetime | None = omit_default(None)  # when the request went to the tool that answers by signal


class Call(FrozenModel):
    """One tool use of the current turn. `step` is unset for tools that take no step, `outcome` until it is settled."""

    tool_use_id: str
    tool: str
    kind: ToolKind
    effect: Effect
    step: int | None
    arguments: dict[str, Any]
    # The digest of the approved call: with other arguments the approval is void.
    approval: str | None = omit_default(None)
    # The dry run of the plan that has the call: its starter approves it.
    plan: str = omit_default("")
    # A person changed the arguments before approving the call; the transcript has the proposed ones.
    changed_by: str | None = omit_default(None)
    # The digest of the tool definition that a person accepted for this call.
    accepts: str | None = omit_default(None)
    # The policy's, if the project has one. An edited call gets another.
    verdict: PolicyVerdict | None = omit_default(None)
    generation: int = 1  # grows when a person decides "run again"
    # Its server has not finished it.
    unfinished: Unfinished | None = omit_default(None)
    outcome: ToolOutcome | None = None


class OutsideResult(FrozenModel):
    """An accepted result from outside: the digest of its content, and the nonce of its request."""

    step: int
    digest: str
    nonce: str = omit_default("")


class OutsideResults(Latest[OutsideResult], most=100):
    """By which a repeated result is recognized."""


class RecentCalls(Latest[RecentCall], most=24):
    """Calls whose results are compared."""


class SteeredIds(Latest[str], most=100):
    """Request ids of messages to the run, by which a repeated one is recognized."""


class Watchers(Latest[str], most=100):
    """Workflows to signal as a run ends, by `watch_end`; any others check it by themselves."""


class Ending(FrozenModel):
    """The end of a run: the terminal status and its explanation."""

    status: Literal[RunStatus.completed, RunStatus.escalated, RunStatus.failed, RunStatus.timed_out]
    text: str  # the outcome, or the detail of an escalation or failure
    reason: str = ""  # `Escalation` or `RunFailure`
    accepted_by: str = omit_default("")  # the check that it passed
    is_partial: bool = False  # the outcome was delivered because time was used up
    result: JsonResult = omit_no_result()  # by the output schema


class ForcedTool(FrozenModel):
    """A tool that the next reply must call. With `asks`, the runtime asks the person itself if the reply does not."""

    tool: str
    asks: QuestionKind | None = None
    text: str = ""  # the text of that question


class Inheritance(FrozenModel):
    """Inherited steps: those up to `through` were made by the run `run_id`, under its keys and in its ledger."""

    run_id: str
    through: int
    execution: str = ""  # its first Temporal execution
    key_id: str = omit_default("")  # as in `RunState`


class RunIdentity(FrozenModel):
    """The run itself, and the runs that it continues."""

    run_id: str
    execution: str = ""  # the first execution (`ids.run_start_id`): another run may have the same id
    key_id: str = omit_default("")  # replaces `run_id` in keys and ids if an earlier run had the same id
    agent: str
    conversation_id: str | None
    is_turn: bool = omit_default(False)  # of that conversation, started by its lane
    created_at: datetime
    updated_at: datetime
    inherited: tuple[Inheritance, ...] = ()  # for a resumed or forked run, the oldest first


class RunRequest(FrozenModel):
    """The start: the task, its sender, and what they ask for."""

    goal: str
    context: dict[str, Any]
    requested: dict[str, Any] = Field(default_factory=dict)  # the limits set by the start event
    headers: Headers = omit_default(Headers.model_construct())
    sender: Sender | None = omit_default(None)  # of its start, or of the request of its turn
    output_schema: dict[str, Any] | None = omit_default(None)  # requested by the start
    dry_run: bool = omit_default(default=False)  # calls that change something are not made
    quiet: bool = omit_default(default=False)  # nothing of it is announced, as of `StartPayload`
    choices: tuple[Choice, ...] = omit_default(())  # that a person makes before the work begins
    planned: PlanInForce | None = omit_default(None)  # calls that the starter approved
    assignment: Assignment | None = omit_default(None)
    work: Work | None = omit_default(None)  # the request that it works for, if another run has set it off
    account: Account | None = omit_default(None)  # whose work it is, if the project has budgets
    share: Share | None = omit_default(None)  # for a run that resumes a follow-up: the remaining budget of its chain


class RunSetup(FrozenModel):
    """The definition of the agent, and the project's rules for the run."""

    definition: str = ""
    workspace: str = ""
    tools: ToolTable = ()
    limits: Limits
    ceiling: dict[str, Any] = omit_default({})  # the project's limits that no run exceeds
    place: str = omit_default("")  # the key of its place, if the agent has a limit of runs at work
    places: int | None = omit_default(None)  # that limit
    has_left_place: bool = omit_default(default=False)  # while it waits for people or subtasks
    pace: Pace | None = omit_default(None)  # of its model calls; until the snapshot, what the start asks for
    fuse_reads: bool = omit_default(default=False)  # a turn of reads and the next model call are one activity
    is_typed: bool = omit_default(default=False)  # it has an output schema, and completes only with a `result`
    accept: str = omit_default("")  # the check that an outcome must pass, if any
    policy: str = omit_default("")  # the hash of the policy that it began with, or that a person accepted for it
    peers: tuple[str, ...] = omit_default(())
    mailboxes: tuple[str, ...] = omit_default(())  # peers that live outside
    sessions: tuple[str, ...] = omit_default(())  # other conversations in which its follow-ups may resume
    notify: tuple[NoticeRoute, ...] = omit_default(())  # the channels that get its notices
    answer_keys: dict[str, str] = omit_default({})  # public keys by id; only answers signed with one are accepted


class RunUsage(FrozenModel):
    """The steps, time, tokens and money that it has used so far."""

    step: int = 0
    turns: int = 0
    reframes: int = 0
    questions: int = 0
    follow_ups: int = omit_default(0)  # created follow-ups
    active_ms: int = 0  # reported by the run's activities, without waits (B6)
    usage: Usage = Usage.model_construct()
    cost_usd: float | None = 0.0  # None once a model without a known price was used
    known_usd: float = omit_default(0.0)  # then the cost of the other models
    unpriced: dict[str, int] = omit_default({})  # and the tokens of those without a price, by model
    delegated: Spent = omit_default(Spent.model_construct())  # the usage of its subtasks
    last_call: int = omit_default(0)  # in a subtask: tokens of the last turn


class TurnState(FrozenModel):
    """The calls of the current turn, and the use of the last replies."""

    calls: tuple[Call, ...] = ()
    pending: tuple[Pending, ...] = ()
    doubtful: tuple[str, ...] = ()  # tool uses in flight when the origin ended
    results: OutsideResults = omit_default(OutsideResults())
    secret: str = omit_default("")  # random, from `open_run`; the nonces of its requests derive from it
    model: str = ""
    passed_over: tuple[SkippedModel, ...] = omit_default(())  # in the last turn
    batched_at: datetime | None = omit_default(None)  # a model call waits for a batch since then
    sent: SentTurn | None = omit_default(None)  # a turn that failed here, or in the resumed run; its batch goes on
    unusable_replies: int = 0  # in a row
    invalid_results: int = omit_default(0)  # replies that would end a typed run without a valid `result`
    rejections: int = omit_default(0)  # outcomes that did not pass the check
    is_closing: bool = False  # the soft limit is reached: the next turn is the last
    interrupted: bool = False  # work was lost with a worker since the last model turn


class LoopState(FrozenModel):
    """Signs of a loop and of a full context window, and the responses so far."""

    recent: RecentCalls = RecentCalls()
    sighted: tuple[str, ...] = ()  # loops detected in the last turn
    rung: int = 0  # the response to the current loop; 0: none
    calm: int = 0  # calls since the last escalation of the response
    forced: ForcedTool | None = None
    recoveries: Recoveries = Recoveries.model_construct()
    window: int | None = None  # of the model, in tokens, if the provider reported it


class PeopleState(FrozenModel):
    """The questions to people, and their decisions and messages."""

    asked: tuple[Question, ...] = omit_default(())  # open, or with an answer that the run has not taken yet
    expired: str | None = omit_default(None)  # the latest expired question
    approved_tools: tuple[str, ...] = ()
    accepted: dict[str, str] = Field(default_factory=dict, exclude_if=lambda accepted: not accepted)  # tool: definition
    refused_definition: str | None = None  # a newer definition that a person rejected
    unplanned: tuple[ShownCall, ...] = omit_default(())  # calls that change something and were not planned
    dry_calls: tuple[DryCall, ...] = omit_default(())  # calls that the dry run did not make
    steered: SteeredIds = omit_default(SteeredIds())
    ignored: LatestNotices = LatestNotices()


class RunFindings(FrozenModel):
    """The journal, the plan and the artifacts, and the events and watchers to report."""

    journal: Journal = Journal.model_construct()
    plan: str = ""
    last_finding: str = ""
    artifacts: tuple[str, ...] = ()
    pending_trace: tuple[dict[str, Any], ...] = ()  # events that the next activity writes to the trace
    events: int = 0  # the number of events so far
    watchers: Watchers = omit_default(Watchers())


class RunState(RunIdentity, RunRequest, RunSetup, RunUsage, TurnState, LoopState, PeopleState, RunFindings):
    """The whole state of a run. Its facets are base classes: a change copies one object, and JSON is flat."""

    status: RunStatus = RunStatus.queued
    ending: Ending | None = None

    @property
    def open_questions(self) -> tuple[Question, ...]:
        """The questions that wait for a person, in the order of their calls."""
        return tuple(question for question in self.asked if question.answer is None)

    @property
    def open_tasks(self) -> dict[int, ServerTask]:
        """The tasks that servers have made of open calls, as last reported, by step."""
        left = ((call.step, call.unfinished) for call in self.calls if call.outcome is None)
        return {step: known.task for step, known in left if step is not None and known is not None and known.task}

    @property
    def question(self) -> Question | None:
        """The first open question."""
        return next(iter(self.open_questions), None)


class Continuation(FrozenModel):
    """The input of `AgentRun` after continue-as-new: the state, and the transcript by reference.

    `said` holds user messages that no model call has seen yet.
    """

    type: Literal["agentic.continue"] = "agentic.continue"
    state: RunState
    segments: tuple[Segment, ...] = Field(min_length=1)
    said: tuple[SteerRequest, ...] = ()


class InheritRequest(FrozenModel):
    """The input of the activity `inherit`: resume `run_id`, or fork it after `step` with the message `say`.

    `execution` is the new run's, as in `RunState`. `by` is the person or token who asks for it, if known.
    """

    run_id: str
    execution: str
    by: str = omit_default("")
    step: int | None = None
    say: str | None = None


class Inherited(FrozenModel):
    """The state and conversation that a resumed or forked run begins with."""

    state: RunState
    segments: tuple[Segment, ...] = Field(min_length=1)


class Snapshot(FrozenModel):
    """The answer of the query `snapshot`: the whole state of the run, except the conversation itself.

    `calls` is the number of calls in the turn; `state` holds as many of them as fit one answer.
    """

    state: RunState
    segments: tuple[Segment, ...]
    length: int
    head: str
    calls: int = 0


class SnapshotQuery(StrictModel):
    """The optional argument of the query `snapshot`, `{"from": 12}`: the first call in `state`."""

    model_config = ConfigDict(validate_by_name=True)

    start: int = Field(default=0, alias="from", ge=0)


class TermsView(FrozenModel):
    """The terms of one rule for an approval."""

    approvers: tuple[str, ...] = omit_default(())
    """The groups that are asked now. If empty, everyone is."""
    quorum: int = omit_default(1)
    """The number of different people who must approve."""
    approved_by: tuple[str, ...] = omit_default(())
    not_by: tuple[str, ...] = omit_default(())
    """The people whose request the run carries out, if their approval does not count."""

    @property
    def is_met(self) -> bool:
        return len(self.approved_by) >= self.quorum


class QuestionView(FrozenModel):
    id: str
    kind: str
    text: str
    options: tuple[str, ...]
    step: int | None = omit_default(None)
    tool: str | None = omit_default(None)
    tool_use_id: str | None = omit_default(None)
    """The call of the model's reply that it is about."""
    asked_at: datetime | None = omit_default(None)
    call: str | None = omit_default(None)
    expires_at: datetime | None = omit_default(None)
    arguments: dict[str, Any] | None = omit_default(None)
    """The arguments of the call to approve."""
    terms: tuple[TermsView, ...] = omit_default(())
    """The terms of the rules that ask. All of them must be met."""
    revision: int = omit_default(0)
    """The number of times that a person changed the call. Then an answer must name the call by its digest."""
    group: int = omit_default(0)
    """The number of times that the question was passed on to another group, as the time of the one before was over."""
    link: str = omit_default("")
    """A path of the gateway. A POST to it returns `url`, an address at which a person settles the matter."""
    form: dict[str, Any] | None = omit_default(None)
    """The JSON Schema of the answer, if it is an object: of plain fields."""


class PendingView(FrozenModel):
    step: int
    tool: str
    since: datetime
    attempt: int
    nonce: str | None = omit_default(None)
    """The nonce that must come back with the result at the gateway, if the request is not POSTed."""
    task: str = omit_default("")
    """The task that its server has made of the call, in words, as it was last reported."""


class RunView(FrozenModel):
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
    resumable: bool  # it ended and can be resumed; open runs continue by themselves
    resume_from: str | None  # the step to resume from
    artifacts: tuple[str, ...]  # relative to the workspace
    question: QuestionView | None
    questions: tuple[QuestionView, ...] = ()  # all that are open; `question` is the first
    usage: Usage
    cost_usd: float | None  # None once a model without a known price was used
    active_seconds: float  # active time, which counts towards its limits
    ignored: tuple[str, ...]  # the latest signals that had no effect, with reasons
    plan: str = ""
    last_finding: str = ""
    origin: str | None = None  # the run that this one resumes or was forked from
    parent: str | None = omit_default(None)  # the delegating run
    sender: Sender | None = omit_default(None)  # the entry point of its start
    execution: str = omit_default("")  # its first Temporal execution
    answer_keys: dict[str, str] = omit_default(
        {}
    )  # public keys by id; only answers signed with one of them are accepted
    delegated: Spent | None = omit_default(None)  # the usage of its subtasks, not included above
    follow_ups: int = omit_default(0)  # created follow-ups
    result: JsonResult = omit_no_result()  # of a completed run with an output schema
    batched_at: datetime | None = omit_default(None)  # its model call waits for a batch since then
    known_usd: float = omit_default(0.0)  # if `cost_usd` is None, the cost of the models with a known price
    unpriced: dict[str, int] = omit_default({})  # and the tokens of the others, by model
    dry_run: bool = omit_default(default=False)  # it makes reads only
    dry_calls: tuple[DryCall, ...] = omit_default(())  # the other calls, which it did not make


class TurnClose(FrozenModel):
    """The end of a turn of a conversation: the segment it began with, and its journal. `owner` has the store.

    `unanswered` is the reason for a missing answer.
    """

    owner: str
    before: Segment | None
    journal: Journal | None = omit_default(None)
    unanswered: str | None = omit_default(None)


class CloseRequest(FrozenModel):
    """The input of the activity `close_segment`: archive the live parts; at a run's end, finish its files.

    The activity fills in the run's goal for a journal without an objective, so that a long goal is not sent again.
    """

    start: int
    length: int
    head: str
    journal: Journal | None = None  # only at the end of the run
    event: dict[str, Any] | None = None  # the completion event
    cancel: str | None = omit_default(None)  # ask the server to cancel this run, for this reason
    trace: tuple[dict[str, Any], ...] = omit_default(())
    turn: TurnClose | None = omit_default(None)


class Closed(FrozenModel):
    """The archived segment. If the request itself is not in history, also the request's values that must be there.

    `record` is the digest of the record that a turn left: the next turn accepts no other.
    """

    segment: Segment | None
    record: str | None = omit_default(None)
    length: int = omit_default(0)
    head: str = omit_default("")
    trace: tuple[dict[str, Any], ...] = omit_default(())


class WorkflowStatus(StrEnum):
    """The status of a workflow on the server."""

    open = "open"
    completed = "completed"
    failed = "failed"
    cancelled = "cancelled"
    terminated = "terminated"
    timed_out = "timed out"
    gone = "gone"

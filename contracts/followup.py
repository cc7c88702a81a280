"""Follow-ups: tasks that resolve later, the commands that make them, and what becomes of them (E1 to E9).

Names and shapes are the source's, with its `workflowId` for a follow-up. Times are milliseconds since 1970.
"""

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import to_json

from contracts.conversation import MAX_ID_LENGTH, Headers, SubmitRequest
from contracts.delegation import Share
from contracts.models import CamelEdge, CamelValue, Edge, Value, sparse
from contracts.topic import Event

MOST_TASKS = 50  # of a follow-up: with their inputs and results they have to fit one payload
MOST_DESCRIPTION = 1000  # characters
MOST_SUMMARY = 20_000  # characters
MOST_INPUT = 8 * 1024  # bytes
MOST_RESULT = 16 * 1024  # bytes
MOST_WORKFLOW_ID = MAX_ID_LENGTH - 10  # characters: the request that resumes the work is named after it


class FollowUpStatus(StrEnum):
    """Of a follow-up, and of each of its tasks (E2)."""

    queued = "queued"
    running = "running"
    blocked = "blocked"  # it waits for what comes from outside
    resolved = "resolved"
    failed = "failed"
    cancelled = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (FollowUpStatus.resolved, FollowUpStatus.failed, FollowUpStatus.cancelled)


class Completion(StrEnum):
    all = "all"  # once the turn that created the tasks has ended, and every task
    any = "any"  # with the first; the others are cancelled


class FollowUpFailure(StrEnum):
    """Why a follow-up ended Failed."""

    no_tasks = "NoTasks"
    """The turn that created it has ended, and left nothing to wait for."""
    refused = "Refused"
    """The lane will never take the request that resumes the work. The message has the lane's reason."""


class ResumeTarget(Edge):
    """Where the work goes on: the lane of `session_id`."""

    session_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    """The conversation in which the work goes on."""
    request_client: str = Field(default="perdure", min_length=1, max_length=MAX_ID_LENGTH)
    """For whom the request is made."""
    mention_user_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """Whom the answer should mention; told to the agent."""


class FollowUpDefinition(CamelEdge):
    """`summary` is a snapshot: what was being done, and what is waited for. Nothing else is known on resume (E8)."""

    version: Literal[2] = 2
    origin: Headers
    """The request that the follow-up came from."""
    resume_target: ResumeTarget
    summary: str = Field(min_length=1, max_length=MOST_SUMMARY)
    """What was being done and what is waited for: all that is known on resume, beside the tasks."""
    completion: Completion = Completion.all
    """`all`: when every task has ended. `any`: with the first; the others are cancelled."""


class CreateData(CamelEdge):
    """`run_id` is the run whose turn creates the tasks; `all` is not judged before its end."""

    workflow_id: str = Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=MOST_WORKFLOW_ID)
    """The follow-up's name; its workflow id is `wf:` and this."""
    definition: FollowUpDefinition
    run_id: str | None = Field(default=None, min_length=1, max_length=1000)
    """The run whose turn creates the tasks; `all` is not judged before its end."""
    agent: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """The agent that goes on with the work; if left out, the agent that the conversation spoke to last."""
    share: Share | None = sparse(None)
    """The part of the creating run's budget that the resumed work may use. The run sets it."""


class CreateCommand(Edge):
    """The input of `FollowUp`."""

    type: Literal["cmd.workflow.create"] = "cmd.workflow.create"
    headers: Headers = Headers()
    data: CreateData
    answer_keys: dict[str, str] = sparse({})
    """Public keys by id: only answers signed with one of them are taken. The worker of the run sets it."""


class TaskData(CamelEdge):
    """`task_id` goes into an HTTP header, and with all others into the request that resumes the work."""

    workflow_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    """The follow-up's."""
    task_id: str = Field(pattern=r"^[A-Za-z0-9._:-]+$", max_length=MAX_ID_LENGTH)
    """New in its follow-up; the same again changes nothing."""
    kind: str = Field(min_length=1, max_length=100)
    """One of the [kinds](#kinds-of-tasks), which says what `input` is."""
    description: str = Field(min_length=1, max_length=MOST_DESCRIPTION)
    """What is waited for, in words."""
    input: dict[str, Any] = Field(default_factory=dict)
    """As its kind has it; up to 8 KiB."""
    run_id: str | None = Field(default=None, min_length=1, max_length=1000)
    """As of `cmd.workflow.create`."""

    @field_validator("description")
    @classmethod
    def _says_something(cls, description: str) -> str:
        if not description.strip():
            raise ValueError("the description is empty: say what is waited for, in words")
        return description

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(to_json(self.input)) > MOST_INPUT:
            raise ValueError(f"the input may have {MOST_INPUT:,} bytes")
        return self


class TaskCommand(Edge):
    """The body of the signal `task_create`, and of the update `create_task` for callers who want to hear of it."""

    type: Literal["cmd.workflow.task.create"] = "cmd.workflow.task.create"
    headers: Headers = Headers()
    data: TaskData


class CancelData(CamelEdge):
    workflow_id: str | None = None
    """The follow-up's; may be left out."""
    reason: str | None = Field(default=None, max_length=2000)
    """Shown with it."""


class CancelCommand(Edge):
    type: Literal["cmd.workflow.cancel"] = "cmd.workflow.cancel"
    headers: Headers = Headers()
    data: CancelData = CancelData()


class TaskResolved(CamelEdge):
    """The body of the signal `task_resolved`: an event for the task to judge, or its `result` at once."""

    workflow_id: str | None = None
    """The follow-up's; may be left out."""
    task_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    event: Event | None = None
    """For the task to judge. Either this or `result`."""
    result: Any = None
    """Resolves it at once; up to 16 KiB."""
    resolved_by: str | None = Field(default=None, min_length=1, max_length=2 * MAX_ID_LENGTH)
    """Who or what resolved it."""

    @model_validator(mode="after")
    def _brings_one_thing(self) -> Self:
        if (self.event is None) == (self.result is None):
            raise ValueError('give either "event" or "result"')
        return self


class Task(CamelValue):
    """`resolved_by` is what it was resolved by, once: an event's id, "timeout", "clock", a person (E4)."""

    task_id: str
    kind: str
    description: str
    input: dict[str, Any]
    state: FollowUpStatus = FollowUpStatus.queued
    created_at: int
    updated_at: int
    expires_at: int | None = None
    result: Any = None
    resolved_at: int | None = None
    resolved_by: str | None = None


class Late(CamelValue):
    """What came for a task when it had its end."""

    task_id: str
    event: str
    at: int


class LifecycleEvent(Value):
    """One of the source's `evt.workflow.*`, with the headers of the request that the follow-up came from."""

    type: str
    headers: Headers
    data: dict[str, Any]


class FollowUpState(CamelValue):
    """All that a `FollowUp` knows, which is also its input after continue-as-new, and the answer of `state`.

    `runs` are those whose turn may still create tasks. `idle_until` bounds the wait for a first task where no run is
    named.
    """

    type: Literal["followup.continue"] = "followup.continue"
    workflow_id: str
    definition: FollowUpDefinition
    headers: Headers
    state: FollowUpStatus = FollowUpStatus.queued
    created_at: int
    updated_at: int
    resolved_at: int | None = None
    tasks: tuple[Task, ...] = ()
    runs: tuple[str, ...] = ()
    idle_until: int | None = None
    execution: str = ""  # the first Temporal execution: the ledger is kept by it
    agent: str | None = None  # who goes on
    created_by: str | None = sparse(None)  # the run whose budget the resumed work shares
    share: Share | None = sparse(None)  # what was left of it when the follow-up was created
    answer_keys: dict[str, str] = sparse({})  # public keys by id: only answers signed with one of them are taken
    resume_seq: int = 0
    late: tuple[Late, ...] = ()
    events: tuple[LifecycleEvent, ...] = ()  # the latest, bounded
    ignored: tuple[str, ...] = ()  # the latest signals that had no effect, and why


class FollowUpCommands(Value):
    """The input of the activity `command_follow_up`: a follow-up to create, a task to add, or both."""

    create: CreateCommand | None = None
    task: TaskCommand | None = None


class SubscribeRequest(Value):
    """The input of the activity `subscribe_task`."""

    topic: str
    task_id: str
    expires_at: int | None


class Outbound(CamelEdge):
    """One message to somebody outside: what `notify` sends, and what an outbox takes."""

    channel_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    """Where it goes."""
    text: str = Field(min_length=1, max_length=4000)
    platform: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """Of the channel."""


class NotifyRequest(Value):
    """The input of the activity `notify`. `number` is the task's place in its follow-up, `execution` its first."""

    task_id: str
    number: int
    execution: str
    message: Outbound


class ResumeWork(Value):
    """The input of the activity `resume_work`: a new request for the lane of `session_id` (E6).

    `execution` is the follow-up's first Temporal execution: another follow-up may be started under the same id.
    `created_by` is the run whose budget the resumed work shares: what it has left at its end bounds the request.
    """

    session_id: str
    request: SubmitRequest
    execution: str = ""
    created_by: str | None = sparse(None)


class CloseFollowUp(Value):
    """The input of the activity `close_follow_up`: topics need not wait for these tasks any more.

    `cancel` asks the server to cancel the follow-up itself, for this reason.
    """

    subscriptions: tuple[SubscribeRequest, ...] = ()
    cancel: str | None = None

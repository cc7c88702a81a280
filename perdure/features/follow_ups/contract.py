"""Follow-ups: tasks that resolve later, with their commands and events (E1 to E9).

Names and shapes are the source's; its `workflowId` identifies a follow-up. Times are milliseconds since 1970.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_core import to_json

from perdure.contracts.bounds import Latest, LatestNotices
from perdure.contracts.conversation import MAX_ID_LENGTH, Headers, Id, SubmitRequest
from perdure.contracts.models import (
    MAX_NESTING,
    CamelModel,
    FrozenModel,
    StrictCamelModel,
    StrictModel,
    nesting_depth,
    omit_default,
)
from perdure.contracts.people import Sender, Work
from perdure.contracts.run.limits import Share

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


class Subscriptions(Latest[Subscription], most=300):
    """The subscriptions of a topic; the open ones are last."""


class KnownEvents(Latest[str], most=5000):
    """Short digests of events, by which a repeated one is recognized."""


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
    subscriptions: Subscriptions = Subscriptions()
    marks: tuple[str, ...] = ()
    known: KnownEvents = omit_default(KnownEvents())
    late: LatestNotices = LatestNotices()
    forgotten: int = 0
    ignored: LatestNotices = LatestNotices()


MAX_FOLLOW_UP_TASKS = 50  # of a follow-up: with their inputs and results they must fit one payload
MAX_DESCRIPTION = 1000  # characters
MAX_FOLLOW_UP_SUMMARY = 20_000  # characters
MAX_TASK_INPUT = 8 * 1024  # bytes
MAX_TASK_RESULT = 16 * 1024  # bytes
MAX_FOLLOW_UP_ID = MAX_ID_LENGTH - 10  # characters: the id of the resuming request contains it


class FollowUpStatus(StrEnum):
    """The status of a follow-up, and of each of its tasks (E2)."""

    queued = "queued"
    running = "running"
    blocked = "blocked"  # waits for something from outside
    resolved = "resolved"
    failed = "failed"
    cancelled = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (FollowUpStatus.resolved, FollowUpStatus.failed, FollowUpStatus.cancelled)


class Completion(StrEnum):
    all = "all"  # when the turn that created the tasks and every task have ended
    any = "any"  # with the first task; the others are cancelled


class FollowUpFailure(StrEnum):
    """The reason that a follow-up ended Failed."""

    no_tasks = "NoTasks"
    """The turn that created it has ended without creating a task."""
    refused = "Refused"
    """The lane rejects the request that resumes the work. The message has the lane's reason."""


class ResumeTarget(StrictModel):
    """The conversation in which the work resumes."""

    session_id: Id
    """The id of the conversation."""
    request_client: Id = "perdure"
    """The client that the request is made for."""
    mention_user_id: Id | None = None
    """The user that the answer should mention; passed to the agent."""


class FollowUpDefinition(StrictCamelModel):
    """The definition of a follow-up. On resume, the agent knows only `summary` and the tasks (E8)."""

    version: Literal[2] = 2
    origin: Headers
    """The request that the follow-up came from."""
    resume_target: ResumeTarget
    summary: str = Field(min_length=1, max_length=MAX_FOLLOW_UP_SUMMARY)
    """The work so far and what it waits for: all that the agent knows on resume, apart from the tasks."""
    completion: Completion = Completion.all
    """`all`: ends with the last task. `any`: ends with the first; the others are cancelled."""


class CreateData(StrictCamelModel):
    workflow_id: str = Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=MAX_FOLLOW_UP_ID)
    """The follow-up's name; its workflow id is `wf:` followed by it."""
    definition: FollowUpDefinition
    run_id: str | None = Field(default=None, min_length=1, max_length=1000)
    """The run whose turn creates the tasks. `all` waits for its end."""
    agent: Id | None = None
    """The agent that resumes the work; by default the conversation's last agent."""
    share: Share | None = omit_default(None)
    """The part of the creating run's budget for the resumed work. Set by the run."""
    work: Work | None = omit_default(None)
    """The request that the resumed work belongs to, for the rules of a policy. Set by the run."""
    quiet: bool = omit_default(default=False)
    """`true` for that of a trial: it sends no message, and the work that it resumes is a trial. Set by the run."""


class CreateCommand(StrictModel):
    """The input of `FollowUp`."""

    type: Literal["cmd.workflow.create"] = "cmd.workflow.create"
    headers: Headers = Headers.model_construct()
    data: CreateData
    answer_keys: dict[str, str] = omit_default({})
    """Public keys by id; only answers signed with one of them are accepted. Set by the run's worker."""


class TaskData(StrictCamelModel):
    workflow_id: Id
    """The follow-up's name."""
    task_id: str = Field(pattern=r"^[A-Za-z0-9._:-]+$", max_length=MAX_ID_LENGTH)  # it is sent in an HTTP header
    """New in its follow-up; a repeat has no effect."""
    kind: str = Field(min_length=1, max_length=100)
    """One of the [kinds](#kinds-of-tasks), which defines `input`."""
    description: str = Field(min_length=1, max_length=MAX_DESCRIPTION)
    """The awaited thing, in words."""
    input: dict[str, Any] = Field(default_factory=dict)
    """The input of its kind; up to 8 KiB."""
    run_id: str | None = Field(default=None, min_length=1, max_length=1000)
    """As in `cmd.workflow.create`."""
    has_read: tuple[str, ...] = omit_default(())
    """The sources that the run had read before it wrote the task, for the rules of a policy. Set by the run."""

    @field_validator("description")
    @classmethod
    def _check_description(cls, description: str) -> str:
        if not description.strip():
            raise ValueError("the description is empty: say what is waited for, in words")
        return description

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        if len(to_json(self.input)) > MAX_TASK_INPUT:
            raise ValueError(f"the input may have {MAX_TASK_INPUT:,} bytes")
        return self


class TaskCommand(StrictModel):
    """The body of the signal `task_create`, and of the update `create_task`, which returns a result."""

    type: Literal["cmd.workflow.task.create"] = "cmd.workflow.task.create"
    headers: Headers = Headers.model_construct()
    data: TaskData


class CancelData(StrictCamelModel):
    workflow_id: str | None = None
    """The follow-up's name; optional."""
    reason: str | None = Field(default=None, max_length=2000)
    """Shown with the follow-up."""


class CancelCommand(StrictModel):
    type: Literal["cmd.workflow.cancel"] = "cmd.workflow.cancel"
    headers: Headers = Headers.model_construct()
    data: CancelData = CancelData()


class TaskResolved(StrictCamelModel):
    """The body of the signal `task_resolved`: an event for the task to match, or its `result`."""

    workflow_id: str | None = None
    """The follow-up's name; optional."""
    task_id: Id
    event: Event | None = None
    """An event for the task to match. Give either this or `result`."""
    result: Any = None
    """Resolves the task at once; up to 16 KiB."""
    resolved_by: str | None = Field(default=None, min_length=1, max_length=2 * MAX_ID_LENGTH)
    """The person or program that resolved it."""

    @model_validator(mode="after")
    def _check_one_of(self) -> Self:
        if (self.event is None) == (self.result is None):
            raise ValueError('give either "event" or "result"')
        return self


class Task(CamelModel):
    """A task. `resolved_by` is the first cause of its end: an event's id, "timeout", "clock" or a person (E4)."""

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


class Late(CamelModel):
    """An event that arrived after its task had ended."""

    task_id: str
    event: str
    at: int


class LateEvents(Latest[Late], most=20):
    """Events that arrived after their tasks had ended."""


class LifecycleEvent(FrozenModel):
    """One of the source's `evt.workflow.*`, with the headers of the request that the follow-up came from."""

    type: str
    headers: Headers
    data: dict[str, Any]


class FollowUpState(CamelModel):
    """The state of a `FollowUp`: its input after continue-as-new, and the answer of `state`.

    `runs` are those whose turn may still create tasks. `idle_until` bounds the wait for a first task if no run is
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
    execution: str = ""  # the first Temporal execution: the key of its ledger
    agent: str | None = None  # the agent that resumes the work
    created_by: str | None = omit_default(None)  # the run whose budget the resumed work shares
    share: Share | None = omit_default(None)  # the rest of it when the follow-up was created
    work: Work | None = omit_default(None)  # of the resumed run
    quiet: bool = omit_default(default=False)  # it belongs to a trial
    answer_keys: dict[str, str] = omit_default(
        {}
    )  # public keys by id; only answers signed with one of them are accepted
    resume_seq: int = 0
    late: LateEvents = LateEvents()
    events: tuple[LifecycleEvent, ...] = ()  # the latest, bounded
    ignored: LatestNotices = LatestNotices()  # signals that had no effect, with reasons


class FollowUpCommands(FrozenModel):
    """The input of the activity `command_follow_up`: a follow-up to create, a task to add, or both."""

    create: CreateCommand | None = None
    task: TaskCommand | None = None


class SubscribeRequest(FrozenModel):
    """The input of the activity `subscribe_task`."""

    topic: str
    task_id: str
    expires_at: int | None


class Outbound(StrictCamelModel):
    """A message that `notify` sends through the outbox."""

    channel_id: Id
    """The destination channel."""
    text: str = Field(min_length=1, max_length=4000)
    platform: Id | None = None
    """The platform of the channel."""
    reply_to: Id | None = omit_default(None)
    """The message or issue that it answers."""


class NotifyRequest(FrozenModel):
    """The input of the activity `notify`. `number` is the task's place in its follow-up, `execution` the follow-up's
    first Temporal execution.
    """

    task_id: str
    number: int
    execution: str
    message: Outbound


class ResumeWork(FrozenModel):
    """The input of the activity `resume_work`: a new request for the lane of `session_id` (E6).

    `execution` is the follow-up's first Temporal execution: another follow-up may have the same id. `created_by` is
    the run whose remaining budget bounds the request.
    """

    session_id: str
    request: SubmitRequest
    execution: str = ""
    created_by: str | None = omit_default(None)


class CloseFollowUp(FrozenModel):
    """The input of the activity `close_follow_up`: ends these subscriptions.

    `cancel` asks the server to cancel the follow-up itself, for this reason.
    """

    subscriptions: tuple[SubscribeRequest, ...] = ()
    cancel: str | None = None

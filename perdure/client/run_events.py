"""The events of a run."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, ClassVar

from pydantic import BaseModel

from perdure.contracts.media import Attachment
from perdure.contracts.run.signals import HumanInput
from perdure.contracts.run.state import QuestionView, RunStatus
from perdure.contracts.run.turn import (
    Acceptance,
    ContextFull,
    ModelTurn,
    PolicyReview,
    Summary,
)
from perdure.contracts.tool import ToolCall, ToolError, ToolOutcome

# The trace holds more notices; people see the others as a call, a summary, a question or the end.
PLANNED = "agent.call.planned"
PUBLIC_NOTICES = (PLANNED, "agent.guardrail.escalated", "agent.exhaustion.soft_limit")


@dataclass(frozen=True)
class TimedEvent:
    """The base of all events. `at` is the time of the server's event, or of the reading if it is not in history."""

    type: ClassVar[str]
    at: datetime | None = field(default=None, compare=False, kw_only=True)


@dataclass(frozen=True)
class RunStarted(TimedEvent):
    type: ClassVar = "run_started"
    goal: str
    attachments: tuple[Attachment, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True)
class ModelCallStarted(TimedEvent):
    type: ClassVar = "model_call_started"
    phase: str  # plan or reflect
    turn: int


@dataclass(frozen=True)
class ModelReplied(TimedEvent):
    type: ClassVar = "model_replied"
    phase: str
    turn: int
    reply: ModelTurn
    calls: tuple[str, ...] = ()
    """The reply's calls of features' tools that have no events of their own, each as a line."""


@dataclass(frozen=True)
class ContextFilled(TimedEvent):
    """The conversation is too long for the model: it was not called, or refused."""

    type: ClassVar = "context_full"
    full: ContextFull


@dataclass(frozen=True)
class ContextCompacted(TimedEvent):
    """A summary replaces the older messages."""

    type: ClassVar = "context_compacted"
    summary: Summary


@dataclass(frozen=True)
class OutcomeChecked(TimedEvent):
    """The agent's `accept` accepted the outcome, or rejected it with a reason."""

    type: ClassVar = "outcome_checked"
    acceptance: Acceptance


@dataclass(frozen=True)
class CallsReviewed(TimedEvent):
    """Models reviewed calls, as rules of the policy ask for."""

    type: ClassVar = "calls_reviewed"
    reviews: tuple[PolicyReview, ...]


@dataclass(frozen=True)
class NoticeAdded(TimedEvent):
    """A limit or a loop that the run acted on, or a call that its plan approves, with its figures."""

    type: ClassVar = "notice_added"
    event: dict[str, Any]


@dataclass(frozen=True)
class ToolCallStarted(TimedEvent):
    type: ClassVar = "tool_call_started"
    call: ToolCall


@dataclass(frozen=True)
class ToolCallFinished(TimedEvent):
    type: ClassVar = "tool_call_finished"
    call: ToolCall
    outcome: ToolOutcome


@dataclass(frozen=True)
class ToolCallWaiting(TimedEvent):
    """The server of a tool has not finished a call: it has made it a task, or asks people first. `text` says which.

    One without a `tool_use_id` is a later look with news, which is not in history.
    """

    type: ClassVar = "tool_call_waiting"
    text: str
    step: int = 0
    tool: str = ""
    tool_use_id: str = ""


@dataclass(frozen=True)
class ToolCallRefused(TimedEvent):
    """A call that was not made: it is denied or invalid, or nothing is left for it. `call` is the call as a line.

    `step` is unset if the call was refused before it took one.
    """

    type: ClassVar = "tool_call_refused"
    tool: str
    tool_use_id: str
    step: int | None
    call: str
    error: ToolError


@dataclass(frozen=True)
class ToolResultReceived(TimedEvent):
    """A result from outside has reached the run, which takes it if it waits for it. A large one is cut."""

    type: ClassVar = "tool_result_received"
    step: int
    tool: str
    outcome: ToolOutcome


@dataclass(frozen=True)
class SubtaskMove:
    """A subtask as an event reports it. `run_id` is empty for a peer that lives outside."""

    id: str
    agent: str
    run_id: str
    status: str
    outcome: str = ""


@dataclass(frozen=True)
class FeatureEvent(TimedEvent, ABC):
    """An event of a feature, whose reader is in the feature's row. It says itself how it is shown."""

    activity: ClassVar[str]  # what it is about, by the name that an `ActivityFailed` has

    @property
    def step(self) -> int:
        """The step of the run that it belongs to; 0: none."""
        return 0

    @property
    def doing(self) -> str:
        """The work of the run from now on; empty: none."""
        return ""

    @property
    def subtasks(self) -> tuple[SubtaskMove, ...]:
        """The subtasks that it is about."""
        return ()

    @abstractmethod
    def lines(self, width: int | None) -> Iterator[Any]:
        """Yield the lines for a person, as `perdure.terminal.event_lines` does."""


@dataclass(frozen=True)
class ActivityFailed(TimedEvent):
    """An activity failed for good; the run decides what that means. `tool_use_id` is set if it made a call."""

    type: ClassVar = "activity_failed"
    activity: str
    error: str
    tool_use_id: str = ""


@dataclass(frozen=True)
class WaitStarted(TimedEvent):
    """The run waits for a person, or for a result from outside.

    `questions` are those that are open at this point. Without a worker that answers, an open one is not known.
    """

    type: ClassVar = "wait_started"
    status: str
    waiting_for: str
    questions: tuple[QuestionView, ...] = ()

    @property
    def is_for_person(self) -> bool:
        return self.status == RunStatus.waiting_on_human


@dataclass(frozen=True)
class WaitEnded(TimedEvent):
    type: ClassVar = "wait_ended"


@dataclass(frozen=True)
class SignalReceived(TimedEvent):
    type: ClassVar = "signal_received"
    signal: str


@dataclass(frozen=True)
class AnswerReceived(TimedEvent):
    """The run took an answer to an open question. `before` has the arguments of the call, if it changed them."""

    type: ClassVar = "answer_received"
    answer: HumanInput
    before: dict[str, Any] | None = None


@dataclass(frozen=True)
class AnswerRejected(TimedEvent):
    """The run did not take an answer that had reached it, for this reason."""

    type: ClassVar = "answer_rejected"
    answer: HumanInput
    reason: str


@dataclass(frozen=True)
class QuestionClosed(TimedEvent):
    """A question is not open any more: it was `answered`, has `expired`, or was `withdrawn`.

    The run reports it with its next activity, so `at` is the time of the report, and `closed_at` that of the end.
    """

    type: ClassVar = "question_closed"
    question: QuestionView
    end: str
    closed_at: datetime


@dataclass(frozen=True)
class ContinuedAsNew(TimedEvent):
    type: ClassVar = "continued_as_new"


@dataclass(frozen=True)
class PartialText(TimedEvent):
    """The model's answer so far, or the end of a long one; not in history yet. `turn` is 0 if it is not known."""

    type: ClassVar = "partial_text"
    text: str
    turn: int = field(default=0, compare=False, kw_only=True)


@dataclass(frozen=True)
class RateLimitWait(PartialText):
    """A rate limit delays the model call, and the text says why; not in history."""

    type: ClassVar = "rate_limited"


@dataclass(frozen=True)
class BatchWait(PartialText):
    """The model call waits for a batch, and the text says since when; not in history."""

    type: ClassVar = "batch_wait"


@dataclass(frozen=True)
class ActivityRetrying(TimedEvent):
    """An activity failed and is tried again; in history only if it shared an activity with others."""

    type: ClassVar = "activity_retrying"
    activity: str
    attempt: int
    error: str


@dataclass(frozen=True)
class RunHeld(TimedEvent):
    """An activity waits on the server, paused, before its call; not in history.

    `by` is what holds it, such as "pause:all", and `why` says it in words. If a person paused it elsewhere,
    `by` is "".
    """

    type: ClassVar = "run_held"
    activity: str
    by: str
    why: str
    since: datetime


@dataclass(frozen=True)
class HoldEnded(RunHeld):
    """An activity that was held from `since` to `until` has ended."""

    type: ClassVar = "hold_ended"
    until: datetime


@dataclass(frozen=True)
class UnreadableEvent(TimedEvent):
    """An event of the history that this version cannot read: its type in Temporal, and its number."""

    type: ClassVar = "unreadable_event"
    event_type: str
    event_id: int


@dataclass(frozen=True)
class RunEnded(TimedEvent):
    """The run has ended; `runs.wait_for_run_end` returns how."""

    type: ClassVar = "run_ended"


ModelEvent = (
    ModelCallStarted | ModelReplied | ContextFilled | ContextCompacted | OutcomeChecked | CallsReviewed | NoticeAdded
)
CallEvent = (
    ToolCallStarted
    | ToolCallFinished
    | ToolCallWaiting
    | ToolCallRefused
    | ToolResultReceived
    | FeatureEvent
    | ActivityFailed
)
PersonEvent = WaitStarted | WaitEnded | SignalReceived | AnswerReceived | AnswerRejected | QuestionClosed
LiveEvent = PartialText | RateLimitWait | BatchWait | ActivityRetrying | RunHeld  # not in history
OtherEvent = RunStarted | HoldEnded | ContinuedAsNew | UnreadableEvent | RunEnded
RunEvent = ModelEvent | CallEvent | PersonEvent | OtherEvent | LiveEvent


def event_to_json(event: RunEvent) -> str:
    """Format an event as one line of JSON, in ASCII: other characters may end a line for its reader (U+2028)."""

    def to_plain(value: Any) -> Any:
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json")
        if isinstance(value, datetime):
            return value.isoformat(timespec="milliseconds")
        if isinstance(value, tuple):
            return [to_plain(part) for part in value]
        return value if isinstance(value, dict) else str(value)

    values = {field.name: getattr(event, field.name) for field in fields(event)}
    return json.dumps({"type": event.type, **values}, default=to_plain)

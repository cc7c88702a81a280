"""The events of a run, as `perdure watch` and the gateway's stream report them."""

import json
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from pydantic import BaseModel

from contracts.delegation import DelegationRequest, DelegationState
from contracts.media import Attachment
from contracts.run.compaction import ContextFull, Summary
from contracts.run.signals import HumanInput
from contracts.run.state import QuestionView
from contracts.run.turn import Acceptance, ModelTurn, PolicyReview
from contracts.tool import ToolCall, ToolOutcome

# The trace holds more notices; people see the others as a call, a summary, a question or the end.
PUBLIC_NOTICES = ("agent.guardrail.escalated", "agent.exhaustion.soft_limit", "refused")


@dataclass(frozen=True)
class RunStarted:
    type: ClassVar = "run_started"
    goal: str
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True)
class ModelCallStarted:
    type: ClassVar = "model_call_started"
    phase: str  # plan or reflect
    turn: int


@dataclass(frozen=True)
class ModelReplied:
    type: ClassVar = "model_replied"
    phase: str
    turn: int
    reply: ModelTurn


@dataclass(frozen=True)
class ContextFilled:
    """The conversation is too long for the model: it was not called, or refused."""

    type: ClassVar = "context_full"
    full: ContextFull


@dataclass(frozen=True)
class ContextCompacted:
    """A summary replaces the older messages."""

    type: ClassVar = "context_compacted"
    summary: Summary


@dataclass(frozen=True)
class OutcomeChecked:
    """The agent's `accept` accepted the outcome, or rejected it with a reason."""

    type: ClassVar = "outcome_checked"
    acceptance: Acceptance


@dataclass(frozen=True)
class CallsReviewed:
    """Models reviewed calls, as rules of the policy ask for."""

    type: ClassVar = "calls_reviewed"
    reviews: tuple[PolicyReview, ...]


@dataclass(frozen=True)
class NoticeAdded:
    """A limit, a loop or a rejected call that the run acted on, with its figures."""

    type: ClassVar = "notice_added"
    event: dict[str, Any]


@dataclass(frozen=True)
class ToolCallStarted:
    type: ClassVar = "tool_call_started"
    call: ToolCall


@dataclass(frozen=True)
class ToolCallFinished:
    type: ClassVar = "tool_call_finished"
    call: ToolCall
    outcome: ToolOutcome


@dataclass(frozen=True)
class DelegationStarted:
    """Subtasks were handed to peers; each becomes a run of its own."""

    type: ClassVar = "delegation_started"
    request: DelegationRequest


@dataclass(frozen=True)
class DelegationFinished:
    type: ClassVar = "delegation_finished"
    state: DelegationState


@dataclass(frozen=True)
class ActivityFailed:
    """An activity failed for good; the run decides what that means."""

    type: ClassVar = "activity_failed"
    activity: str
    error: str


@dataclass(frozen=True)
class WaitStarted:
    """The run waits for a person, or for a result from outside. `question` needs a worker."""

    type: ClassVar = "wait_started"
    status: str
    waiting_for: str
    question: QuestionView | None = None


@dataclass(frozen=True)
class WaitEnded:
    type: ClassVar = "wait_ended"


@dataclass(frozen=True)
class SignalReceived:
    type: ClassVar = "signal_received"
    signal: str


@dataclass(frozen=True)
class AnswerReceived:
    """A person replied to the open question; a reply by signal may not have answered it."""

    type: ClassVar = "answer_received"
    answer: HumanInput


@dataclass(frozen=True)
class ContinuedAsNew:
    type: ClassVar = "continued_as_new"


@dataclass(frozen=True)
class PartialText:
    """The model's answer so far; not in history yet."""

    type: ClassVar = "partial_text"
    text: str


@dataclass(frozen=True)
class RateLimitWait(PartialText):
    """A rate limit delays the model call, and the text says why; not in history."""

    type: ClassVar = "rate_limited"


@dataclass(frozen=True)
class BatchWait(PartialText):
    """The model call waits for a batch, and the text says since when; not in history."""

    type: ClassVar = "batch_wait"


@dataclass(frozen=True)
class ActivityRetrying:
    """An activity failed and is tried again; in history only if it shared an activity with others."""

    type: ClassVar = "activity_retrying"
    activity: str
    attempt: int
    error: str


@dataclass(frozen=True)
class RunEnded:
    """The run has ended; `runs.wait_for_run_end` returns how."""

    type: ClassVar = "run_ended"


ModelEvent = (
    ModelCallStarted | ModelReplied | ContextFilled | ContextCompacted | OutcomeChecked | CallsReviewed | NoticeAdded
)
CallEvent = ToolCallStarted | ToolCallFinished | DelegationStarted | DelegationFinished | ActivityFailed
PersonEvent = WaitStarted | WaitEnded | SignalReceived | AnswerReceived
LiveEvent = PartialText | RateLimitWait | BatchWait | ActivityRetrying  # not in history
RunEvent = RunStarted | ModelEvent | CallEvent | PersonEvent | ContinuedAsNew | LiveEvent | RunEnded


def event_to_json(event: RunEvent) -> str:
    """Format an event as one line of JSON, in ASCII: other characters may end a line for its reader (U+2028)."""

    def to_plain(value: Any) -> Any:
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json")
        return value if isinstance(value, dict) else str(value)

    values = {field.name: getattr(event, field.name) for field in fields(event)}
    return json.dumps({"type": event.type, **values}, default=to_plain)

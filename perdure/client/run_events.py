"""The events of a run, as `perdure watch` and the gateway's stream report them."""

import json
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from pydantic import BaseModel

from contracts.delegation import DelegationRequest, DelegationState
from contracts.run.compaction import ContextFull, Summary
from contracts.run.signals import HumanInput
from contracts.run.state import QuestionView
from contracts.run.turn import ModelTurn
from contracts.tool import ToolCall, ToolOutcome

# The trace holds more notices; people see the others as a call, a summary, a question or the end.
TOLD_TO_PEOPLE = ("agent.guardrail.escalated", "agent.exhaustion.soft_limit", "refused")


@dataclass(frozen=True)
class Started:
    type: ClassVar = "run_started"
    goal: str


@dataclass(frozen=True)
class Thinking:
    type: ClassVar = "model_call_started"
    phase: str  # plan or reflect
    turn: int


@dataclass(frozen=True)
class Thought:
    type: ClassVar = "model_replied"
    phase: str
    turn: int
    reply: ModelTurn


@dataclass(frozen=True)
class Crowded:
    """The conversation is too long for the model: it was not called, or refused."""

    type: ClassVar = "context_full"
    full: ContextFull


@dataclass(frozen=True)
class Shortened:
    """A summary replaces the older messages."""

    type: ClassVar = "context_compacted"
    summary: Summary


@dataclass(frozen=True)
class Noticed:
    """A limit, a loop or a rejected call that the run acted on, with its figures."""

    type: ClassVar = "notice_added"
    event: dict[str, Any]


@dataclass(frozen=True)
class Calling:
    type: ClassVar = "tool_call_started"
    call: ToolCall


@dataclass(frozen=True)
class Called:
    type: ClassVar = "tool_call_finished"
    call: ToolCall
    outcome: ToolOutcome


@dataclass(frozen=True)
class Delegating:
    """Subtasks were handed to peers; each becomes a run of its own."""

    type: ClassVar = "delegation_started"
    request: DelegationRequest


@dataclass(frozen=True)
class Delegated:
    """All subtasks have ended."""

    type: ClassVar = "delegation_finished"
    state: DelegationState


@dataclass(frozen=True)
class Failed:
    """An activity failed for good; the run decides what that means."""

    type: ClassVar = "activity_failed"
    activity: str
    error: str


@dataclass(frozen=True)
class Waiting:
    """The run waits for a person, or for a result from outside. `question` needs a worker."""

    type: ClassVar = "wait_started"
    status: str
    waiting_for: str
    question: QuestionView | None = None


@dataclass(frozen=True)
class Resumed:
    """The run no longer waits."""

    type: ClassVar = "wait_ended"


@dataclass(frozen=True)
class Signalled:
    """A signal reached the run."""

    type: ClassVar = "signal_received"
    signal: str


@dataclass(frozen=True)
class Answered:
    """A person replied to the open question; a reply by signal may not have answered it."""

    type: ClassVar = "answer_received"
    answer: HumanInput


@dataclass(frozen=True)
class Rotated:
    """The run continued as new."""

    type: ClassVar = "continued_as_new"


@dataclass(frozen=True)
class Live:
    """The model's answer so far; not in history yet."""

    type: ClassVar = "partial_text"
    text: str


@dataclass(frozen=True)
class Held(Live):
    """A rate limit delays the model call, and the text says why; not in history."""

    type: ClassVar = "rate_limited"


@dataclass(frozen=True)
class Retrying:
    """An activity failed and is tried again; not in history yet."""

    type: ClassVar = "activity_retrying"
    activity: str
    attempt: int
    error: str


@dataclass(frozen=True)
class Over:
    """The run has ended; `runs.ended` returns how."""

    type: ClassVar = "run_ended"


Happening = (
    Started
    | Thinking
    | Thought
    | Crowded
    | Shortened
    | Noticed
    | Calling
    | Called
    | Delegating
    | Delegated
    | Failed
    | Waiting
    | Resumed
    | Signalled
    | Answered
    | Rotated
    | Live
    | Held
    | Retrying
    | Over
)


def happening_json(event: Happening) -> str:
    """Format an event as one line of JSON, in ASCII: other characters may end a line for its reader (U+2028)."""

    def to_plain(value: Any) -> Any:
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json")
        return value if isinstance(value, dict) else str(value)

    values = {field.name: getattr(event, field.name) for field in fields(event)}
    return json.dumps({"type": event.type, **values}, default=to_plain)

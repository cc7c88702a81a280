"""What can happen in a run, as a person or a program that watches it is told."""

import json
from dataclasses import dataclass, fields
from typing import Any

from pydantic import BaseModel

from contracts.delegation import DelegationRequest, DelegationState
from contracts.run.compaction import ContextFull, Summary
from contracts.run.signals import HumanInput
from contracts.run.state import QuestionView
from contracts.run.turn import ModelTurn
from contracts.tool import ToolCall, ToolOutcome

# What else is told to the trace, people see anyway: as a call, a summary, a question, or the end.
TOLD_TO_PEOPLE = ("agent.guardrail.escalated", "agent.exhaustion.soft_limit", "refused")


@dataclass(frozen=True)
class Started:
    goal: str


@dataclass(frozen=True)
class Thinking:
    phase: str  # plan or reflect
    turn: int


@dataclass(frozen=True)
class Thought:
    phase: str
    turn: int
    reply: ModelTurn


@dataclass(frozen=True)
class Crowded:
    """The model was not asked, or refused: the conversation is too long for it."""

    full: ContextFull


@dataclass(frozen=True)
class Shortened:
    """A summary stands for the older messages now."""

    summary: Summary


@dataclass(frozen=True)
class Noticed:
    """What the run did about itself: one of `TOLD_TO_PEOPLE`, with its figures."""

    event: dict[str, Any]


@dataclass(frozen=True)
class Calling:
    call: ToolCall


@dataclass(frozen=True)
class Called:
    call: ToolCall
    outcome: ToolOutcome


@dataclass(frozen=True)
class Delegating:
    """Subtasks for peers; each becomes a run of its own."""

    request: DelegationRequest


@dataclass(frozen=True)
class Delegated:
    """How all of them ended."""

    state: DelegationState


@dataclass(frozen=True)
class Failed:
    """An activity failed for good; the run decides what that means."""

    what: str
    why: str


@dataclass(frozen=True)
class Waiting:
    """The run waits for a person, or for a result from outside. `question` is None where no worker could tell."""

    status: str
    about: str
    question: QuestionView | None = None


@dataclass(frozen=True)
class Resumed:
    """What the run waited for has come."""


@dataclass(frozen=True)
class Signalled:
    """A signal reached the run."""

    signal: str


@dataclass(frozen=True)
class Answered:
    """A person has said something to the open question; by signal, it may have been no answer to it."""

    answer: HumanInput


@dataclass(frozen=True)
class Rotated:
    """The run continued as new."""


@dataclass(frozen=True)
class Live:
    """The model's answer so far; not in history yet."""

    text: str


@dataclass(frozen=True)
class Held(Live):
    """The model is not asked yet, and the text says why: a rate limit; not in history yet."""


@dataclass(frozen=True)
class Retrying:
    """An activity failed and is tried again; not in history yet."""

    what: str
    attempt: int
    why: str


@dataclass(frozen=True)
class Over:
    """The run has ended. How is told by `runs.ended`."""


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


def happening_json(happening: Happening) -> str:
    """`{"happening": its kind, …}`, in ASCII: other letters may end a line for who reads it (U+2028)."""

    def plain(value: Any) -> Any:
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json")
        return value if isinstance(value, dict) else str(value)

    told = {each.name: getattr(happening, each.name) for each in fields(happening)}
    kind = Live if isinstance(happening, Live) else type(happening)
    return json.dumps({"happening": kind.__name__.lower(), **told}, default=plain)

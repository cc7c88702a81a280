"""The agentic.* events, field for field as their source (RFC-103) has them (A6)."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from contracts.conversation import MAX_ID_LENGTH, Choice, Headers
from contracts.delegation import Assignment
from contracts.limits import LimitOverrides, limits_in
from contracts.tool import ToolError
from contracts.value import Edge, Value


class StartPayload(Edge):
    """`context` is free-form; `max_steps`, `max_reframes` and `max_turns` in it are limits of this run."""

    goal: str = Field(min_length=1, max_length=200_000)
    context: dict[str, Any] = Field(default_factory=dict)
    agent: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    conversation_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    limits: LimitOverrides = LimitOverrides()

    @field_validator("goal")
    @classmethod
    def _says_something(cls, goal: str) -> str:
        if not goal.strip():
            raise ValueError("the goal is empty")
        return goal

    @field_validator("context")
    @classmethod
    def _limits_are_usable(cls, context: dict[str, Any]) -> dict[str, Any]:
        limits_in(context)
        return context


class StartEvent(Edge):
    """The input of `AgentRun`."""

    type: Literal["agentic.start"]
    payload: StartPayload
    dedupe_key: str | None = Field(default=None, min_length=1, max_length=1000)


class ResumePayload(Edge):
    """Without `step`: go on with a failed or timed-out run. With it: fork any run after that step."""

    run_id: str = Field(min_length=1, max_length=1000)
    step: int | None = Field(default=None, ge=0)
    say: str | None = Field(default=None, min_length=1, max_length=200_000)

    @field_validator("say")
    @classmethod
    def _is_said_to_a_fork(cls, say: str | None, info: ValidationInfo) -> str | None:
        if say is not None and info.data.get("step") is None:
            raise ValueError("only a fork can be told something: give a step")
        return say


class ResumeEvent(Edge):
    """The input of an `AgentRun` that goes on from another run."""

    type: Literal["agentic.resume"]
    payload: ResumePayload


class BeginEvent(Value):
    """The input of an `AgentRun` that another workflow starts.

    Of a turn of a conversation: `headers` are its request's, `brief` goes beside the system prompt, `after` names the
    turns whose conversation it goes on with, the latest first, and `raw` is the sender's own. Of a subtask: its
    `assignment`. The work begins once a person has made each of the `choices`.
    """

    type: Literal["agentic.begin"]
    payload: StartPayload
    headers: Headers = Headers()
    brief: str = ""
    is_turn: bool = False
    after: tuple[str, ...] = ()
    raw: dict[str, Any] | None = None
    assignment: Assignment | None = Field(default=None, exclude_if=lambda assignment: assignment is None)
    choices: tuple[Choice, ...] = Field(default=(), exclude_if=lambda choices: not choices)


class ToolRequestPayload(Value):
    run_id: str
    step: int
    tool: str
    tool_command: str = "handle"
    tool_payload: dict[str, Any]
    requested_at: datetime


class ToolRequestEvent(Value):
    """What a tool outside receives. `type` is `agentic.tool_request.<tool>`.

    The model's arguments stay inside `tool_payload`, so they cannot overwrite `run_id`, `step`, `tool` or
    `tool_command` (A12).
    """

    type: str
    payload: ToolRequestPayload
    dedupe_key: str


class ToolResultPayload(Edge):
    run_id: str
    step: int
    tool: str
    status: Literal["ok", "error"]
    result: Any = None
    error: ToolError | None = None
    completed_at: datetime | None = None


class ToolResultEvent(Edge):
    """The body of the signal `tool_result`."""

    type: Literal["agentic.tool_result"] = "agentic.tool_result"
    payload: ToolResultPayload
    dedupe_key: str | None = None


class CompletedPayload(Value):
    run_id: str
    goal: str
    outcome: str
    steps_taken: int
    artifacts: tuple[str, ...]
    partial: bool = Field(default=False, exclude_if=lambda partial: not partial)  # delivered at the soft limit


class CompletedEvent(Value):
    type: Literal["agent.completed"] = "agent.completed"
    payload: CompletedPayload


class EscalatedPayload(Value):
    run_id: str
    goal: str
    reason: str
    detail: str
    steps_taken: int
    artifacts: tuple[str, ...]
    handoff: str


class EscalatedEvent(Value):
    type: Literal["agent.escalated"] = "agent.escalated"
    payload: EscalatedPayload

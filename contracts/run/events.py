"""The agentic.* events, field for field as their source (RFC-103) has them (A6)."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from contracts.conversation import MAX_ID_LENGTH, Choice, Headers
from contracts.delegation import Assignment, Share
from contracts.models import Edge, JsonResult, Value, sparse
from contracts.run.limits import LimitOverrides, limits_in
from contracts.sender import Sender
from contracts.tool import ToolError


class StartPayload(Edge):
    """`context` is free-form; `max_steps`, `max_reframes` and `max_turns` in it are limits of this run."""

    goal: str = Field(min_length=1, max_length=200_000)
    """What to do, in words."""
    context: dict[str, Any] = Field(default_factory=dict)
    """Free-form, and told to the agent. Names of limits in it are limits of this run."""
    agent: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """Who does it; the agent `default` where it is left out."""
    conversation_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """Shown as `ConversationId`. It opens no lane: submit a request for that."""
    limits: LimitOverrides = LimitOverrides()
    """Limits of this run."""

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
    """Two starts with one key are one run. It counts where the run has no id of its own."""
    sender: Sender | None = sparse(None)
    """Where it came in. Perdure's doors set it."""


class ResumePayload(Edge):
    """Without `step`: go on with a failed or timed-out run. With it: fork any run after that step."""

    run_id: str = Field(min_length=1, max_length=1000)
    """The run to go on from."""
    step: int | None = Field(default=None, ge=0)
    """Fork the run after this step, 0 being its start; without it, a failed run is resumed."""
    say: str | None = Field(default=None, min_length=1, max_length=200_000)
    """Told to the agent of a fork."""

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
    sender: Sender | None = sparse(None)
    """Where it came in. Perdure's doors set it."""


class BeginEvent(Value):
    """The input of an `AgentRun` that another workflow starts.

    Of a turn of a conversation: `headers` are its request's, `brief` goes beside the system prompt, `after` names the
    turns whose conversation it goes on with, the latest first, `forget` those that it leaves out of it, and `raw` is
    the sender's own; of one that resumes a follow-up, `share` is what is left of its budget. Of a subtask: its
    `assignment`. The work begins once a person has made each of the `choices`.
    """

    type: Literal["agentic.begin"]
    payload: StartPayload
    headers: Headers = Headers()
    brief: str = ""
    is_turn: bool = False
    after: tuple[str, ...] = ()
    raw: dict[str, Any] | None = None
    assignment: Assignment | None = sparse(None)
    share: Share | None = sparse(None)
    choices: tuple[Choice, ...] = sparse(())
    sender: Sender | None = sparse(None)
    forget: tuple[str, ...] = sparse(())


class ToolRequestPayload(Value):
    run_id: str
    """Of the run that asks."""
    step: int
    """Of the call; counted from 1."""
    tool: str
    tool_command: str = "handle"
    """Always `handle`."""
    tool_payload: dict[str, Any]
    """The arguments, as the model wrote them."""
    requested_at: datetime


class ToolRequestEvent(Value):
    """What a tool outside receives. `type` is `agentic.tool_request.<tool>`.

    The model's arguments stay inside `tool_payload`, so they cannot overwrite `run_id`, `step`, `tool` or
    `tool_command` (A12).
    """

    type: str
    """`agentic.tool_request.<tool>`."""
    payload: ToolRequestPayload
    dedupe_key: str
    """The same on every attempt of a call: what comes again with it was asked already."""
    nonce: str | None = sparse(None)
    """Of the kind `signal`: the result must bring it back at the gateway. Nobody else can know it."""


class ToolResultPayload(Edge):
    run_id: str
    """As the request had it."""
    step: int
    """As the request had it."""
    tool: str
    """As the request had it."""
    status: Literal["ok", "error"]
    result: JsonResult = None
    """With `ok`; at most 512 KiB as JSON. More than 64 KiB becomes an artifact with an excerpt."""
    error: ToolError | None = None
    """With `error`."""
    completed_at: datetime | None = None
    """When the tool was done. With it, a result that is sent twice is not taken for that of a later attempt."""


class ToolResultEvent(Edge):
    """The body of the signal `tool_result`."""

    type: Literal["agentic.tool_result"] = "agentic.tool_result"
    payload: ToolResultPayload
    dedupe_key: str | None = None
    """May be left out: a result counts once, by its step."""
    nonce: str | None = Field(default=None, max_length=200)
    """As the request had it. The gateway takes no result without it; the signal does not look at it."""
    sender: Sender | None = sparse(None)
    """Where it came in. Perdure's doors set it."""


class CompletedPayload(Value):
    run_id: str
    goal: str
    outcome: str
    """What was achieved."""
    steps_taken: int
    """Tool calls."""
    artifacts: tuple[str, ...]
    """Deliverables, relative to the workspace of the run."""
    partial: bool = sparse(False)
    """Delivered at the soft limit. Left out where it is not so."""


class CompletedEvent(Value):
    type: Literal["agent.completed"] = "agent.completed"
    payload: CompletedPayload


class EscalatedPayload(Value):
    run_id: str
    goal: str
    reason: str
    """One of the [reasons](failures.md#escalations)."""
    detail: str
    """What happened, for a person."""
    steps_taken: int
    """Tool calls."""
    artifacts: tuple[str, ...]
    """As of `agent.completed`."""
    handoff: str
    """How the work stands and what to do next, for who goes on with it."""


class EscalatedEvent(Value):
    type: Literal["agent.escalated"] = "agent.escalated"
    payload: EscalatedPayload

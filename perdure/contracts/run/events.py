"""The agentic.* events, field for field as in their source, RFC-103 (A6)."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from perdure.contracts.conversation import MAX_ID_LENGTH, Choice, Headers
from perdure.contracts.media import Attachments
from perdure.contracts.model_settings import Pace
from perdure.contracts.models import FrozenModel, JsonResult, OutputSchema, StrictModel, omit_default, omit_no_result
from perdure.contracts.people import Sender, Work
from perdure.contracts.run.limits import Assignment, Context, LimitOverrides, Share
from perdure.contracts.tool import Effect, ToolError


class PlannedCall(FrozenModel):
    """A call that changes something. `call` is the digest of its tool and arguments."""

    step: int
    """The step of the dry run."""
    tool: str
    """The tool."""
    call: str
    """The digest."""


class DryCall(PlannedCall):
    """A call that a dry run did not make, with its whole arguments."""

    effect: Effect
    arguments: dict[str, Any]


class Plan(StrictModel):
    """The calls of a dry run that the starter of a run approves, each once.

    All other calls that change something need an approval.
    """

    run_id: str = Field(min_length=1, max_length=1000)
    """The dry run."""
    calls: tuple[PlannedCall, ...] = Field(max_length=1000)
    """From the `dry_calls` of its event; leave out those that are to be asked about."""


class ShownCall(PlannedCall):
    """A call in a report."""

    shown: str = ""
    """The call with its arguments, cut at 500 characters."""


class PlanInForce(FrozenModel):
    """A plan that a run follows. `by` is the sender of the start, who approves its calls.

    `calls` are those that were not made yet; they are `shown` once the dry run was looked up.
    """

    run_id: str
    by: Sender | None = None
    calls: tuple[ShownCall, ...] = ()


class PlanReport(FrozenModel):
    """How a run followed its plan: the planned calls that were not made, and the calls that were not planned."""

    run_id: str
    """The dry run."""
    by: str = omit_default("")
    """The person who approved the plan by the start: the gateway's token, or the person at a terminal, if known."""
    missing: tuple[ShownCall, ...] = ()
    unplanned: tuple[ShownCall, ...] = ()


MIDDLE = 3  # the priority of a run by default


class StartPayload(StrictModel):
    """The payload of `agentic.start`."""

    goal: str = Field(min_length=1, max_length=200_000)
    """The task, in words."""
    context: Context = Field(default_factory=dict)
    """Free-form data for the agent. Keys named like limits set limits of this run."""
    agent: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """The agent to run; by default `default`."""
    conversation_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """Shown as `ConversationId`. It opens no lane; submit a request for that."""
    limits: LimitOverrides = LimitOverrides.model_construct()
    """Limits of this run."""
    output_schema: OutputSchema | None = omit_default(None)
    """The JSON Schema of the run's `result`, in place of the agent's."""
    attachments: Attachments = omit_default(())
    """Images and PDF that belong to the goal: [media](../media.md)."""
    pace: Pace | None = omit_default(None)
    """`batch` sends the model calls in [batches](../batches.md); by default the agent's pace, else the project's."""
    dry_run: bool = omit_default(default=False)
    """`true` makes reads only. Each other call has a stand-in for its result, and is listed in `dry_calls`."""
    plan: Plan | None = omit_default(None)
    """The calls of a dry run that the starter approves; not with `dry_run`."""
    quiet: bool = omit_default(default=False)
    """`true` for a trial: no notice, no message of its follow-ups and no mail of it leaves. Dry runs are quiet, too."""
    budget_key: str | None = Field(
        default=None, min_length=1, max_length=MAX_ID_LENGTH, exclude_if=lambda key: key is None
    )
    """The holder of the allowance that the run uses, such as a customer: of a [budget](../budgets.md) per `key`."""
    priority: int = Field(default=MIDDLE, ge=1, le=5, exclude_if=lambda priority: priority == MIDDLE)
    """The weight of the run beside others, with which its owner shares the workers: 1 is the most, 5 the least."""

    @model_validator(mode="after")
    def _check_plan(self) -> "StartPayload":
        if self.dry_run and self.plan is not None:
            raise ValueError("a dry run makes no calls of a plan: give either dry_run or plan")
        return self

    @field_validator("goal")
    @classmethod
    def _check_goal(cls, goal: str) -> str:
        if not goal.strip():
            raise ValueError("the goal is empty")
        return goal


class StartEvent(StrictModel):
    """The input of `AgentRun`."""

    type: Literal["agentic.start"]
    payload: StartPayload
    dedupe_key: str | None = Field(default=None, min_length=1, max_length=1000)
    """Two starts with the same key are one run. Used only if the run has no id of its own."""
    sender: Sender | None = omit_default(None)
    """The entry point that it came through. Set by Perdure."""
    work: Work | None = omit_default(None)
    """The work that it belongs to, if a tool of a run sends it, for the rules of a policy. Set by Perdure."""


class ResumePayload(StrictModel):
    """The payload of `agentic.resume`: resume a failed or timed-out run, or fork any run after `step`."""

    run_id: str = Field(min_length=1, max_length=1000)
    """The run to resume or fork."""
    step: int | None = Field(default=None, ge=0)
    """The step after which to fork, 0 being the start. Without it, a failed run is resumed."""
    say: str | None = Field(default=None, min_length=1, max_length=200_000)
    """A message to the agent of a fork."""

    @field_validator("say")
    @classmethod
    def _check_fork(cls, say: str | None, info: ValidationInfo) -> str | None:
        if say is not None and info.data.get("step") is None:
            raise ValueError("only a fork takes a message: give a step")
        return say


class ResumeEvent(StrictModel):
    """The input of an `AgentRun` that resumes or forks another run."""

    type: Literal["agentic.resume"]
    payload: ResumePayload
    sender: Sender | None = omit_default(None)
    """The entry point that it came through. Set by Perdure."""


class BeginEvent(FrozenModel):
    """The input of an `AgentRun` that another workflow starts.

    A turn of a conversation has the request's `headers` and `raw`, a `brief` for the system prompt, in `after` the
    turns that it continues, the latest first, and in `forget` the turns to leave out. `share` is the remaining budget
    of a follow-up that it resumes. A subtask has an `assignment`. A person makes the `choices` before work begins.
    `work` comes from the run that set it off.
    """

    type: Literal["agentic.begin"]
    payload: StartPayload
    headers: Headers = Headers.model_construct()
    brief: str = ""
    is_turn: bool = False
    after: tuple[str, ...] = ()
    raw: dict[str, Any] | None = None
    assignment: Assignment | None = omit_default(None)
    share: Share | None = omit_default(None)
    choices: tuple[Choice, ...] = omit_default(())
    work: Work | None = omit_default(None)
    sender: Sender | None = omit_default(None)
    forget: tuple[str, ...] = omit_default(())


class ToolRequestPayload(FrozenModel):
    run_id: str
    """The run that makes the call."""
    step: int
    """The step of the call, from 1."""
    tool: str
    tool_command: str = "handle"
    """Always `handle`."""
    tool_payload: dict[str, Any]
    """The arguments from the model."""
    requested_at: datetime


class ToolRequestEvent(FrozenModel):
    """The request to an external tool.

    The model's arguments stay inside `tool_payload`, so they cannot overwrite `run_id`, `step`, `tool` or
    `tool_command` (A12).
    """

    type: str
    """`agentic.tool_request.<tool>`."""
    payload: ToolRequestPayload
    dedupe_key: str
    """Identifies the call: every attempt has the same key, so that a repeat can be ignored."""
    nonce: str | None = omit_default(None)
    """For kind `signal`: a secret that must come back with the result at the gateway."""


class ToolResultPayload(StrictModel):
    run_id: str
    """As in the request."""
    step: int
    """As in the request."""
    tool: str
    """As in the request."""
    status: Literal["ok", "error"]
    result: JsonResult = None
    """For `ok`: up to 512 KiB of JSON. Above 64 KiB it becomes an artifact with an excerpt."""
    error: ToolError | None = None
    """For `error`."""
    completed_at: datetime | None = None
    """The end of the tool's work. It prevents a repeated result from counting for a later attempt."""


class ToolResultEvent(StrictModel):
    """The body of the signal `tool_result`."""

    type: Literal["agentic.tool_result"] = "agentic.tool_result"
    payload: ToolResultPayload
    dedupe_key: str | None = None
    """Optional: a result counts once for its step."""
    nonce: str | None = Field(default=None, max_length=200)
    """As in the request. The gateway requires it; the signal ignores it."""
    sender: Sender | None = omit_default(None)
    """The entry point that it came through. Set by Perdure."""


class CompletedPayload(FrozenModel):
    run_id: str
    goal: str
    outcome: str
    """The achieved result."""
    steps_taken: int
    """Tool calls."""
    artifacts: tuple[str, ...]
    """Deliverables, relative to the workspace of the run."""
    partial: bool = omit_default(False)
    """`true` if delivered at the soft limit, else left out."""
    result: JsonResult = omit_no_result()
    """The result by the run's output schema, which may be `null`; left out if the run has no schema."""
    accepted_by: str = omit_default("")
    """The [check](../accept.md) that accepted the outcome, if the agent has one."""
    dry_run: bool = omit_default(default=False)
    """`true` if it was a dry run, else left out."""
    dry_calls: tuple[DryCall, ...] = omit_default(())
    """The calls that a dry run did not make, in order."""
    plan: PlanReport | None = omit_default(None)
    """The deviations from the plan of the start."""


class CompletedEvent(FrozenModel):
    type: Literal["agent.completed"] = "agent.completed"
    payload: CompletedPayload


class EscalatedPayload(FrozenModel):
    run_id: str
    goal: str
    reason: str
    """One of the [reasons](failures.md#escalations)."""
    detail: str
    """An explanation for people."""
    steps_taken: int
    """Tool calls."""
    artifacts: tuple[str, ...]
    """As in `agent.completed`."""
    handoff: str
    """The state of the work and the next steps, for the person who continues it."""
    dry_run: bool = omit_default(default=False)
    """As in `agent.completed`."""
    dry_calls: tuple[DryCall, ...] = omit_default(())
    """As in `agent.completed`."""
    plan: PlanReport | None = omit_default(None)
    """As in `agent.completed`."""


class EscalatedEvent(FrozenModel):
    type: Literal["agent.escalated"] = "agent.escalated"
    payload: EscalatedPayload

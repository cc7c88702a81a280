"""What a tool is, one call of it, and what came back."""

from enum import StrEnum
from typing import Any, Literal

from contracts.duration import Duration
from contracts.value import Value


class Effect(StrEnum):
    """What a tool does to the world. The retry policy of its calls follows from this alone (B1, B2)."""

    read = "read"  # looks only
    keyed = "keyed"  # changes something, but the other side honours our idempotency key
    once = "once"  # changes something, and must never be repeated by the runtime


class ToolKind(StrEnum):
    """Where a tool lives (A7)."""

    builtin = "builtin"  # a decision: handled inside the workflow, costs no activity
    native = "native"  # comes with Perdure: fetch and the file tools
    python = "python"  # a function in the user's project
    http = "http"  # a POST of the tool request event
    signal = "signal"  # the result comes back as a `tool_result` signal


class Approval(StrEnum):
    never = "never"
    always = "always"


class ToolRoute(Value):
    """The row of the static tool table that a run's decisions need: where a call goes, how it may be retried."""

    name: str
    kind: ToolKind
    effect: Effect
    approval: Approval = Approval.never
    timeout: Duration
    takes_step: bool = True


class ToolCall(Value):
    """The input of the activity `call_tool`.

    `arguments` is None where they are large: they are in the transcript already, as the model wrote them, and
    a byte of conversation enters history once. The activity then looks `tool_use_id` up there, in the transcript
    of `length` parts whose hash is `head`.
    """

    step: int
    tool: str
    tool_use_id: str
    arguments: dict[str, Any] | None
    attempt: int = 1  # grows when a person decides "run again"
    length: int = 0
    head: str = ""


class ToolError(Value):
    """`kind` is one of `contracts.failures.ToolFault`; `retryable` says whether trying again could help."""

    kind: str
    message: str
    retryable: bool = False


class ToolOutcome(Value):
    """What a call brought. `result` is any JSON value; a large one is `{artifact_path, content_type, excerpt}`.

    `artifacts` are the deliverables the call wrote, relative to the run's workspace.
    """

    status: Literal["ok", "error"] = "ok"
    result: Any = None
    error: ToolError | None = None
    artifacts: tuple[str, ...] = ()
    duration_ms: int = 0


def failed(kind: str, message: str, *, retryable: bool = False) -> ToolOutcome:
    """The outcome of a call that brought an error the model should see."""
    return ToolOutcome(status="error", error=ToolError(kind=kind, message=message, retryable=retryable))

"""One run in one file, for an audit: what it was asked, said, called, cost and was told by people (`docs/audit.md`)."""

from datetime import datetime
from typing import Any, Literal

from contracts.agent import Definition
from contracts.models import Value
from contracts.run.state import RunView
from contracts.run.transcript import Part
from contracts.run.turn import Usage
from contracts.sender import Sender, SentBy

VERSION = 1  # grows when a field goes, or means something else; a new field alone is no new version


class ExportedExecution(Value):
    """One Temporal execution of the run: it continues as new when its history is long.

    Each event is `{"id", "type", "at", "summary"?, …}`, with the attributes as Temporal's API names them, and payloads
    decoded. Of the default values there, nothing is told.
    """

    execution: str
    events: list[dict[str, Any]]


class ExportedTurn(Value):
    """One model call, or one summary. `failure` is why it brought no reply; `attempts` are those of its activity."""

    activity: str  # plan, reflect or summarize
    turn: int | None
    requested_at: datetime
    ended_at: datetime | None = None
    attempts: int = 0
    worker: str = ""
    model: str = ""
    stop_reason: str | None = None
    usage: Usage = Usage()
    cost_usd: float | None = None  # None: the price is not known, or there was no reply
    duration_ms: int = 0
    definition: str = ""
    failure: str | None = None


class ExportedAttempt(Value):
    """One activity that made a call: with its retries it is one, and another where a person had it run again."""

    generation: int
    requested_at: datetime
    ended_at: datetime | None = None
    attempts: int = 0
    worker: str = ""
    approval: str | None = None  # digest of the call that a person approved
    outcome: dict[str, Any] | None = None  # `contracts.tool.ToolOutcome`
    failure: str | None = None


class ExportedCall(Value):
    """One tool use. `made` is empty of a built-in, which the run decides by itself, and of a call that was not made.

    `digest` is what an approval is bound to. `shown` is what the model was shown as its result.
    """

    tool_use_id: str
    tool: str
    turn: int | None
    step: int | None = None
    effect: str | None = None
    arguments: Any
    digest: str
    made: tuple[ExportedAttempt, ...] = ()
    from_outside: tuple[dict[str, Any], ...] = ()  # `agentic.tool_result` events for its step, and when they came
    shown: Any = None
    is_error: bool | None = None


class ExportedAnswer(Value):
    """What a person sent while a question was open. `by` is as they called themselves, `identity` their client's."""

    at: datetime
    via: Literal["update", "signal"]
    sender: Sender | None = None  # the door it came in by, as that door wrote it
    by: str | None = None
    identity: str = ""
    decision: str | None = None
    text: str | None = None
    call: str | None = None
    signature: str | None = None  # checked by the run where its state names `answer_keys`


class ExportedArrival(SentBy):
    """Something that was sent to the run: its start, a signal, an update, or Temporal's own cancel."""

    at: datetime
    kind: Literal["start", "signal", "update", "cancel"]
    name: str = ""  # of the signal or update


class ExportedQuestion(Value):
    """A question to a person. Of several signals the first that fits has answered it; an update was checked before.

    `text` is the whole question where it is known, else as `WaitingFor` had it.
    """

    id: str
    text: str
    asked_at: datetime
    closed_at: datetime | None = None  # None: it is open, or the run ended with it
    answers: tuple[ExportedAnswer, ...] = ()


class ExportedTranscript(Value):
    """`complete` says that all parts are here, and that their hash chain ends in `head`."""

    length: int
    head: str
    complete: bool
    parts: list[Part]


class ExportedArtifact(Value):
    """`content` is there of text up to 256 KiB."""

    path: str
    size: int
    sha256: str
    content: str | None = None


class Export(Value):
    """`missing` says in a line each what could not be had, and why; whatever else is empty was empty."""

    format: Literal["perdure.run"] = "perdure.run"
    version: int = VERSION
    exported_at: datetime
    run_id: str
    status: str
    end: dict[str, Any] | None
    parent: str | None
    origin: str | None
    start: Any
    usage: Usage
    cost_usd: float | None
    turns: list[ExportedTurn]
    calls: list[ExportedCall]
    questions: list[ExportedQuestion]
    notices: list[dict[str, Any]]
    received: list[ExportedArrival]
    transcript: ExportedTranscript
    definitions: dict[str, Definition]
    artifacts: list[ExportedArtifact]
    subtasks: list[dict[str, Any]]
    state: RunView | None
    executions: list[ExportedExecution]
    versions: dict[str, Any]
    missing: list[str]

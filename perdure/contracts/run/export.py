"""One run in one file, for an audit: model turns, calls, costs and messages from people (`docs/audit.md`)."""

from datetime import datetime
from typing import Any, Literal

from perdure.contracts.agent import Definition
from perdure.contracts.models import FrozenModel, omit_default
from perdure.contracts.people import Sender, SentBy
from perdure.contracts.run.state import RunView
from perdure.contracts.run.transcript import Part
from perdure.contracts.run.turn import Usage

VERSION = 1  # grows when a field is removed or changes its meaning, not when one is added


class ExportedExecution(FrozenModel):
    """One Temporal execution of the run, which continues as new when its history is long.

    Each event is `{"id", "type", "at", "summary"?, …}`, with attributes named as in Temporal's API and payloads
    decoded. Default values are left out.
    """

    execution: str
    events: list[dict[str, Any]]


class ExportedTurn(FrozenModel):
    """One model call, one summary, or one check of an outcome or review of a call, with its `verdict`.

    `failure` is the reason for a missing reply; `attempts` are the activity's.
    """

    activity: str  # plan, reflect, summarize, accept_outcome; or review_call, which is made within another one
    turn: int | None
    requested_at: datetime
    ended_at: datetime | None = None
    attempts: int = 0
    worker: str = ""
    model: str = ""
    stop_reason: str | None = None
    usage: Usage = Usage.model_construct()
    cost_usd: float | None = None  # None: no known price, or no reply
    duration_ms: int = 0
    cites: tuple[str, ...] = omit_default(())  # addresses, by the provider's web search
    pieces: int = omit_default(1)  # model calls; more than one if the length limit cut the reply off
    definition: str = ""
    verdict: str = omit_default("")  # "accepted", the reason for a rejection, or that on a call
    failure: str | None = None


class ExportedAttempt(FrozenModel):
    """One activity of a call, with its retries.

    A call has another one if a person decided to run it again, and for each sight of a task that its server has made
    of it.
    """

    generation: int
    requested_at: datetime
    ended_at: datetime | None = None
    attempts: int = 0
    worker: str = ""
    approval: str | None = None  # digest of the call that a person approved
    arguments: dict[str, Any] | None = omit_default(None)  # if a person changed them; the call has the proposed ones
    outcome: dict[str, Any] | None = None  # `perdure.contracts.tool.ToolOutcome`
    failure: str | None = None


class ExportedCall(FrozenModel):
    """One tool use. `made` is empty for built-in tools, which need no activity, and for calls that were not made.

    An approval is bound to `digest`. `shown` is the result as the model saw it.
    """

    tool_use_id: str
    tool: str
    turn: int | None
    step: int | None = None
    effect: str | None = None
    arguments: Any
    digest: str
    made: tuple[ExportedAttempt, ...] = ()
    from_outside: tuple[dict[str, Any], ...] = ()  # `agentic.tool_result` events for its step, with times
    shown: Any = None
    is_error: bool | None = None


class ExportedAnswer(FrozenModel):
    """A person's answer to an open question. `by` and the client's `identity` are self-declared."""

    at: datetime
    via: Literal["update", "signal"]
    sender: Sender | None = None  # the entry point, as recorded by Perdure
    by: str | None = None
    identity: str = ""
    decision: str | None = None
    text: str | None = None
    arguments: dict[str, Any] | None = omit_default(None)  # to make the call with, in place of the proposed ones
    before: dict[str, Any] | None = omit_default(None)  # the arguments of the call until then
    call: str | None = None
    shown: str | None = None  # the question as the person saw it, by what showed it; None if that is not known
    signature: str | None = None  # checked by the run if its state has `answer_keys`


class RejectedAnswer(ExportedAnswer):
    """An answer that the run did not take, and the reason."""

    reason: str


class ExportedArrival(SentBy):
    """A message to the run: its start, a signal, an update, or Temporal's own cancel."""

    at: datetime
    kind: Literal["start", "signal", "update", "cancel"]
    name: str = ""  # of the signal or update


class ExportedQuestion(FrozenModel):
    """A question to a person. `answers` were taken: several if several people must approve. `rejected` had no effect.

    `text` is the whole question if known, else the text of `WaitingFor`.
    """

    id: str
    text: str
    asked_at: datetime
    closed_at: datetime | None = None  # None: open, or open when the run ended
    answers: tuple[ExportedAnswer, ...] = ()
    rejected: tuple[RejectedAnswer, ...] = ()


class ExportedTranscript(FrozenModel):
    """The transcript. `complete`: all parts are present, and their hash chain ends in `head`."""

    length: int
    head: str
    complete: bool
    parts: list[Part]


class ExportedArtifact(FrozenModel):
    """A file of the run. `content` is set for text up to 256 KiB."""

    path: str
    size: int
    sha256: str
    content: str | None = None


class Export(FrozenModel):
    """One run. `missing` lists what could not be read, with reasons; other empty fields were empty in the run."""

    format: Literal["perdure.run"] = "perdure.run"
    version: int = VERSION
    exported_at: datetime
    run_id: str
    status: str
    end: dict[str, Any] | None
    parent: str | None
    origin: str | None
    policy: str | None = None  # the hash of the policy that the run began with
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

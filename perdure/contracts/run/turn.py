"""One model call: request and reply of the activities `plan` and `reflect`; and the check of an outcome."""

from datetime import timedelta
from enum import StrEnum
from typing import Any

from pydantic import Field

from perdure.contracts.models import Duration, FrozenModel, JsonResult, SparseModel, omit_default, omit_no_result
from perdure.contracts.policy import PolicyContext, PolicyVerdict, Verdict
from perdure.contracts.tool import Holdable, ToolCall, ToolOutcome

TURN_MARGIN = timedelta(minutes=2)  # beyond the model's own time: reading the conversation, waiting for the rate limit


class Usage(FrozenModel):
    """Tokens as counted by the provider. `input` excludes tokens written to or read from the cache.

    `cache_write_1h` is the part of `cache_write` that the cache keeps for an hour, at a higher price. `searches` are
    the provider's web searches, which it charges apart. `is_estimated`: some figures are our estimates, because the
    provider reported none.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    searches: int = omit_default(0)
    cache_write_1h: int = omit_default(0)
    is_estimated: bool = omit_default(default=False)

    @property
    def total(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            searches=self.searches + other.searches,
            cache_write_1h=self.cache_write_1h + other.cache_write_1h,
            is_estimated=self.is_estimated or other.is_estimated,
        )


class TurnRequest(SparseModel):
    """A model call: a cursor into the transcript, and the definition by its hash.

    `interrupted`: the run continues after an interruption, so the definition is compared with the project's. `refused`
    is the hash of a newer definition that a person rejected. The reply must call the tool `force`; with `is_closing`
    it may call none. `window` is the model's, if the provider reported it; `unchecked` skips the check against it.
    `trace` are events for the trace. `turn_timeout` bounds the silence of the model's server; the activity's own
    timeout bounds the whole turn. `tokens_left` and `usd_left` are what the budgets allow, if there are any. `policy`
    is set if the run began under a policy.
    """

    turn: int
    length: int
    head: str
    definition: str
    interrupted: bool = False
    refused: str | None = None
    force: str | None = None
    is_closing: bool = False
    window: int | None = None
    unchecked: bool = False
    turn_timeout: Duration = timedelta(seconds=120)
    trace: tuple[dict[str, Any], ...] = ()
    tokens_left: int | None = None
    usd_left: float | None = None
    policy: PolicyContext | None = None


class SkippedModel(FrozenModel):
    """A model that did not answer, with the reason."""

    model: str
    why: str


class PolicyReview(FrozenModel):
    """A review of a call by a model, which a rule of the policy asked for. `verdict` is None if it gave none.

    A person is asked then. `cost_usd` is None if the model's price is not known.
    """

    tool_use_id: str
    tool: str
    rule: str
    model: str
    verdict: Verdict | None = None
    reason: str = ""
    usage: Usage = Usage.model_construct()
    cost_usd: float | None = None
    duration_ms: int = 0


class PolicyVerdicts(SparseModel, Holdable):
    """The verdicts by the id of the tool use, and the reviews that models made for them."""

    verdicts: dict[str, PolicyVerdict] = Field(default_factory=dict)
    reviews: tuple[PolicyReview, ...] = ()


class ModelTurn(SparseModel, Holdable):
    """A reply of `model`. `content` holds the Messages API's content blocks.

    `passed_over` are the models before it in the agent's list. `stop_reason` is the API's. `broken` names the tool
    uses whose arguments were not valid JSON; their `input` is empty. `repeated` names the tool uses that came with an
    already used id, by their new ids. `invalid_results` has the errors of each `finish` whose `result` does not match
    the output schema, by the id of its tool use. `cost_usd` is None if the model's price is not known. `pieces` counts
    the model calls: more than one if the length limit cut the reply off and the rest was asked for. `verdicts` are the
    policy's, by the id of the tool use; `reviews` by models have their own figures.
    """

    content: list[dict[str, Any]]
    stop_reason: str | None = "tool_use"
    model: str
    usage: Usage
    duration_ms: int = 0
    cost_usd: float | None = None
    broken: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    passed_over: tuple[SkippedModel, ...] = ()
    invalid_results: dict[str, str] = Field(default_factory=dict)
    pieces: int = 1
    verdicts: dict[str, PolicyVerdict] = Field(default_factory=dict)
    reviews: tuple[PolicyReview, ...] = ()


class AcceptRequest(FrozenModel):
    """The input of the activity `accept_outcome`: an outcome to check by the definition's `accept`.

    `timeout` bounds a function, and the silence of a model's server; `limit` bounds a model's whole reply.
    """

    definition: str
    goal: str
    outcome: str
    result: JsonResult = omit_no_result()
    artifacts: tuple[str, ...] = ()
    timeout: Duration
    limit: Duration
    trace: tuple[dict[str, Any], ...] = omit_default(())


class Acceptance(Holdable):
    """The result of a check. `rejection` is the reason why the outcome is not accepted; None: it is.

    `model` and the figures are empty if a function checked it.
    """

    rejection: str | None = None
    model: str = ""
    usage: Usage = Usage.model_construct()
    cost_usd: float | None = 0.0
    duration_ms: int = 0


class SentTurn(FrozenModel):
    """A model call whose batch goes on although its run has failed: the run that continues it takes its reply.

    `run_id` has the request in its store, `entry` is the call's id in the `batch`, and `since` is as in `OpenBatch`.
    """

    run_id: str
    entry: str
    batch: str
    since: int


class FailedTurn(FrozenModel):
    """The result of a waiting activity that has failed: the server can only complete one that never ran.

    `failure` is a `RunFailure`. A `batch`, created at `since`, goes on: the reply may still be read from it.
    """

    failure: str
    message: str
    batch: str = omit_default("")
    since: int = omit_default(0)


class ContextFull(Holdable):
    """A result of `plan` and `reflect` in place of a reply: the conversation must be shortened first.

    `tokens` is an estimate, `window` the model's limit. `was_refused`: the provider refused the request; if False, the
    model was not asked.
    """

    tokens: int
    window: int
    messages: int
    was_refused: bool = False


class Recovery(StrEnum):
    """The recoveries, in order."""

    compact = "compact"
    prune = "prune"
    ask = "ask"


class Recoveries(FrozenModel):
    """The recoveries so far, with the turns of the latest ones."""

    used: int = 0
    compacted_at: int | None = None
    pruned_at: int | None = None


class SummaryRequest(FrozenModel):
    """The input of the activity `summarize`: a cursor, and the number of messages to keep.

    `window` is the model's, if the provider reported it. `timeout` bounds the silence of the summary model's server,
    `limit` its whole reply.
    """

    length: int
    head: str
    definition: str
    keep: int
    is_deep: bool = False
    window: int | None = None
    timeout: Duration
    limit: Duration = timedelta(minutes=15)
    trace: tuple[dict[str, Any], ...] = omit_default(())


class Summary(Holdable):
    """A summary of the parts before `tail`. The results of the parts `pins` are quoted after it, each truncated to
    `pin_bytes` bytes; results in the tail are truncated to `cut` bytes, if set.

    `model` is empty if the old messages were pruned without a model. Tokens are estimates. `tail` is 0 if there was
    nothing to summarize.
    """

    text: str
    tail: int
    pins: tuple[int, ...] = ()
    pin_bytes: int = 0
    cut: int | None = None
    is_deep: bool = False
    before_tokens: int
    after_tokens: int
    before_messages: int
    after_messages: int
    model: str = ""
    usage: Usage = Usage.model_construct()
    cost_usd: float | None = 0.0
    duration_ms: int = 0


MAX_FUSED_READS = 16
MAX_READ_TIMEOUT = timedelta(seconds=30)
READS_TIME = timedelta(minutes=3)  # for all attempts of the reads and the delays between them


class FusedRead(ToolCall):
    """A read, and the timeout of its tool."""

    timeout: Duration = timedelta(seconds=30)


class FusedTurnRequest(SparseModel):
    """The input of `read_and_reflect`. `turn.length` and `turn.head` name the conversation before the results.

    The model is not called if the reads take `time_left_ms` or more: the active time until the run's next limit.
    """

    reads: tuple[FusedRead, ...]
    turn: TurnRequest
    time_left_ms: int


class FusedTurn(SparseModel, Holdable):
    """The outcomes, in the order of the reads, and the reply.

    An outcome is None if the call must still be made, as a call of its own. `head` is the hash of the conversation
    that the reply answers. `reason` says why there is no reply; the model is then called as usual. `interrupted`: the
    worker stopped.
    """

    outcomes: tuple[ToolOutcome | None, ...]
    head: str = ""
    reply: ModelTurn | ContextFull | None = None
    reason: str = ""
    interrupted: bool = False

"""The model's window and the recoveries when it is full (B4, B5)."""

from datetime import timedelta
from enum import StrEnum
from typing import Any

from contracts.duration import Duration
from contracts.models import FrozenModel, omit_default
from contracts.run.turn import Usage


class ContextFull(FrozenModel):
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
    told: tuple[dict[str, Any], ...] = omit_default(())


class Summary(FrozenModel):
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
    usage: Usage = Usage()
    cost_usd: float | None = 0.0
    duration_ms: int = 0

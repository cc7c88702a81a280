"""How full the model's window is, and what was done about it (B4, B5)."""

from datetime import timedelta
from enum import StrEnum
from typing import Any

from contracts.duration import Duration
from contracts.models import Value, sparse
from contracts.run.turn import Usage


class ContextFull(Value):
    """What `plan` and `reflect` bring back instead of a reply: the conversation wants to be shorter first.

    `tokens` is an estimate, `window` what the model takes. `was_refused` says that the provider refused it; otherwise
    the model was not asked.
    """

    tokens: int
    window: int
    messages: int
    was_refused: bool = False


class Recovery(StrEnum):
    """The rungs."""

    compact = "compact"
    prune = "prune"
    ask = "ask"


class Recoveries(Value):
    """What was done so far, and at which turn."""

    used: int = 0
    compacted_at: int | None = None
    pruned_at: int | None = None


class SummaryRequest(Value):
    """The input of the activity `summarize`: a cursor, and how many messages stay as they are.

    `window` is the model's, where the provider has told it. `timeout` is how long the summarising model's server may be
    silent, `limit` how long its reply may take in all.
    """

    length: int
    head: str
    definition: str
    keep: int
    is_deep: bool = False
    window: int | None = None
    timeout: Duration
    limit: Duration = timedelta(minutes=15)
    told: tuple[dict[str, Any], ...] = sparse(())


class Summary(Value):
    """What stands for the parts before `tail`. `pins` are the parts whose results are quoted beside it, each of them
    cut to `pin_bytes` bytes; results in the tail are cut to `cut` bytes, if that is set.

    `model` is empty where no model wrote it and the old messages were cut down instead. Tokens are estimates. Without
    anything before the tail nothing was done, and `tail` is 0.
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

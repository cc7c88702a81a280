"""One model call: what the activities `plan` and `reflect` take and bring back."""

from datetime import timedelta
from typing import Any

from contracts.duration import Duration
from contracts.models import Terse, Value, sparse

TURN_MARGIN = timedelta(minutes=2)  # beyond the model's own time: reading the conversation, waiting for the pace


class Usage(Value):
    """Tokens as the provider counted them. `input` leaves out what was written to or read from the cache.

    `is_estimated` marks figures of which some are our estimate, because the provider reported none.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    is_estimated: bool = sparse(default=False)

    @property
    def total(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            is_estimated=self.is_estimated or other.is_estimated,
        )


class TurnRequest(Terse):
    """A cursor into the transcript, and the definition by its hash: never the conversation itself.

    `interrupted` says that the run picks up again after an interruption, so that the definition is compared with the
    project's. `refused` is the hash of a newer definition that a person decided against. `force` is the tool that
    the reply must call; with `is_closing` it may call none. `window` is the model's, where the provider has told it;
    `unchecked` asks the model however long the conversation is. `told` are events for the trace. `turn_timeout` is how
    long the model's server may be silent; how long the turn may take in all, the activity's own timeout says.
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
    told: tuple[dict[str, Any], ...] = ()


class PassedOver(Value):
    """A model that should have answered, and why it did not."""

    model: str
    why: str


class ModelTurn(Terse):
    """A reply of `model`. `content` holds the Messages API's content blocks as they came.

    `passed_over` are those that stand before it in the agent's list of models.

    `stop_reason` is the API's; a reply that calls tools has the usual one, which history need not say.
    `broken` names the tool uses whose arguments were not valid JSON; their `input` is empty then.
    `repeated` names those that came with the id of one before them in the reply, by the id they have instead.
    `cost_usd` is None where the model's price is not known.
    """

    content: list[dict[str, Any]]
    stop_reason: str | None = "tool_use"
    model: str
    usage: Usage
    duration_ms: int = 0
    cost_usd: float | None = None
    broken: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    passed_over: tuple[PassedOver, ...] = ()

"""The cost of a model call, and the current Claude models: context window in tokens, USD per million tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from perdure.contracts.run.turn import Usage

HOUR_RATIO = 2 / 1.25  # of a cache write for an hour to one for 5 minutes


@dataclass(frozen=True)
class Price:
    """USD per million tokens.

    If the prompt has more than `long_prompt` tokens, cached ones included, the whole call is charged by `long`. If
    `cache_write_1h` is None, it is in Anthropic's ratio to `cache_write`: twice the input's price to 1.25 times.
    """

    input: float
    output: float
    cache_read: float
    cache_write: float
    long_prompt: int | None = None
    long: "Price | None" = None
    cache_write_1h: float | None = None

    @property
    def hour_write(self) -> float:
        return HOUR_RATIO * self.cache_write if self.cache_write_1h is None else self.cache_write_1h


@dataclass(frozen=True)
class ClaudeModel:
    """A model. `window` is in tokens. `price` is missing if no official page lists all of it; `[prices]` can set it."""

    window: int
    price: Price | None


def _price(usd: float, cache_read: float) -> Price:
    """Return a Claude model's price, `usd` for input: output costs five times that, and cache writes a quarter more."""
    return Price(input=usd, output=5 * usd, cache_read=cache_read, cache_write=1.25 * usd)


# Read in November 2026 from the Claude Platform Docs: "Pricing", "Models overview", "Model IDs and versioning", each
# model's own page, and the "Claude Platform release notes" for later changes (Sonnet 5.5's cache reads). Cache writes
# are those that live 5 minutes; an hour costs twice the input's price for each model. For Fable 5.2 they list $8 and
# $40 but no cache prices, and most of a long run is read from the cache.
#
# Ids since generation 4.6 have no date and no alias; earlier models have both, and both are listed.
_BY_IDS = {
    "claude-fable-5-2 claude-mythos-5-2": ClaudeModel(1_000_000, None),
    "claude-fable-5-1 claude-mythos-5-1": ClaudeModel(1_000_000, _price(10, 0.25)),
    "claude-fable-5 claude-mythos-5": ClaudeModel(1_000_000, _price(10, 1)),
    "claude-opus-5-5": ClaudeModel(1_000_000, _price(4, 0.2)),
    "claude-opus-5 claude-opus-4-8 claude-opus-4-7 claude-opus-4-6": ClaudeModel(1_000_000, _price(5, 0.5)),
    "claude-opus-4-5 claude-opus-4-5-20251101": ClaudeModel(200_000, _price(5, 0.5)),
    "claude-sonnet-5-5": ClaudeModel(1_000_000, _price(2, 0.1)),
    "claude-sonnet-5": ClaudeModel(1_000_000, _price(2, 0.2)),
    "claude-sonnet-4-6": ClaudeModel(1_000_000, _price(3, 0.3)),
    "claude-sonnet-4-5 claude-sonnet-4-5-20250929": ClaudeModel(200_000, _price(3, 0.3)),
    "claude-haiku-5-5": ClaudeModel(1_000_000, replace(_price(0.1, 0.01), long_prompt=100_000, long=_price(0.5, 0.05))),
    "claude-haiku-4-5 claude-haiku-4-5-20251001": ClaudeModel(200_000, _price(1, 0.1)),
}
CLAUDE_MODELS: Mapping[str, ClaudeModel] = MappingProxyType(
    {name: model for names, model in _BY_IDS.items() for name in names.split()}
)
CLAUDE_PRICES: Mapping[str, Price] = MappingProxyType(
    {name: model.price for name, model in CLAUDE_MODELS.items() if model.price}
)
FREE = Price(input=0, output=0, cache_read=0, cache_write=0)
CHEAP_MODEL = "claude-haiku-5-5"
DEFAULT_WINDOW = 200_000  # every Claude model has at least this; `[model] window` sets it for other models


SEARCH_PRICE = 10 / 1000  # USD for a web search of the provider; "Pricing" in the Claude Platform Docs, November 2026


def call_cost(usage: Usage, price: Price | None, share: float = 1.0) -> float | None:
    """Return the USD of one call with its web searches, if the price is known.

    `share` is the part of the price of tokens that is charged.
    """
    if price is None:
        return None
    prompt = usage.input + usage.cache_read + usage.cache_write
    if price.long and price.long_prompt is not None and prompt > price.long_prompt:
        price = price.long
    usd = (
        usage.input * price.input
        + usage.output * price.output
        + usage.cache_read * price.cache_read
        + (usage.cache_write - usage.cache_write_1h) * price.cache_write
        + usage.cache_write_1h * price.hour_write
    ) / 1e6
    return usd * share + usage.searches * SEARCH_PRICE


def claude_window(model: str) -> int:
    """Return the window in tokens; the default for an unknown model."""
    return CLAUDE_MODELS[model].window if model in CLAUDE_MODELS else DEFAULT_WINDOW


def claude_summary_model(model: str) -> str:
    """Return the model that summarizes runs of `model`: a cheap Claude model for a Claude model, else the same."""
    return CHEAP_MODEL if model in CLAUDE_MODELS else model

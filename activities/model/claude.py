"""The current Claude models: context window in tokens, USD per million tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from activities.model.price import Price


@dataclass(frozen=True)
class ClaudeModel:
    """A model. `window` is in tokens. `price` is missing if no official page lists all of it; `[prices]` can set it."""

    window: int
    price: Price | None


# Read in November 2026 from the Claude Platform Docs: "Pricing", "Models overview", "Model IDs and versioning", each
# model's own page, and the "Claude Platform release notes" for later changes (Sonnet 5.5's cache reads). Cache writes
# are those that live 5 minutes, the only kind used here. For Fable 5.2 they list $8 and $40 but no cache prices, and
# most of a long run is read from the cache.
_FABLE_5 = ClaudeModel(1_000_000, Price(input=10, output=50, cache_read=1, cache_write=12.5))
_FABLE_5_1 = ClaudeModel(1_000_000, Price(input=10, output=50, cache_read=0.25, cache_write=12.5))
_FABLE_5_2 = ClaudeModel(1_000_000, None)
_OPUS_4_5 = ClaudeModel(200_000, Price(input=5, output=25, cache_read=0.5, cache_write=6.25))
_OPUS_4_6 = ClaudeModel(1_000_000, Price(input=5, output=25, cache_read=0.5, cache_write=6.25))
_OPUS_5_5 = ClaudeModel(1_000_000, Price(input=4, output=20, cache_read=0.2, cache_write=5))
_SONNET_4_5 = ClaudeModel(200_000, Price(input=3, output=15, cache_read=0.3, cache_write=3.75))
_SONNET_4_6 = ClaudeModel(1_000_000, Price(input=3, output=15, cache_read=0.3, cache_write=3.75))
_SONNET_5 = ClaudeModel(1_000_000, Price(input=2, output=10, cache_read=0.2, cache_write=2.5))
_SONNET_5_5 = ClaudeModel(1_000_000, Price(input=2, output=10, cache_read=0.1, cache_write=2.5))
_HAIKU_4_5 = ClaudeModel(200_000, Price(input=1, output=5, cache_read=0.1, cache_write=1.25))
_HAIKU_5_5 = ClaudeModel(
    1_000_000,
    Price(
        input=0.1,
        output=0.5,
        cache_read=0.01,
        cache_write=0.125,
        long_prompt=100_000,
        long=Price(input=0.5, output=2.5, cache_read=0.05, cache_write=0.625),
    ),
)

# Ids since generation 4.6 have no date and no alias; earlier models have both, and both are listed.
CLAUDE_MODELS: Mapping[str, ClaudeModel] = MappingProxyType(
    {
        "claude-fable-5-2": _FABLE_5_2,
        "claude-mythos-5-2": _FABLE_5_2,
        "claude-fable-5-1": _FABLE_5_1,
        "claude-mythos-5-1": _FABLE_5_1,
        "claude-fable-5": _FABLE_5,
        "claude-mythos-5": _FABLE_5,
        "claude-opus-5-5": _OPUS_5_5,
        "claude-opus-5": _OPUS_4_6,
        "claude-opus-4-8": _OPUS_4_6,
        "claude-opus-4-7": _OPUS_4_6,
        "claude-opus-4-6": _OPUS_4_6,
        "claude-opus-4-5": _OPUS_4_5,
        "claude-opus-4-5-20251101": _OPUS_4_5,
        "claude-sonnet-5-5": _SONNET_5_5,
        "claude-sonnet-5": _SONNET_5,
        "claude-sonnet-4-6": _SONNET_4_6,
        "claude-sonnet-4-5": _SONNET_4_5,
        "claude-sonnet-4-5-20250929": _SONNET_4_5,
        "claude-haiku-5-5": _HAIKU_5_5,
        "claude-haiku-4-5": _HAIKU_4_5,
        "claude-haiku-4-5-20251001": _HAIKU_4_5,
    }
)

CLAUDE_PRICES: Mapping[str, Price] = MappingProxyType(
    {name: model.price for name, model in CLAUDE_MODELS.items() if model.price}
)

CHEAP_MODEL = "claude-haiku-5-5"
DEFAULT_WINDOW = 200_000  # every Claude model has at least this; `[model] window` sets it for other models


def claude_window(model: str) -> int:
    """Return the window in tokens; the default for an unknown model."""
    known = CLAUDE_MODELS.get(model)
    return known.window if known else DEFAULT_WINDOW


def claude_summary_model(model: str) -> str:
    """Return the model that summarizes runs of `model`: a cheap Claude model for a Claude model, else the same."""
    return CHEAP_MODEL if model in CLAUDE_MODELS else model

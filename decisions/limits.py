"""Which limit is in force: run over agent and file over default, up or down."""

from datetime import timedelta

from contracts.limits import LimitOverrides, Limits

DEFAULTS = Limits(max_steps=20, max_turns=100, max_reframes=2, turn_timeout=timedelta(seconds=120))


def effective(*overrides: LimitOverrides) -> Limits:
    """The nearest comes first."""
    merged = DEFAULTS
    for layer in reversed(overrides):
        merged = merged.model_copy(update=layer.model_dump(exclude_none=True))
    return merged

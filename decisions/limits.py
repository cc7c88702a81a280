"""Which limit is in force: run over agent over file over default, up or down."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from contracts.limits import LimitOverrides, Limits

DEFAULTS = Limits(max_steps=20, max_turns=100, max_reframes=2, turn_timeout=timedelta(seconds=120))


def effective(*overrides: LimitOverrides) -> Limits:
    """The nearest comes first."""
    merged = DEFAULTS
    for layer in reversed(overrides):
        merged = with_requested(merged, set_in(layer))
    return merged


def set_in(overrides: LimitOverrides) -> dict[str, Any]:
    """What is set there, as JSON holds it: what a run carries must be read by other versions too."""
    return overrides.model_dump(mode="json", exclude_none=True)


def with_requested(limits: Limits, requested: Mapping[str, Any]) -> Limits:
    """Limits that are not known here are left out."""
    return Limits.model_validate({**limits.model_dump(mode="json"), **requested})

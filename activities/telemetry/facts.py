"""Facts of an activity attempt, for the log, metrics and spans. A log needs no worker for them."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

# Facts of the attempt in this task. Never reset: the SDK logs the attempt's failure after its end.
_facts: ContextVar[dict[str, Any] | None] = ContextVar("facts", default=None)


def set_facts(first: dict[str, Any]) -> None:
    """Begin the facts of an attempt."""
    _facts.set(first)


def attempt_facts() -> Mapping[str, Any]:
    """Return the facts of the current attempt: `step` and `tool`, or `turn` and `model`."""
    return _facts.get() or {}


def record_facts(**more: Any) -> None:
    """Add facts that are known only while the attempt runs."""
    if (known := _facts.get()) is not None:
        known.update(more)

"""The header `Retry-After`: seconds or a date, capped at a minute."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite

MAX_RETRY_AFTER = 60.0  # seconds


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the delay in seconds, from 0 to `MAX_RETRY_AFTER`, if the header is valid."""
    delay = _parse_delay(headers.get("retry-after", ""))
    return min(max(delay, 0.0), MAX_RETRY_AFTER) if delay is not None and isfinite(delay) else None


def _parse_delay(value: str) -> float | None:
    with suppress(ValueError):
        return float(value)
    with suppress(ValueError, TypeError, OverflowError, IndexError):  # out of range, or not a date
        moment = parsedate_to_datetime(value)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return (moment - datetime.now(UTC)).total_seconds()
    return None

"""For how long a server asks to be left alone: its `Retry-After`, in seconds or as a date, a minute at most."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite

MOST_WAIT = 60.0  # seconds; a server that asks for more is asked again by then


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, from 0 to `MOST_WAIT`. None where the server did not say, or nothing that can be read."""
    asked = _seconds(headers.get("retry-after", ""))
    return min(max(asked, 0.0), MOST_WAIT) if asked is not None and isfinite(asked) else None


def _seconds(asked: str) -> float | None:
    with suppress(ValueError):
        return float(asked)
    with suppress(ValueError, TypeError, OverflowError, IndexError):  # beyond all years, or no date at all
        moment = parsedate_to_datetime(asked)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return (moment - datetime.now(UTC)).total_seconds()
    return None

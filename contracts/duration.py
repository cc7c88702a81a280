"""Durations in configuration: "500ms", "30s", "15m", "2h", "7d", or a number of seconds."""

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")

MAX_DURATION = timedelta(days=366)
HEARTBEAT_TIMEOUT = timedelta(seconds=15)  # the default of `[worker] heartbeat`
EXPECTED_DURATION = "expected a duration above zero and up to 366 days"


def _parse_duration(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError('expected a duration such as "30s"')  # noqa: TRY004 - pydantic reports ValueErrors
    if isinstance(value, str) and (written := _WRITTEN.fullmatch(value)):
        value = float(written[1]) * _UNITS[written[2]]
    if isinstance(value, int | float):
        if not 0 < value <= MAX_DURATION.total_seconds():
            raise ValueError(EXPECTED_DURATION)
        return timedelta(seconds=value)
    if isinstance(value, str) and not value.startswith("P"):
        raise ValueError('expected a duration such as "500ms", "30s", "15m", "2h" or "7d"')
    return value


def _check_range(value: timedelta) -> timedelta:
    """Return the value if it is in range: "PT0S" and "0.0001ms" are zero too. Raises ValueError."""
    if not timedelta() < value <= MAX_DURATION:
        raise ValueError(EXPECTED_DURATION)
    return value


Duration = Annotated[timedelta, BeforeValidator(_parse_duration), AfterValidator(_check_range)]

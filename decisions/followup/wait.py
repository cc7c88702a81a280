"""`wait`: until a time, or for a while."""

from datetime import UTC, datetime
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from decisions.followup.kind import MOST_MS, Kind, KindInput

JUST_PASSED_MS = 24 * 3600 * 1000


class WaitInput(KindInput):
    """`until` is milliseconds since 1970, or a date as "2030-01-31T12:00:00Z"; without a zone it is UTC."""

    until: int | None = Field(default=None, ge=0, le=253_402_300_799_000)
    delay_ms: int | None = Field(default=None, gt=0, le=MOST_MS)

    @field_validator("until", mode="before")
    @classmethod
    def _from_date(cls, until: Any) -> Any:
        if not isinstance(until, str):
            return until
        try:
            date = datetime.fromisoformat(until)
        except ValueError:
            raise ValueError('expected milliseconds since 1970, or a date as "2030-01-31T12:00:00Z"') from None
        return int((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() * 1000)

    @model_validator(mode="after")
    def _says_one_time(self) -> Self:
        if (self.until is None) == (self.delay_ms is None):
            raise ValueError('give either "until" or "delayMs"')
        return self


def due(wanted: WaitInput, now: int) -> int:
    return wanted.until if wanted.until is not None else now + (wanted.delay_ms or 0)


def reject(wanted: WaitInput, now: int) -> str | None:
    """A time is taken within the bounds of a delay. One that has just passed is due at once."""
    if wanted.until is None or now - JUST_PASSED_MS <= wanted.until <= now + MOST_MS:
        return None
    return f"`until` must be a time from now to {MOST_MS // 86_400_000} days ahead"


KIND = Kind(
    name="wait",
    about='a time: {until (ms since 1970, or "2030-01-31T12:00:00Z")} or {delayMs}',
    input=WaitInput,
    due=due,
    rejects=reject,
    told=lambda _, result: f"The time that was waited for has come ({result['status']}).",
)

"""`wait`: until a time, or for a duration."""

from datetime import UTC, datetime
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from decisions.followup.kind import MAX_MS, KindInput, TaskKind

JUST_PASSED_MS = 24 * 3600 * 1000


class WaitInput(KindInput):
    """The end of the wait. `until` is milliseconds since 1970, or an ISO date, in UTC if it names no zone."""

    until: int | None = Field(default=None, ge=0, le=253_402_300_799_000)
    delay_ms: int | None = Field(default=None, gt=0, le=MAX_MS)

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


def wait_due_at(wait: WaitInput, now: int) -> int:
    return wait.until if wait.until is not None else now + (wait.delay_ms or 0)


def wait_rejection_reason(wait: WaitInput, now: int) -> str | None:
    """Return the reason if the time is out of bounds. A time that has just passed is accepted and due at once."""
    if wait.until is None or now - JUST_PASSED_MS <= wait.until <= now + MAX_MS:
        return None
    return f"`until` must be a time from now to {MAX_MS // 86_400_000} days ahead"


KIND = TaskKind(
    name="wait",
    about='a time: {until (ms since 1970, or "2030-01-31T12:00:00Z")} or {delayMs}',
    input=WaitInput,
    due=wait_due_at,
    rejects=wait_rejection_reason,
    format_result=lambda _, result: f"The time that was waited for has come ({result['status']}).",
)

"""Which attempts of an activity count: those that asked somebody, not those that were held back."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from perdure.activities.effects import attempts
from perdure.activities.effects.attempts import counting_attempts
from perdure.activities.providers.rate_limit import RateLimitedError
from perdure.contracts.failures import WORKER_SHUTDOWN

MOST = 6
HELD = RateLimitedError("held back", type="RateLimited", next_retry_delay=timedelta(seconds=9))


async def run_attempt(attempt: int, holds: int, error: Exception | None = None) -> tuple[Any, list[Any]]:
    """What became of a block at this attempt, and its beats."""
    environment = ActivityEnvironment()
    beats: list[Any] = []
    environment.on_heartbeat = lambda *details: beats.append(details[0])
    details = [{"text": "", "holds": holds}] if holds else []
    environment.info = replace(environment.info, attempt=attempt, heartbeat_details=details)

    async def block() -> Any:
        async with counting_attempts(None, MOST) as this:  # type: ignore[arg-type]  # asked only of what the test stands in for
            if error is not None:
                raise error
            return this

    try:
        return await environment.run(block), beats
    except Exception as failure:  # noqa: BLE001 - it is what the test is about
        return failure, beats


@pytest.mark.parametrize(("attempt", "holds", "number"), [(1, 0, 1), (6, 0, 6), (40, 35, 5)])
async def test_those_that_were_held_back_are_not_counted(attempt: int, holds: int, number: int) -> None:
    this, beats = await run_attempt(attempt, holds)
    assert (this.number, this.holds) == (number, holds)
    assert this.beat_details == ({"holds": holds} if holds else {})
    assert beats == []


@pytest.mark.parametrize("attempt", [1, 9])
async def test_one_that_is_held_back_tells_the_next_even_if_it_was_to_be_the_last(attempt: int) -> None:
    failure, beats = await run_attempt(attempt, holds := attempt // 3, HELD)
    assert failure is HELD
    assert beats == [{"holds": holds + 1}]


@pytest.mark.parametrize("error", [ApplicationError("down", "fact", type="ModelUnavailable"), ValueError("a bug")])
async def test_a_failure_is_final_where_no_attempt_is_left_and_else_it_is_as_it_was(error: Exception) -> None:
    assert (await run_attempt(8, 3, error))[0] is error
    failure, _ = await run_attempt(9, 3, error)
    assert failure.non_retryable
    assert (failure.message, failure.type) in (("down", "ModelUnavailable"), ("a bug", "ValueError"))
    assert failure.details == getattr(error, "details", ())


@pytest.mark.parametrize(("lost", "kind"), [(True, WORKER_SHUTDOWN), (False, "ModelUnavailable")])
async def test_an_attempt_too_many_says_whether_those_before_it_were_lost_or_late(
    lost: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def was_lost(_: Any) -> bool:
        return lost

    monkeypatch.setattr(attempts, "was_lost", was_lost)
    failure, _ = await run_attempt(10, 3)
    assert (failure.type, failure.non_retryable) == (kind, True)

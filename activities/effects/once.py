"""Run a tool call to completion, within its timeout, and at most once if its effect is `once`."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.effects.attempts import WORKER_SHUTDOWN
from activities.effects.beats import current_lease_end
from activities.effects.ledger import ClaimGranted, InDoubt, LedgerEntry, LedgerUnavailableError
from activities.tools.interface import TransientToolError
from contracts.failures import ToolFault
from contracts.tool import MAX_ERROR, ToolOutcome, error_outcome

GRACE = timedelta(seconds=3)  # added to a tool's own timeout; the activity's is longer still

T = TypeVar("T")


async def run_to_completion(work: Coroutine[Any, Any, T], drain: timedelta) -> T:
    """Finish the work even if the activity is cancelled, except when its worker stops, after `drain`."""
    task = asyncio.create_task(work)
    # An activity is cancelled only once: after the run's cancel, the worker's own would not arrive.
    stopping = asyncio.create_task(activity.wait_for_worker_shutdown())
    deadline: float | None = None
    try:
        while not task.done():
            waited_for = {task, stopping} if deadline is None else {task}
            remaining = None if deadline is None else deadline - monotonic()
            try:
                await asyncio.wait(waited_for, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                details = activity.cancellation_details()
                if details is not None and details.worker_shutdown:
                    raise
            if deadline is None and stopping.done():
                deadline = monotonic() + drain.total_seconds()
            if deadline is not None and monotonic() >= deadline and not task.done():
                raise ApplicationError("the worker stops, and the call did not end", type=WORKER_SHUTDOWN)
        if task.cancelled():
            raise ApplicationError("the tool was cancelled from within", type=ToolFault.tool_error)
        return task.result()
    finally:
        task.cancel()
        stopping.cancel()


async def with_timeout(timeout: timedelta, effect: Coroutine[Any, Any, T]) -> T:
    """Await the effect. Raises TransientToolError if it does not end in time."""
    try:
        async with asyncio.timeout((timeout + GRACE).total_seconds()) as limit:
            return await effect
    except TimeoutError:
        if limit.expired():
            raise TransientToolError(
                ToolFault.timeout, f"it did not end within {timeout.total_seconds():g} s"
            ) from None
        raise


async def as_final_outcome(effect: Coroutine[Any, Any, ToolOutcome]) -> ToolOutcome:
    """Turn any failure of a `once` effect into a final outcome, except the loss of its worker."""
    try:
        return await effect
    except TransientToolError as failure:
        kind, message = failure.kind, failure.message
    except ApplicationError as error:
        if error.type == WORKER_SHUTDOWN:
            raise
        kind, message = error.type or ToolFault.tool_error, error.message
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        kind, message = ToolFault.tool_error, "the tool was cancelled from within"
    except Exception as error:  # noqa: BLE001 - whatever a tool raises, the call was made
        kind, message = ToolFault.tool_error, f"{type(error).__name__}: {error}"
    return error_outcome(kind, f"{message[:MAX_ERROR]} (it may have happened)", retryable=True)


class Effects:
    """Runs `once` effects, and keeps track of those that this process is making."""

    def __init__(self) -> None:
        self._at_work: set[str] = set()  # their keys

    async def run_once(
        self,
        entry: LedgerEntry,
        name: str,
        timeout: timedelta,
        effect: Callable[[], Coroutine[Any, Any, ToolOutcome]],
        finish: Callable[[ToolOutcome], Awaitable[ToolOutcome]],
    ) -> ToolOutcome | InDoubt:
        """Claim, run, record. A call that was claimed before is looked up, not made. Raises LedgerUnavailableError.

        `finish` maps an outcome to the one that is recorded and returned.
        """
        lease_end = current_lease_end()  # before the claim: a heartbeat after a pause may come too late
        claimed = await asyncio.to_thread(entry.claim, name, timeout + GRACE)
        if isinstance(claimed, InDoubt):
            claimed = await entry.wait_for_result(claimed, self._at_work, activity.is_cancelled)
        if not isinstance(claimed, ClaimGranted):
            return claimed
        if datetime.now(UTC) > lease_end:
            lapsed = error_outcome(ToolFault.interrupted, "not made: its worker stood still before it began")
            return await asyncio.to_thread(_record_outcome, entry, lapsed)
        self._at_work.add(entry.key)
        try:
            outcome = await finish(await as_final_outcome(with_timeout(timeout, effect())))
            return await asyncio.to_thread(_record_outcome, entry, outcome)
        finally:  # after it is recorded: another attempt would otherwise consider it lost
            self._at_work.discard(entry.key)

    async def must_be_over(self, entry: LedgerEntry) -> None:
        """Raise LedgerUnavailableError while the effect may still run, on a disconnected machine too."""
        if await asyncio.to_thread(entry.is_at_work, self._at_work):
            raise LedgerUnavailableError("the call before this one may still be at work")


def _record_outcome(entry: LedgerEntry, outcome: ToolOutcome) -> ToolOutcome:
    try:
        entry.record(outcome)
    except OSError as error:  # history gets the outcome anyway, unless this worker dies right now
        activity.logger.warning("the outcome of %s is not in the ledger: %s", entry.key, error)
    return outcome

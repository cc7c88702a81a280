"""How an effect is made: whole, in its time, and, where it must not be repeated, once, with any failure of it final."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from time import monotonic
from typing import Any, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.effects.attempts import WORKER_SHUTDOWN
from activities.effects.ledger import Doubtful, Entry, LedgerUnavailable, Recorded
from activities.tools.interface import TransientFailure
from contracts.failures import ToolFault
from contracts.tool import MOST_ERROR, ToolOutcome, failed

GRACE = timedelta(seconds=3)  # beyond a tool's own timeout; the activity's is longer still
LAPSED = failed(ToolFault.interrupted, "not made: its worker stood still before it began")

T = TypeVar("T")


async def whole(work: Coroutine[Any, Any, T], drain: timedelta) -> T:
    """What has begun is finished whatever is asked of the activity, except where its worker must go.

    `drain` is how long a worker that stops waits for its activities.
    """
    task = asyncio.create_task(work)
    # A cancel comes only once: after one of the run's, the worker's own would not be heard.
    stopping = asyncio.create_task(activity.wait_for_worker_shutdown())
    deadline: float | None = None
    try:
        while not task.done():
            waited_for = {task, stopping} if deadline is None else {task}
            left = None if deadline is None else deadline - monotonic()
            try:
                await asyncio.wait(waited_for, timeout=left, return_when=asyncio.FIRST_COMPLETED)
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


async def within(timeout: timedelta, effect: Coroutine[Any, Any, T]) -> T:
    """Raises TransientFailure where the effect does not end in time."""
    try:
        async with asyncio.timeout((timeout + GRACE).total_seconds()) as limit:
            return await effect
    except TimeoutError:
        if limit.expired():
            raise TransientFailure(ToolFault.timeout, f"it did not end within {timeout.total_seconds():g} s") from None
        raise


async def final(effect: Coroutine[Any, Any, ToolOutcome]) -> ToolOutcome:
    """Any failure is final for what must not be repeated. Only a worker that must go leaves it open."""
    try:
        return await effect
    except TransientFailure as passing:
        kind, message = passing.kind, passing.message
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
    return failed(kind, f"{message[:MOST_ERROR]} (it may have happened)", retryable=True)


class Effects:
    """Those that must not be repeated. It knows which of them are being made in this process."""

    def __init__(self) -> None:
        self._at_work: set[str] = set()  # their keys

    async def once(
        self,
        page: Entry,
        name: str,
        timeout: timedelta,
        effect: Callable[[], Coroutine[Any, Any, ToolOutcome]],
        finish: Callable[[ToolOutcome], Awaitable[ToolOutcome]],
    ) -> ToolOutcome | Doubtful:
        """Claim, effect, record. What was claimed before is looked up, not made. Raises LedgerUnavailable.

        `finish` returns what is recorded and shown of an outcome.
        """
        claimed = await asyncio.to_thread(page.claim, name, timeout + GRACE)
        if isinstance(claimed, Doubtful):
            claimed = await page.settled(claimed, self._at_work, activity.is_cancelled)
        if isinstance(claimed, Recorded):
            return claimed.outcome
        if isinstance(claimed, Doubtful):
            return claimed
        if claimed.has_lapsed:
            return await asyncio.to_thread(_recorded, page, LAPSED)
        self._at_work.add(page.key)
        try:
            outcome = await finish(await final(within(timeout, effect())))
            return await asyncio.to_thread(_recorded, page, outcome)
        finally:  # not before it is recorded: another attempt would take it for lost
            self._at_work.discard(page.key)

    async def must_be_over(self, page: Entry) -> None:
        """Raises LedgerUnavailable while the effect may be at work, also on a machine that was cut off."""
        if await asyncio.to_thread(page.is_at_work, self._at_work):
            raise LedgerUnavailable("the call before this one may still be at work")


def _recorded(page: Entry, outcome: ToolOutcome) -> ToolOutcome:
    try:
        page.record(outcome)
    except OSError as error:  # history will have the outcome, unless this worker dies within the moment
        activity.logger.warning("what became of %s is not in the ledger: %s", page.key, error)
    return outcome

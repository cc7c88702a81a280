"""The effect ledger: a claim is written before a `once` effect starts, its result afterwards.

A claim is created exclusively, so one attempt makes the effect, even if another was wrongly thought dead. An attempt
that reads a result returns it; one that reads a claim without a result reports the outcome as unknown.
"""

import asyncio
import os
import platform
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from pydantic import ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.effects.attempts import current_lease_end
from perdure.activities.storage.store import Store
from perdure.activities.tools.interface import TransientToolError
from perdure.contracts.failures import WORKER_SHUTDOWN, ToolFault
from perdure.contracts.models import FrozenModel
from perdure.contracts.tool import MAX_ERROR, ToolOutcome, error_outcome
from perdure.decisions.errors import describe_exception

RESULT_CHECK_EVERY = 0.25  # seconds
ELSEWHERE = timedelta(seconds=3)  # wait for the result of a claimant on another machine
LEDGER_FOLDER = "ledger"


class ClaimOwner(FrozenModel):
    """The process that made a claim. `started` distinguishes processes that had the same pid."""

    host: str
    pid: int
    started: str = ""

    @classmethod
    def current(cls) -> "ClaimOwner":
        return cls(host=platform.node(), pid=os.getpid(), started=_process_start(os.getpid()))

    @property
    def is_near(self) -> bool:
        """True if the process is on this machine, and can be checked."""
        return self.host == platform.node() and bool(self.started)

    @property
    def may_live(self) -> bool:
        """False only if the process is known to be dead."""
        return not self.is_near or _process_start(self.pid) == self.started


class Claim(FrozenModel):
    """A claim of one call. A live process ends the effect by `until`. `call` is a digest of tool and arguments."""

    key: str
    tool: str
    call: str
    nonce: str
    claimed_at: datetime
    until: datetime
    owner: ClaimOwner


class LedgerUnavailableError(Exception):
    """The ledger cannot take a claim, so the effect is not made."""


@dataclass(frozen=True)
class ClaimGranted:
    """Only this attempt may make the effect."""


@dataclass(frozen=True)
class InDoubt:
    """Another attempt claimed the call and left no result. `claim` is missing if it cannot be read."""

    claim: Claim | None


@dataclass(frozen=True)
class LedgerEntry:
    """The ledger entry of one call: step `step` of the run that owns `store`, in its `generation`.

    `execution` is the run's first Temporal execution, `call` a digest of the call: a run with a reused id, or a reset
    run that took another path, must not read the result of another call. `rounds`: as in `Unfinished`; a call that is
    made again with answers has a claim of its own.
    """

    store: Store
    key: str
    step: int
    generation: int = 1
    execution: str = ""
    call: str = ""
    rounds: int = 0

    @property
    def _file_stem(self) -> str:
        generation = f"-{self.generation}" if self.generation > 1 else ""
        execution = f"{self.execution[-12:]}-" if self.execution else ""
        rounds = f"-a{self.rounds}" if self.rounds else ""
        return f"{LEDGER_FOLDER}/{execution}step-{self.step:05}{generation}{rounds}"

    def claim(self, tool: str, timeout: timedelta) -> ClaimGranted | ToolOutcome | InDoubt:
        """Claim the call, or return the state of an earlier claim. Raises LedgerUnavailableError."""
        now = datetime.now(UTC)
        claim = Claim(
            key=self.key,
            tool=tool,
            call=self.call,
            nonce=secrets.token_hex(8),
            claimed_at=now,
            until=now + timeout,
            owner=ClaimOwner.current(),
        )
        try:
            self.store.create(f"{self._file_stem}.claim", claim.model_dump_json().encode())
        except FileExistsError:
            existing = self.read_outcome()
            # An object store's client retries unanswered requests, and may meet its own claim.
            return ClaimGranted() if existing == InDoubt(claim) else existing
        except OSError as error:
            raise LedgerUnavailableError(f"the ledger takes no claim: {error.strerror or error}") from error
        return ClaimGranted()

    def is_claimed(self) -> bool:
        """Return True if an earlier attempt may have made the effect. Raises LedgerUnavailableError."""
        return self._read_file("claim") is not None

    def read_outcome(self) -> ToolOutcome | InDoubt:
        """Return the state of a claimed call. Raises LedgerUnavailableError."""
        with suppress(ValidationError):
            data = self._read_file("claim")
            claim = Claim.model_validate_json(data) if data is not None else None
            if claim is not None and claim.call == self.call:
                result = self._read_file("result")
                return InDoubt(claim) if result is None else ToolOutcome.model_validate_json(result)
        return InDoubt(None)

    def _read_file(self, suffix: str) -> bytes | None:
        try:
            return self.store.read(f"{self._file_stem}.{suffix}")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerUnavailableError(f"the ledger cannot be read: {error.strerror or error}") from error

    async def wait_for_result(
        self, doubtful: InDoubt, at_work: Collection[str], is_given_up: Callable[[], bool] = lambda: False
    ) -> ToolOutcome | InDoubt:
        """Wait for the result of a claimant that may be at work. `at_work` has the keys of this process's calls."""
        claim = doubtful.claim
        if claim is None:
            return doubtful
        has_stopped = claim.owner == ClaimOwner.current() and self.key not in at_work
        until = claim.until if claim.owner.is_near else min(claim.until, datetime.now(UTC) + ELSEWHERE)
        while not has_stopped and claim.owner.may_live and datetime.now(UTC) < until and not is_given_up():
            await asyncio.sleep(RESULT_CHECK_EVERY)
            current = await asyncio.to_thread(self.read_outcome)
            if isinstance(current, ToolOutcome):
                return current
        with suppress(LedgerUnavailableError):  # the claimant may have written its result just before it stopped
            current = await asyncio.to_thread(self.read_outcome)
            return current if isinstance(current, ToolOutcome) else doubtful
        return doubtful

    def is_at_work(self, at_work: Collection[str]) -> bool:
        """Return True if the claimant may be making the effect now. Raises LedgerUnavailableError."""
        existing = self.read_outcome()
        if isinstance(existing, ToolOutcome) or existing.claim is None:
            return False
        owner = existing.claim.owner
        lives = self.key in at_work if owner == ClaimOwner.current() else owner.may_live
        return lives and datetime.now(UTC) < existing.claim.until

    def record(self, outcome: ToolOutcome) -> None:
        """Write the result next to the claim. Raises OSError."""
        self.store.write(f"{self._file_stem}.result", outcome.model_dump_json().encode())


def _process_start(pid: int) -> str:
    """Return the kernel's start time of the process; "" if it has ended, or /proc is missing."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # Z, X: dead, not yet reaped by its parent
    except (OSError, IndexError):
        return ""


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
        kind, message = ToolFault.tool_error, describe_exception(error)
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

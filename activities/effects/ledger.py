"""The effect ledger: a claim is written before a `once` effect starts, its result afterwards.

A claim is created exclusively, so one attempt makes the effect, even if another was wrongly thought dead. An attempt
that reads a result returns it; one that reads a claim without a result reports the outcome as unknown.
"""

import asyncio
import os
import platform
import secrets
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import ValidationError

from activities.storage.store import Store
from contracts.models import FrozenModel
from contracts.tool import ToolOutcome

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
    run that took another path, must not read the result of another call.
    """

    store: Store
    key: str
    step: int
    generation: int = 1
    execution: str = ""
    call: str = ""

    @property
    def _file_stem(self) -> str:
        generation = f"-{self.generation}" if self.generation > 1 else ""
        execution = f"{self.execution[-12:]}-" if self.execution else ""
        return f"{LEDGER_FOLDER}/{execution}step-{self.step:05}{generation}"

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

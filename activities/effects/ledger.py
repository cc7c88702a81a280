"""The effect ledger: before a `once` effect starts its claim is written, after it its result.

A claim is created exclusively, so of several attempts one makes the effect, whatever was thought dead. An attempt that
finds a result returns it; one that finds a claim without a result cannot know, and says so.
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
from contracts.models import Value
from contracts.tool import ToolOutcome

LOOK_EVERY = 0.25  # seconds
ELSEWHERE = timedelta(seconds=3)  # how long the result of a claimant on another machine is waited for
LEASE = timedelta(seconds=8)  # less than a heartbeat's timeout: who stood still for longer may have been replaced
FOLDER = "ledger"


class Owner(Value):
    """The process that made a claim. `started` tells apart two processes that had one number."""

    host: str
    pid: int
    started: str = ""

    @classmethod
    def here(cls) -> "Owner":
        return cls(host=platform.node(), pid=os.getpid(), started=_started(os.getpid()))

    @property
    def is_near(self) -> bool:
        """On this machine, where it can be looked at."""
        return self.host == platform.node() and bool(self.started)

    @property
    def may_live(self) -> bool:
        """False only where it is known to be dead."""
        return not self.is_near or _started(self.pid) == self.started


class Claim(Value):
    """`until`: by then the effect has ended, if its process lives. `call` is a digest of the tool and its arguments."""

    key: str
    tool: str
    call: str
    nonce: str
    claimed_at: datetime
    until: datetime
    owner: Owner


class LedgerUnavailable(Exception):
    """The ledger takes no claim. Without one no effect is made."""


@dataclass(frozen=True)
class Granted:
    """This attempt, and no other, may make the effect."""

    at: datetime

    @property
    def has_lapsed(self) -> bool:
        return datetime.now(UTC) - self.at > LEASE


@dataclass(frozen=True)
class Recorded:
    outcome: ToolOutcome


@dataclass(frozen=True)
class Doubtful:
    """Another attempt claimed the call, and left no result. `claim` is None where it cannot be read."""

    claim: Claim | None


@dataclass(frozen=True)
class Entry:
    """The ledger's page for one call: step `step` of the run whose store this is, in its `generation`.

    `execution` is the run's first Temporal execution, and `call` a digest of what is called: a run of the same id, or
    one that was reset and went another way, must not find the result of something else.
    """

    store: Store
    key: str
    step: int
    generation: int = 1
    execution: str = ""
    call: str = ""

    @property
    def _stem(self) -> str:
        again = f"-{self.generation}" if self.generation > 1 else ""
        of = f"{self.execution[-12:]}-" if self.execution else ""
        return f"{FOLDER}/{of}step-{self.step:05}{again}"

    def claim(self, tool: str, timeout: timedelta) -> Granted | Recorded | Doubtful:
        """Takes the right to make this call, or tells what became of it. Raises LedgerUnavailable."""
        now = datetime.now(UTC)
        claim = Claim(
            key=self.key,
            tool=tool,
            call=self.call,
            nonce=secrets.token_hex(8),
            claimed_at=now,
            until=now + timeout,
            owner=Owner.here(),
        )
        try:
            self.store.create(f"{self._stem}.claim", claim.model_dump_json().encode())
        except FileExistsError:
            found = self.found()
            # A client of an object store sends again what it has no answer to, and may meet its own claim.
            return Granted(now) if found == Doubtful(claim) else found
        except OSError as error:
            raise LedgerUnavailable(f"the ledger takes no claim: {error.strerror or error}") from error
        return Granted(now)

    def is_claimed(self) -> bool:
        """Whether an attempt before this one may have made the effect. Raises LedgerUnavailable."""
        try:
            self.store.read(f"{self._stem}.claim")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise LedgerUnavailable(f"the ledger cannot be read: {error.strerror or error}") from error
        return True

    def found(self) -> Recorded | Doubtful:
        """What became of a call that was claimed. Raises LedgerUnavailable."""
        try:
            claim = Claim.model_validate_json(self.store.read(f"{self._stem}.claim"))
            if claim.call != self.call:
                return Doubtful(None)
            return self._recorded() or Doubtful(claim)
        except (FileNotFoundError, ValidationError):
            return Doubtful(None)
        except OSError as error:
            raise LedgerUnavailable(f"the ledger cannot be read: {error.strerror or error}") from error

    def _recorded(self) -> Recorded | None:
        try:
            return Recorded(ToolOutcome.model_validate_json(self.store.read(f"{self._stem}.result")))
        except FileNotFoundError:
            return None

    async def settled(
        self, doubtful: Doubtful, at_work: Collection[str], is_given_up: Callable[[], bool] = lambda: False
    ) -> Recorded | Doubtful:
        """Waits for the result of a claimant that may be at work still: it was cut off, not killed.

        `at_work` are the keys of the calls that this process is making.
        """
        claim = doubtful.claim
        if claim is None:
            return doubtful
        if claim.owner == Owner.here() and self.key not in at_work:
            return await self._found_at_last(doubtful)
        until = claim.until if claim.owner.is_near else min(claim.until, datetime.now(UTC) + ELSEWHERE)
        while claim.owner.may_live and datetime.now(UTC) < until and not is_given_up():
            await asyncio.sleep(LOOK_EVERY)
            found = await asyncio.to_thread(self.found)
            if isinstance(found, Recorded):
                return found
        return await self._found_at_last(doubtful)

    async def _found_at_last(self, doubtful: Doubtful) -> Recorded | Doubtful:
        """Its claimant is not at work any more: it may have left with its result since the last look."""
        with suppress(LedgerUnavailable):
            found = await asyncio.to_thread(self.found)
            return found if isinstance(found, Recorded) else doubtful
        return doubtful

    def is_at_work(self, at_work: Collection[str]) -> bool:
        """Whether its claimant may be making the effect just now. Raises LedgerUnavailable."""
        found = self.found()
        if isinstance(found, Recorded) or found.claim is None:
            return False
        here = found.claim.owner == Owner.here()
        lives = self.key in at_work if here else found.claim.owner.may_live
        return lives and datetime.now(UTC) < found.claim.until

    def record(self, outcome: ToolOutcome) -> None:
        """Writes the result beside the claim. Raises OSError."""
        self.store.put(f"{self._stem}.result", outcome.model_dump_json().encode())


def _started(pid: int) -> str:
    """When the process started, in the kernel's words; empty where it has ended, or the kernel does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # dead, and not yet collected by its parent
    except (OSError, IndexError):
        return ""

"""The callers of the server, and their own runs: those that they started, and those that resume them.

Run ids are chosen by people, so an id proves nothing: the start in the run's history says who sent it.
"""

from dataclasses import dataclass
from typing import Any

from temporalio.client import Client

from perdure.activities.temporal import IgnoreMissing
from perdure.client.errors import RejectedError, RunNotFoundError
from perdure.client.run_list import RunInfo, find_run, read_start
from perdure.contracts.people import Sender
from perdure.decisions.people.terms import sent_by

MCP_SENDER = "perdure mcp"  # the name under which a client over standard input and output answers and cancels
MAX_LINEAGE = 100  # runs that resume one another


@dataclass(frozen=True)
class McpCaller:
    """The caller of a request. Without a `sender` it is the client of this process, and all runs are its own."""

    name: str = MCP_SENDER
    sender: Sender | None = None
    may_start: bool = True
    """It may start runs, and answer in words and cancel its own ones."""
    may_answer: bool = True
    """It may answer and cancel any run, as a person does."""

    def require_start(self) -> None:
        """Raises RejectedError."""
        if not self.may_start:
            raise RejectedError(f"token {self.name} has no scope runs:start")

    def is_sender(self, start: Any) -> bool:
        """Return whether this caller sent a start, as history has it."""
        other = sent_by(start, "").sender
        own = self.sender
        return own is None or (other is not None and (other.token, other.person) == (own.token, own.person))


@dataclass(frozen=True)
class OwnRun:
    """A run of a caller. `origin` is the run that it resumes."""

    run: RunInfo
    origin: str | None


async def find_own_run(client: Client, caller: McpCaller, run_id: str) -> OwnRun:
    """Return a run of the caller. Raises RunNotFoundError, also for a run of another one; TemporalUnavailableError,
    RPCError.
    """
    try:
        run = await find_run(client, run_id)
        start = await _read_start(client, run)
        if await _is_own(client, caller, start):
            return OwnRun(run, _resumed_by(start))
    except RejectedError:  # a follow-up, or a question of the project
        pass
    raise RunNotFoundError(f"there is no run {run_id}")


async def _is_own(client: Client, caller: McpCaller, start: Any) -> bool:
    """Return whether the caller sent this start, or that of a run which it resumes."""
    for _ in range(MAX_LINEAGE):
        if caller.is_sender(start):
            return True
        if (origin := _resumed_by(start)) is None:
            return False
        start = await _read_start(client, await find_run(client, origin))
    return False


async def _read_start(client: Client, run: RunInfo) -> Any:
    """Return the start of a run; nothing if it is past the namespace's retention. Raises RPCError."""
    with IgnoreMissing():
        return (await read_start(client, run))[0]
    return None


def _resumed_by(start: Any) -> str | None:
    """Return the run that this start resumes. A fork is another piece of work."""
    payload = start.get("payload", {}) if isinstance(start, dict) and start.get("type") == "agentic.resume" else {}
    return None if payload.get("step") is not None else payload.get("run_id")

"""An outcome as it is recorded: within its bounds, readable, and with a large result as an artifact."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from pydantic_core import to_json

from perdure.activities.storage.workspace import OutsideWorkspaceError, Workspace
from perdure.contracts.tool import MAX_ERROR, MAX_RESULT_BYTES, LargeResult, ToolCall, ToolOutcome
from perdure.decisions.tool_results import INLINE_BYTES

EXCERPT_BYTES = 4 * 1024
CUT_MARGIN = 64 * 1024  # characters


def bound_result(outcome: ToolOutcome) -> ToolOutcome:
    """Cut a result to its first `MAX_RESULT_BYTES`, as text; return a smaller outcome unchanged."""
    result = outcome.result
    try:
        data = result.encode(errors="surrogatepass") if isinstance(result, str) else to_json(result)
    except ValueError:  # `reject_unreadable` reports it
        return outcome
    if len(data) <= MAX_RESULT_BYTES:
        return outcome
    return outcome.evolve(result=data[:MAX_RESULT_BYTES].decode(errors="ignore"))


def drop_cut_end(outcome: ToolOutcome) -> ToolOutcome:
    """Remove the last characters, which may contain half of a secret after the cut."""
    return outcome.evolve(result=outcome.result[:-CUT_MARGIN])


def cut_error(text: str) -> str:
    """Return at most MAX_ERROR characters, with a note of how many are missing."""
    if len(text) <= MAX_ERROR:
        return text
    shown = MAX_ERROR - 60  # the mark is shorter
    return f"{text[:shown]}\n… (cut: {len(text) - shown:,} more characters)"


def is_large(outcome: ToolOutcome) -> bool:
    return len(to_json(outcome.result)) > INLINE_BYTES or (
        outcome.error is not None and len(outcome.error.message) > MAX_ERROR
    )


def fit_result(
    outcome: ToolOutcome, call: ToolCall | LargeResult, workspace: Workspace, *, is_cut: bool = False
) -> ToolOutcome:
    """Store a large result as an artifact and keep an excerpt of it; cut a large error (A9).

    If the artifact cannot be written, the outcome still has the excerpt, since the call has been made.
    """
    if outcome.error is not None:
        error = outcome.error.evolve(message=cut_error(outcome.error.message))
        return outcome.evolve(error=error, result=None)
    is_text = isinstance(outcome.result, str)
    data = outcome.result.encode() if isinstance(outcome.result, str) else to_json(outcome.result, indent=2)
    content_type = "text/plain" if is_text else "application/json"
    result: dict[str, Any] = {
        "artifact_path": None,
        "content_type": content_type,
        "bytes": len(data),
        "excerpt": data[:EXCERPT_BYTES].decode(errors="ignore"),
    }
    if is_cut:
        result["lost"] = f"a result may have {MAX_RESULT_BYTES:,} bytes: only its first part is left"
    try:
        result["artifact_path"] = workspace.write_artifact(f"{call.tool}-{call.step:02}", content_type, data)
    except (OSError, OutsideWorkspaceError) as error:
        result["lost"] = f"only the excerpt is left, the disk refused the rest: {error}"
    return outcome.evolve(result=result)


MAX_SHARES = 8  # 64 MiB of large results in one worker
SMALL_BYTES = 256 * 1024


class _Share:
    def __init__(self, shares: asyncio.Semaphore) -> None:
        self._shares = shares
        self._is_taken = False

    async def take(self) -> None:
        if not self._is_taken:
            await self._shares.acquire()
            self._is_taken = True

    def release(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._shares.release()


_share: ContextVar[_Share | None] = ContextVar("result_share", default=None)


class ResultBudget:
    def __init__(self, shares: int = MAX_SHARES) -> None:
        self._shares = asyncio.Semaphore(shares)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Scope of one tool call: the share it takes with `take_share` is released when the block ends."""
        share = _Share(self._shares)
        token = _share.set(share)
        try:
            yield
        finally:
            _share.reset(token)
            share.release()


async def take_share() -> None:
    """Wait until the current call may hold a large result. Outside of a call there is no limit."""
    if (share := _share.get()) is not None:
        await share.take()


def is_small(value: Any, limit: int = SMALL_BYTES) -> bool:
    """Return True if a result is clearly small. Counting stops at `limit`, so it is cheap for any result."""
    stack, size = [value], 0
    while stack and size <= limit:
        item = stack.pop()
        match item:
            case str() | bytes():
                size += len(item)
            case Mapping() | list() | tuple():
                size += 8 * (1 + len(item))
                if size <= limit:
                    stack += [*item.keys(), *item.values()] if isinstance(item, Mapping) else item
            case _:
                size += 8
    return size <= limit

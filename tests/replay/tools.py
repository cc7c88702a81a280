"""The tools that scenarios call."""

import asyncio
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

from temporalio.exceptions import ApplicationError

from perdure.activities.effects.ledger import LedgerEntry
from perdure.activities.storage.store import LocalStore
from perdure.activities.tools.interface import PreflightTool
from perdure.contracts.failures import ToolFault
from perdure.contracts.tool import Approval, Effect, ToolError, ToolKind, ToolOutcome
from perdure.testkit.tools import ScriptedTool

look = partial(ScriptedTool, "look")
search = partial(ScriptedTool, "search", lambda *_: "no results")
save = partial(ScriptedTool, "save", effect=Effect.keyed)
vote = partial(ScriptedTool, "vote", kind=ToolKind.signal, effect=Effect.once)
vote_again = partial(ScriptedTool, "vote", kind=ToolKind.signal, effect=Effect.keyed)
late_vote = partial(ScriptedTool, "vote", kind=ToolKind.signal, timeout=timedelta(seconds=0.3))
guarded = partial(ScriptedTool, "charge", lambda *_: "charged", effect=Effect.once, approval=Approval.always)


class Redefined(ScriptedTool, PreflightTool):
    """A tool whose server has another definition of it than the accepted one."""

    async def check_preflight(self, effect: Effect, accepts: str | None, timeout: timedelta) -> ToolOutcome | None:
        if accepts == "another":
            return None
        error = ToolError(kind=ToolFault.changed, message="charge is defined otherwise now", definition="another")
        return ToolOutcome(status="error", error=error)


redefined = partial(Redefined, "charge", lambda *_: "charged", effect=Effect.once, kind=ToolKind.mcp)


def flaky() -> ScriptedTool:
    """Works at the second attempt."""
    attempts = count(1)

    def behave(arguments: Any, context: Any) -> str:
        if next(attempts) == 1:
            raise ConnectionError("down")
        return "up"

    return ScriptedTool("look", behave)


def lost_once() -> ScriptedTool:
    """An effect whose first call is interrupted by the end of its worker."""

    def behave(arguments: Any, context: Any) -> str:
        if context.idempotency_key.endswith(":request"):
            raise ApplicationError("worker is shutting down", type="WorkerShutdown")
        return "charged"

    return ScriptedTool("charge", behave, effect=Effect.once)


def lost_after_its_record() -> ScriptedTool:
    """An effect whose worker is lost when the ledger has its result, and the run has not."""

    def behave(arguments: Any, context: Any) -> str:
        store = LocalStore(context.workspace)
        execution = store.names("ledger")[0].partition("-")[0]  # of the claim
        page = LedgerEntry(store, context.idempotency_key, context.step, execution=execution)
        page.record(ToolOutcome(result="charged"))
        raise ApplicationError("worker is shutting down", type="WorkerShutdown")

    return ScriptedTool("charge", behave, effect=Effect.once)


def failing(effect: Effect) -> ScriptedTool:
    def behave(arguments: Any, context: Any) -> str:
        raise ApplicationError("no such customer", type="tool_error", non_retryable=True)

    return ScriptedTool("charge", behave, effect=effect)


def working(effect: Effect) -> ScriptedTool:
    """Takes its time: until it is stopped, or for as long as a cancel needs to arrive."""

    async def behave(arguments: Any, context: Any) -> str:
        await asyncio.sleep(60 if effect is Effect.read else 1)
        return "worked"

    return ScriptedTool("work", behave, effect=effect)


def endless(effect: Effect) -> ScriptedTool:
    """Never returns: its own timeout ends an effect, and Temporal's a read."""

    async def behave(arguments: Any, context: Any) -> str:
        await asyncio.Event().wait()
        return "never"

    return ScriptedTool("charge", behave, effect=effect, timeout=timedelta(seconds=0.1))


def large(size: int) -> ScriptedTool:
    return ScriptedTool("look", lambda *_: "x" * size)


def pages(size: int) -> ScriptedTool:
    """Each is another one."""
    return ScriptedTool("look", lambda arguments, _: f"{arguments['n']}: " + "lorem ipsum " * (size // 12))

"""The kind `mcp`: a tool of an MCP server, as it was accepted, and not as its server may define it by now."""

import asyncio
from datetime import timedelta
from typing import Any

from mcp import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from activities.mcp.connection import Connection, Lost, TimedOut, Unreachable
from activities.mcp.result import UnfitAnswerError, flaw_of, outcome_of
from activities.tools.interface import CallContext, Guarded, TransientFailure
from contracts.agent import ToolSchema
from contracts.failures import ToolFault
from contracts.mcp import Pin
from contracts.tool import Effect, ToolOutcome, ToolRoute, failed
from decisions.mcp import difference, effect_of, is_looser, strictest

NO_ANSWER = "Server returned an error response"  # the SDK's words for a 4xx or 5xx without a message of MCP
# By these a server says that it has called nothing. Others may be the SDK's words for an answer that it cannot read.
UNMADE = (METHOD_NOT_FOUND, INVALID_PARAMS)
_UNSENT = "the call was not made"


class McpTool(Guarded):
    """`name` is the server's own; `accepted` is what the model is told, and what the effect follows from."""

    def __init__(self, route: ToolRoute, name: str, accepted: Pin, connection: Connection) -> None:
        self.route = route
        self.schema = ToolSchema(name=route.name, description=accepted.description, input_schema=accepted.input_schema)
        self._name = name
        self._accepted = accepted
        self._connection = connection

    async def refusal(self, effect: Effect, accepts: str | None, timeout: timedelta) -> ToolOutcome | None:
        """Why the call must not be made: the tool is gone, or defined otherwise than anybody has accepted.

        Or it must be repeated less than the run believes, which began when it was `effect`, and retries it as that.
        Asked before the effect may begin. `accepts` is the digest of another definition that a person has accepted.
        A server at a URL is asked each time: what it notifies of may have gone astray. Raises TransientFailure.
        """
        seconds = timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                tools = await self._connection.tools(anew=self._connection.is_remote)
        except Unreachable as error:
            raise TransientFailure(ToolFault.unreachable, str(error)) from None
        except TimeoutError:
            told = f"MCP server {self._connection.server.name} did not get ready within {seconds:g} s"
            raise TransientFailure(ToolFault.unreachable, told) from None
        now = tools.get(self._name)
        if now is not None and is_looser(effect, needed := strictest(self.route.effect, effect_of(now.annotations))):
            told = f"{self.route.name} is {needed} now, and this run would repeat it as {effect}"
            return failed(ToolFault.changed, f"{told}; {_UNSENT}. A new run can, once the tool is accepted as it is")
        return self._changed(now, accepts, self._connection.refused.get(self._name))

    def _changed(self, now: Pin | None, accepts: str | None, why: str | None) -> ToolOutcome | None:
        if now is None:
            told = why or f"MCP server {self._connection.server.name} has no tool {self._name!r} any more"
            return failed(ToolFault.not_found, f"{told}; {_UNSENT}")
        if now.sha256 in (self._accepted.sha256, accepts):
            return None
        told = f"{self.route.name} is defined otherwise now than it was accepted; {_UNSENT}"
        outcome = failed(ToolFault.changed, f"{told}\n\n{difference(self._accepted, now)}")
        error = outcome.error and outcome.error.model_copy(update={"definition": now.sha256})
        return outcome.model_copy(update={"error": error})

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:
        """What was certainly not sent may be sent again; what was sent to a `once` tool may have happened."""
        timeout, flaw = self.route.timeout.total_seconds(), ""
        try:
            accepted = (self._accepted.sha256, context.accepts)
            answer = await self._connection.call(self._name, arguments, timeout, accepted)
        except Unreachable as error:
            return self._unsent(str(error))
        except Lost as error:
            if self.route.effect is Effect.once:
                return failed(ToolFault.in_doubt, f"{error}; the call was sent, and may have happened")
            raise TransientFailure(ToolFault.unreachable, str(error)) from None
        except TimedOut as error:
            raise TransientFailure(ToolFault.timeout, str(error)) from None
        except MCPError as error:
            if error.message == NO_ANSWER:
                raise TransientFailure(ToolFault.unreachable, f"{self.route.name}: {error.message}") from None
            told = f"{self.route.name}: {error.message[:2000]} (code {error.code})"
            if self.route.effect is Effect.once and error.code not in UNMADE:
                told += "; the call was sent, and may have happened"
            return failed(ToolFault.tool_error, told)
        except UnfitAnswerError as error:
            answer, flaw = error.answer, flaw_of(error.answer, str(error))
        except RuntimeError as error:  # the SDK's, for an answer that is none
            return failed(ToolFault.tool_error, f"the call was made, but {str(error)[:2000]}")
        stem = f"{self.route.name}-{context.step:02}"
        return await asyncio.to_thread(outcome_of, answer, stem, context.workspace, flaw)

    def _unsent(self, why: str) -> ToolOutcome:
        if self.route.effect is Effect.once:
            return failed(ToolFault.unreachable, f"{why}; {_UNSENT}", retryable=True)
        raise TransientFailure(ToolFault.unreachable, why)

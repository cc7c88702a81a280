"""The MCP server over runs: its tools, its tasks, and expected errors in one line each."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from importlib.metadata import version
from typing import Any, ParamSpec, TypeVar

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, InputRequiredResult, ToolAnnotations
from pydantic import BaseModel, ValidationError
from temporalio.service import RPCError

from perdure.decisions.errors import ReportedError, format_validation_error
from perdure.decisions.text.formatting import truncate
from perdure.decisions.text.visible_text import render_values
from perdure.features.mcp_server.tasks import RunTasks
from perdure.features.mcp_server.tools import CallerOf, RunTools, of_this_process
from perdure.session import Session

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _OneLineErrors(MCPServer[Any]):
    """A server that reports an expected error in one line."""

    redact: Callable[[str], str] = str

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            match error.__cause__:
                case ReportedError() as cause:
                    reason = truncate(str(cause), 500)
                case ValidationError() as cause:
                    reason = format_validation_error(cause, without="payload")
                case RPCError() as cause:
                    reason = f"Temporal does not do it: {truncate(cause.message)}"
                case _:
                    raise
            raise ToolError(self.redact(f"{name}: {reason}")) from None


def create_mcp_server(
    session: Session,
    *,
    may_approve: bool = False,
    caller_of: CallerOf = of_this_process,
    stopping: asyncio.Event | None = None,
) -> MCPServer[Any]:
    """Return a server of this session. Its waits end once it is `stopping`.

    `caller_of` returns the sender of a request; by default it is the one who started this process.
    """
    door = RunTools(session, may_approve=may_approve, caller_of=caller_of, stopping=stopping)
    server = _OneLineErrors(
        "perdure",
        instructions=_build_instructions(session),
        version=version("perdure"),
        log_level="WARNING",
        extensions=[RunTasks(door)],
        subscriptions=False,  # nothing changes that a client could listen to, and a stream would outlive its token
    )
    server.redact = session.settings.secrets.redact
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    # An answer lets the agent continue, and a run can do whatever its tools can.
    acts = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
    stops = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
    for tool, hints in (
        (door.start_run, acts),
        (door.run_state, reads),
        (door.wait_for_run, reads),
        (door.answer_question, acts),
        (door.list_waiting, reads),
        (door.cancel_run, stops),
    ):
        server.tool(annotations=hints)(_with_visible_text(tool))
    return server


def _build_instructions(session: Session) -> str:
    agents = [agent for agent in session.settings.agents.values() if not agent.mailbox]
    listed = "\n".join(f"- {agent.name}: {agent.description or 'no description'}" for agent in agents)
    return (
        "Durable agent runs. A run goes on whatever becomes of this connection: keep its run_id, and look again later. "
        f"Start one with start_run, then call wait_for_run until it is over or asks something. The agents:\n{listed}"
    )


def _with_visible_text(tool: Callable[_P, Awaitable[_R]]) -> Callable[_P, Awaitable[_R]]:
    """Make hidden characters in the texts of a result visible, as the client may show them to people."""

    @wraps(tool)
    async def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        result = await tool(*args, **kwargs)
        if not isinstance(result, BaseModel):
            return result
        return type(result).model_validate(render_values(result.model_dump()))

    return wrapper

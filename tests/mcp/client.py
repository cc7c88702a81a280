"""A connection to an MCP server, and the server's tools as a project has them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from perdure.activities.storage.workspace import Workspace
from perdure.activities.tools.interface import CallContext
from perdure.contracts.tool import Effect, ToolKind, ToolOutcome, ToolRoute
from perdure.features.mcp.activities.connection import Connection
from perdure.features.mcp.activities.tool import McpTool
from perdure.features.mcp.rules import effect_of
from tests.activities.calls import new_context

PATIENCE = 60.0  # seconds: far more than what is waited for takes


class McpClient:
    def __init__(self, connection: Connection, folder: Path) -> None:
        self.connection = connection
        self.workspace = Workspace(folder / "run")
        self.workspace.create()

    @property
    def context(self) -> CallContext:
        return new_context(self.workspace)

    async def effects(self) -> dict[str, Effect]:
        return {name: effect_of(pin.annotations) for name, pin in (await self.connection.tools()).items()}

    async def tool(self, name: str, timeout: float = PATIENCE) -> McpTool:
        pin = (await self.connection.tools())[name]
        route = ToolRoute(
            name=f"{self.connection.server.name}__{name}",
            kind=ToolKind.mcp,
            effect=effect_of(pin.annotations),
            timeout=timedelta(seconds=timeout),
        )
        return McpTool(route, name, pin, self.connection)

    async def run(self, name: str, timeout: float = PATIENCE, **arguments: Any) -> ToolOutcome:
        tool = await self.tool(name, timeout)
        assert await check(tool) is None
        return await tool.run(arguments, self.context)


async def check(tool: McpTool, accepted: str | None = None, timeout: float = PATIENCE) -> ToolOutcome | None:
    return await tool.check_preflight(tool.route.effect, accepted, timedelta(seconds=timeout))


@asynccontextmanager
async def connected(connection: Connection, folder: Path) -> AsyncIterator[McpClient]:
    try:
        yield McpClient(connection, folder)
    finally:
        await connection.close()

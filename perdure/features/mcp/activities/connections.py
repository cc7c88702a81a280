"""All connections of a worker: one for each server, or one for each requester of a server that they log in to.

A requester's connection has their token, session and list of tools, and serves no run of another one.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from types import MappingProxyType
from typing import Any

from temporalio import activity

from perdure.activities.run.account import read_account
from perdure.activities.storage.store import Stores
from perdure.activities.temporal import own_run_id
from perdure.contracts.people import UNKNOWN
from perdure.contracts.tool import Pin
from perdure.features.mcp.activities.config import HttpServer, McpServer
from perdure.features.mcp.activities.connection import Connection, McpUnreachableError
from perdure.features.mcp.activities.extension import TaskRequest
from perdure.features.mcp.activities.grants import NeedsLoginError

MAX_RUNS = 1000  # whose requesters are remembered
MAX_IDLE = 50  # connections of requesters that stay open
IDLE_SECONDS = 60.0  # after which one beyond them is closed


class UnknownRequesterError(McpUnreachableError):
    """A run is of no requester who could have logged in. The call was not sent."""


class PersonalConnections:
    """The connections to a server, by requester: each run uses that of its own."""

    rejected_tools: Mapping[str, str] = MappingProxyType({})

    def __init__(self, server: HttpServer, stores: Stores, connect: Callable[[str], Connection]) -> None:
        self.server = server
        self._stores = stores
        self._connect = connect
        self._requesters: dict[str, str] = {}  # by execution
        self._open: dict[str, Connection] = {}  # by requester, the last used at the end
        self._used_at: dict[str, float] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def for_run(self) -> Connection:
        """Return the connection for the calls of the current activity's run. Raises McpUnreachableError."""
        requester = await self._find_requester()
        self._close_idle()
        connection = self._open.pop(requester, None) or self._connect(requester)
        self._open[requester], self._used_at[requester] = connection, monotonic()
        return connection

    async def _find_requester(self) -> str:
        name = self.server.name
        if not activity.in_activity():
            raise McpUnreachableError(
                f"MCP server {name} has a login for each requester: accept its tools as one of them: "
                f"perdure tools --accept {name}"
            )
        execution = activity.info().workflow_run_id or ""
        if execution not in self._requesters:
            try:
                account = await asyncio.to_thread(read_account, self._stores.of(own_run_id()))
            except OSError as error:
                raise McpUnreachableError(f"the requester of the run cannot be read: {error}") from None
            if len(self._requesters) >= MAX_RUNS:
                del self._requesters[next(iter(self._requesters))]
            self._requesters[execution] = account.requester if account else UNKNOWN
        if (requester := self._requesters[execution]) in ("", UNKNOWN):
            raise UnknownRequesterError(
                f"MCP server {name} is used with the login of a run's requester, and this run's is unknown: start it "
                "with a token of the gateway, as a person whom its proxy names, or at a terminal in a project with "
                "[people]"
            )
        return requester

    def _close_idle(self) -> None:
        for name in list(self._open)[:-MAX_IDLE]:
            if self._open[name].is_idle and monotonic() - self._used_at[name] > IDLE_SECONDS:
                closing = asyncio.create_task(self._open.pop(name).close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    async def tools(self) -> Mapping[str, Pin]:
        """Return the tools that the run's requester can be offered. Raises as `Connection.tools`."""
        return await (await self.for_run()).tools()

    async def request(self, request: TaskRequest, timeout: float) -> dict[str, Any]:
        """Return the reply to a request about a task of the run. Raises as `Connection.request`."""
        return await (await self.for_run()).request(request, timeout)

    async def close(self) -> None:
        await asyncio.gather(*self._closing, *(connection.close() for connection in self._open.values()))


ServerConnection = Connection | PersonalConnections


class Connections:
    """All servers of a worker, by name."""

    def __init__(self, servers: Iterable[McpServer], connect: Callable[[McpServer], ServerConnection]) -> None:
        self._all = {server.name: connect(server) for server in servers}

    def __getitem__(self, name: str) -> ServerConnection:
        return self._all[name]

    async def list_tools_of(self, names: Iterable[str]) -> dict[str, Mapping[str, Pin] | McpUnreachableError]:
        """List the tools of these servers concurrently."""

        async def tools_of(name: str) -> Mapping[str, Pin] | McpUnreachableError:
            try:
                return await self._all[name].tools()
            except McpUnreachableError as error:
                return error
            except NeedsLoginError as error:
                return McpUnreachableError(str(error))

        servers = list(dict.fromkeys(names))
        return dict(zip(servers, await asyncio.gather(*map(tools_of, servers)), strict=True))

    async def close(self) -> None:
        """End all servers concurrently."""
        await asyncio.gather(*(connection.close() for connection in self._all.values()))

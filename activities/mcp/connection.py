"""One connection to an MCP server for a whole worker: opened at the first call, shared by all, opened again when lost.

The SDK's contexts must be left by the task that entered them. So each connection has one task that owns them, and
calls come from the activities' own.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from mcp import Client, MCPError
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    CallToolResult,
    ServerNotification,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from activities.mcp.config import HttpServer, McpServer, StdioServer, program_of
from activities.mcp.http import http_client
from activities.mcp.listing import listed
from activities.mcp.result import keep_unfit_answers
from activities.mcp.stdio import MOST_LINE, Process, started
from contracts.mcp import Pin, PinnedProgram
from decisions.errors import fault_line
from decisions.mcp import visible

STEADY = 60.0  # a server that lived for this long, and then died, is started again at once
FIRST_PAUSE, MOST_PAUSE = 0.5, 30.0  # seconds before it is started again, where it did not
CLOSING = 10.0  # seconds
CLOSED = "Connection closed"  # the SDK's words for the end of a whole connection

_log = logging.getLogger(__name__)


class Unreachable(Exception):
    """The server cannot be asked. The call was not sent."""


class Lost(Exception):
    """The connection ended after the call was sent: nobody knows what became of it."""


class TimedOut(Exception):
    """The call was sent, and no answer came in its time. The connection goes on."""


@dataclass
class _Link:
    """One life of a connection. `end` is set when it is to end, and when it has."""

    ready: "asyncio.Future[Client]"
    end: asyncio.Event
    owner: "asyncio.Task[None] | None" = None
    has_served: bool = False
    calls: int = 0  # that are in flight


class Connection:
    """Of one server. Nothing is started before the first call."""

    def __init__(
        self, server: McpServer, redact: Callable[[str], str] = str, accepted: PinnedProgram | None = None
    ) -> None:
        self.server = server
        self._program = accepted
        self._redact = redact
        self._link: _Link | None = None
        self._tools: dict[str, Pin] = {}
        self._refused: dict[str, str] = {}
        self._is_stale = False  # what is known of its tools
        self._listing = asyncio.Lock()
        self._last_words = ""
        self._failures = 0  # in a row
        self._failed_at = 0.0
        self._why = ""

    async def tools(self, *, anew: bool = False) -> Mapping[str, Pin]:
        """What the server has now, as far as it can be offered. Raises Unreachable.

        It is asked again where it said that something changed, and always with `anew`.
        """
        link, client = await self._linked()
        try:
            if anew or self._is_stale or client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                await self._list(client)
        except (ValidationError, MCPError) as error:
            if not self._is_over(link, error):
                raise Unreachable(self._told(f"does not say which tools it has: {_leaf(error)}")) from None
            link.end.set()
            await self._linked()
        return self._tools

    def _is_over(self, link: _Link, error: ValidationError | MCPError) -> bool:
        """Whether only another connection can bring the tools: the server has died, or has forgotten the session.

        Calls of other runs may be at work on this one: then it goes on, unless the error says just that.
        """
        if not isinstance(error, MCPError):
            return False
        if not self.is_remote:
            return error.code == CONNECTION_CLOSED
        if error.message == CLOSED or "session" in error.message.lower():  # each kind of server has words of its own
            return True
        return error.code != REQUEST_TIMEOUT and not link.calls

    @property
    def is_remote(self) -> bool:
        return isinstance(self.server, HttpServer)

    @property
    def refused(self) -> Mapping[str, str]:
        """Tools that cannot be offered, and why; known once it was asked."""
        return self._refused

    async def call(
        self, tool: str, arguments: dict[str, Any], timeout: float, accepted: Collection[str | None]
    ) -> CallToolResult:
        """Calls a tool whose definition has one of these digests.

        Raises Unreachable, Lost, TimedOut; MCPError where the server refuses; UnfitAnswerError, or another RuntimeError
        for an answer that is none.
        """
        link, client = await self._linked()
        if self._is_stale or tool not in self._tools or self._tools[tool].sha256 not in accepted:
            raise Unreachable(self._told("changed its tools just now"))  # since the call was looked at
        link.calls += 1
        try:
            async with asyncio.timeout(timeout + 1):  # beyond the client's own, which does not count while it writes
                result = await client.call_tool(tool, arguments, read_timeout_seconds=timeout)
        except TimeoutError:
            raise TimedOut(f"{self.server.name} did not answer within {timeout:g} s") from None
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                raise TimedOut(f"{self.server.name} did not answer within {timeout:g} s") from None
            if error.code == CONNECTION_CLOSED:
                if error.message == CLOSED:  # and not only the stream of this answer
                    link.end.set()
                raise Lost(self._told("ended the connection")) from None
            if isinstance(self.server, HttpServer) and error.message == "Session terminated":
                link.end.set()  # it was started anew, and has not looked at the call
                raise Unreachable(self._told("has forgotten the session")) from None
            raise
        except ValidationError as error:
            raise RuntimeError(f"its answer is none of MCP: {_leaf(error)}") from None
        finally:
            link.calls -= 1
        link.has_served = True
        return result

    async def close(self) -> None:
        """Ends the server, if it runs. Bounded, whatever it does."""
        if self._link is not None:
            await self._closed(self._link)

    async def _linked(self) -> tuple[_Link, Client]:
        """The open connection; opens one where there is none. Raises Unreachable."""
        if self._link is not None and self._link.end.is_set():
            await self._closed(self._link)
        if self._link is None:
            self._may_be_opened()
            self._link = _Link(asyncio.get_running_loop().create_future(), asyncio.Event())
            self._link.owner = asyncio.create_task(self._own(self._link))
        link = self._link
        try:
            return link, await asyncio.shield(link.ready)
        except _NotOpened as error:
            raise Unreachable(str(error)) from None
        except asyncio.CancelledError:
            if not link.ready.cancelled():
                raise
            raise Unreachable(self._told("was not ready when it was given up")) from None

    async def _closed(self, link: _Link) -> None:
        link.end.set()
        if link.owner is not None:
            if not link.ready.done():
                link.owner.cancel()  # it waits for a server that may never get ready
            await asyncio.wait([link.owner], timeout=CLOSING)
            if not link.owner.done():
                link.owner.cancel()
                await asyncio.wait([link.owner], timeout=CLOSING)
        if self._link is link:  # nobody else has opened another one meanwhile
            self._link = None

    def _may_be_opened(self) -> None:
        """A server that fails again and again is not started by every call."""
        pause = min(FIRST_PAUSE * 2 ** min(self._failures - 2, 10), MOST_PAUSE) if self._failures > 1 else 0.0
        if (left := self._failed_at + pause - monotonic()) > 0:
            raise Unreachable(f"{self._why} (it is tried again in {left:.1f} s)")

    async def _own(self, link: _Link) -> None:
        """Holds all contexts of the connection, from its start to its end."""
        began = monotonic()
        self._why, self._last_words = "", ""
        limit = self.server.start_timeout
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(limit):
                    transport = await self._transport(stack, link.end.set)
                    client = Client(transport, read_timeout_seconds=limit, message_handler=self._hear, cache=None)
                    await stack.enter_async_context(client)
                    keep_unfit_answers(client.session)
                    await self._list(client)
                link.ready.set_result(client)
                await link.end.wait()
        except TimeoutError:
            self._not_opened(link, f"it did not get ready within {limit:g} s")
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises, the server cannot be used
            self._not_opened(link, _leaf(error))
        finally:
            link.end.set()
            link.ready.cancel()  # no effect where it is done
            if link.has_served or monotonic() - began >= STEADY:
                self._failures = 0
            else:
                self._failures, self._failed_at = self._failures + 1, monotonic()
                self._why = self._why or self._told("ended before it was of any use")

    def _not_opened(self, link: _Link, why: str) -> None:
        if link.ready.done():
            _log.info("mcp server %s: the connection ended: %s", self.server.name, self._redact(why))
            return
        self._why = self._told(f"cannot be reached: {why}")
        link.ready.set_exception(_NotOpened(self._why))
        link.ready.exception()  # looked at, also where the caller has gone

    async def _transport(self, stack: AsyncExitStack, on_end: Callable[[], None]) -> Transport:
        """Raises whatever stands in the way."""
        server = self.server
        if server.missing:
            raise ValueError(server.missing)
        if isinstance(server, StdioServer):
            program = await asyncio.to_thread(program_of, server)
            if self._program not in (None, program):
                raise ValueError(_changed_program(server.name, program, self._program))
            located = replace(server, command=program.path)
            return _Entered(await stack.enter_async_context(started(located, on_end, self._said)))
        http = await stack.enter_async_context(http_client(server, server.start_timeout, self._said))
        return streamable_http_client(server.url, http_client=http, max_sse_event_size=MOST_LINE)

    async def _hear(self, message: ServerNotification | Exception | Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._is_stale = True

    def _said(self, line: str) -> None:
        self._last_words = line

    def _told(self, what: str) -> str:
        words = f"; its last words: {self._last_words}" if self._last_words else ""
        return visible(self._redact(f"MCP server {self.server.name} {what}{words}"))[:1000]

    async def _list(self, client: Client) -> None:
        """Asks for all tools. What a tool of a model cannot be is refused by name."""
        async with self._listing:
            self._is_stale = False  # before it is asked: what it says meanwhile counts
            try:
                self._tools, self._refused = await listed(client, self.server.name)
            except BaseException:
                self._is_stale = True
                raise


def _changed_program(name: str, now: PinnedProgram, accepted: PinnedProgram | None) -> str:
    what = "other arguments" if accepted is None or accepted.path == now.path else f"{now.path}, not {accepted.path}"
    return (
        f"it would be started with {what}, which nobody has accepted; see .mcp.json, then perdure tools --accept {name}"
    )


class _NotOpened(Exception):
    """Kept in a future that several calls wait for."""


class _Entered:
    """A transport that is open already: the client only uses it."""

    def __init__(self, streams: tuple[Process, Process]) -> None:
        self._streams = streams

    async def __aenter__(self) -> tuple[Process, Process]:
        return self._streams

    async def __aexit__(self, *_: object) -> None:
        return None


def _leaf(error: BaseException) -> str:
    """What went wrong, in a line: the first one of a group, and of its own words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ValidationError):
        return fault_line(error)[:300]
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"there is no {error.filename!r} here"
    said = str(error).strip().splitlines()
    return said[0][:300] if said else type(error).__name__


class Connections:
    """All servers of a worker, by name."""

    def __init__(
        self,
        servers: Iterable[McpServer],
        redact: Callable[[str], str] = str,
        accepted: Mapping[str, PinnedProgram] | None = None,
    ) -> None:
        programs = accepted or {}
        self._all = {server.name: Connection(server, redact, programs.get(server.name)) for server in servers}

    def __getitem__(self, name: str) -> Connection:
        return self._all[name]

    async def listed(self, names: Iterable[str]) -> dict[str, Mapping[str, Pin] | Unreachable]:
        """What each of these servers has now, all asked at the same time."""
        wanted = list(dict.fromkeys(names))
        found = await asyncio.gather(*(_tools_of(self._all[name]) for name in wanted))
        return dict(zip(wanted, found, strict=True))

    async def close(self) -> None:
        """Ends all servers, at the same time."""
        await asyncio.gather(*(connection.close() for connection in self._all.values()))


async def _tools_of(connection: Connection) -> Mapping[str, Pin] | Unreachable:
    try:
        return await connection.tools()
    except Unreachable as error:
        return error

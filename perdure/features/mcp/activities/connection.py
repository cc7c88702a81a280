"""One connection to an MCP server with one grant: opened at the first call, shared, and reopened after a loss.

The SDK's contexts must be exited by the task that entered them. So one task owns each connection, and the activities'
tasks make the calls.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any

import httpx2
from mcp import Client, MCPError
from mcp.client import ClientRequestContext, Transport
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    REQUEST_TIMEOUT,
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    InputRequiredResult,
    InputResponses,
    RequestParamsMeta,
    Result,
    ServerNotification,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from perdure.activities.http import IDENTITY, BodyEncodingError, decode_pieces
from perdure.activities.tools.json_schema import SchemaValidator
from perdure.contracts.bounds import Backoff
from perdure.contracts.tool import InputRequest, Pin, PinnedProgram, Unfinished
from perdure.decisions.errors import format_validation_error
from perdure.features.mcp.activities.config import HttpServer, McpServer, StdioServer, program_of
from perdure.features.mcp.activities.extension import TaskRequest, TasksExtension, TaskShown
from perdure.features.mcp.activities.grants import GrantError, GrantKeeper, NeedsLoginError, StoredAuth
from perdure.features.mcp.activities.listing import list_offerable_tools
from perdure.features.mcp.activities.stdio import MAX_MESSAGE_LINE, running_server
from perdure.features.mcp.rules import KEY, input_key, render_visible_line, to_input_request


class _Bounded(httpx2.AsyncHTTPTransport):
    """A transport that bounds the decoded size of a plain response. The SDK bounds the events of a stream.

    A stream is unpacked in small pieces, so that the SDK's bound applies before memory runs out.
    """

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers.update(IDENTITY)
        response = await super().handle_async_request(request)
        if isinstance(response.stream, httpx2.AsyncByteStream):
            encoding = response.headers.pop("content-encoding", "")  # decoded here only
            is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
            response.stream = _Decoded(response.stream, encoding, None if is_events else MAX_MESSAGE_LINE)
        return response


@dataclass
class _Decoded(httpx2.AsyncByteStream):
    stream: httpx2.AsyncByteStream
    encoding: str
    limit: int | None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        try:
            async for piece in decode_pieces(self.encoding, self.stream):
                count += len(piece)
                if self.limit is not None and count > self.limit:
                    raise httpx2.StreamError(f"the answer is larger than {self.limit:,} bytes")
                yield piece
        except BodyEncodingError as error:
            raise httpx2.StreamError(str(error)) from None

    async def aclose(self) -> None:
        await self.stream.aclose()


def http_client(
    server: HttpServer, connect: float, on_said: Callable[[str], None], auth: httpx2.Auth | None = None
) -> httpx2.AsyncClient:
    """Return the client. `connect` is in seconds; there is no read timeout, since calls have their own."""

    async def report_refusal(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            on_said(f"HTTP {response.status_code} {response.reason_phrase}".strip())

    return httpx2.AsyncClient(
        transport=_Bounded(trust_env=False),
        headers=dict(server.headers),
        auth=auth,
        timeout=httpx2.Timeout(connect, read=None),
        event_hooks={"response": [report_refusal]},
    )


STEADY_SECONDS = 60.0  # seconds; a server that ran for this long before it ended is restarted without a pause
PAUSES = Backoff(0.5, 30.0)  # before the restart of a server that ended sooner again
CLOSE_TIMEOUT = 10.0  # seconds
CONNECTION_CLOSED_MESSAGE = "Connection closed"  # the SDK's message for the end of a whole connection

_log = logging.getLogger(__name__)


class McpUnreachableError(Exception):
    """The server cannot be reached. The call was not sent."""


class McpConnectionLostError(Exception):
    """The connection ended after the call was sent, so its result is unknown."""


class McpTimeoutError(Exception):
    """The call was sent, but no answer came in time. The connection stays open."""


MAX_STATES = 10  # times that a server wants its own state back, without a question
STATE_PAUSE = 0.25  # seconds before it gets it back


@dataclass
class OpenCall:
    """A call as it is sent. `key` is its idempotency key, `left` what is known of it from an earlier round.

    `asked` is what the server has asked within the call and has not been answered, as it happened in MCP until 2025.
    `was_shared`: it asked while several calls were open, so the question is of no known call.
    """

    key: str
    left: Unfinished | None = None
    asked: list[InputRequest] = field(default_factory=list)
    was_shared: bool = False

    @property
    def responses(self) -> InputResponses | None:
        """The answers that go with the call."""
        if self.left is None or self.left.way != "retry":
            return None
        return {key: ElicitResult.model_validate(answer) for key, answer in self.left.answers.items()}

    @property
    def state(self) -> str | None:
        return self.left.state if self.left is not None and self.left.way == "retry" else None

    def answer(self, params: ElicitRequestParams) -> ElicitResult:
        """Return the answer that is ready at hand, else note the question and end it."""
        asked = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        key = input_key(asked)
        if self.left is not None and self.left.way == "open" and key in self.left.answers:
            return ElicitResult.model_validate(self.left.answers[key])
        self.asked.append(to_input_request(key, {"method": "elicitation/create", "params": asked}))
        return ElicitResult(action="cancel")


@dataclass
class _Link:
    """One open connection. `end` is set when it should end, and when it has ended. `login`: the grant's generation."""

    ready: "asyncio.Future[Client]"
    end: asyncio.Event
    login: int = 0
    owner: "asyncio.Task[None] | None" = None
    has_served: bool = False
    calls: list[OpenCall | TaskRequest] = field(default_factory=list)  # in flight


class Connection:
    """The connection to one server, with one grant if it needs one. Nothing is started before the first call."""

    def __init__(
        self,
        server: McpServer,
        redact: Callable[[str], str] = str,
        accepted: PinnedProgram | None = None,
        keeper: GrantKeeper | None = None,
    ) -> None:
        self.server = server
        self.keeper = keeper
        self._program = accepted
        self._redact = redact
        self._link: _Link | None = None
        self._login = 0
        self._tools: dict[str, Pin] = {}
        self._refused: dict[str, str] = {}
        self._outputs: dict[str, SchemaValidator] = {}
        self._is_stale = False  # the list of tools
        self._listing = asyncio.Lock()
        self._last_line = ""
        self._failures = 0  # in a row
        self._failed_at = 0.0
        self._reason = ""

    async def for_run(self) -> "Connection":
        """Return the connection for the calls of the current activity's run."""
        return self

    @property
    def is_idle(self) -> bool:
        return self._link is None or not self._link.calls

    async def tools(self, *, refresh: bool = False) -> Mapping[str, Pin]:
        """Return the tools that can be offered. Raises McpUnreachableError.

        They are listed again if the server reported a change, and always with `refresh`. Raises NeedsLoginError.
        """
        await self.authorize()
        try:
            return await self._list_tools(refresh=refresh)
        except McpUnreachableError:
            await self.authorize()  # the server may have rejected the token
            raise

    async def authorize(self) -> None:
        """Have a token for a server that needs one. Raises NeedsLoginError, McpUnreachableError.

        What a server knows of a session may belong to an earlier login, so another login begins another session.
        """
        if self.keeper is None:
            return
        try:
            self._login = (await self.keeper.current()).generation
            if self._link is not None and self.is_idle and self._link.login != self._login:
                self._link.end.set()
        except NeedsLoginError:
            raise
        except (GrantError, OSError) as error:
            raise McpUnreachableError(self._format_failure(f"cannot be used: {error}")) from None

    async def _list_tools(self, *, refresh: bool) -> Mapping[str, Pin]:
        link, client = await self._open_link()
        try:
            if refresh or self._is_stale or client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                await self._refresh_tools(client)
        except (ValidationError, MCPError) as error:
            if not self._is_over(link, error):
                raise McpUnreachableError(
                    self._format_failure(f"does not say which tools it has: {_summarize_error(error)}")
                ) from None
            link.end.set()
            await self._open_link()
        return self._tools

    def _is_over(self, link: _Link, error: ValidationError | MCPError) -> bool:
        """Return True if the tools need a new connection: the server has ended, or has lost the session.

        While calls of other runs are in flight, the connection stays open unless the error clearly says so.
        """
        if not isinstance(error, MCPError):
            return False
        if not self.is_remote:
            return error.code == CONNECTION_CLOSED
        if (
            error.message == CONNECTION_CLOSED_MESSAGE or "session" in error.message.lower()
        ):  # the wording differs between servers
            return True
        return error.code != REQUEST_TIMEOUT and not link.calls

    @property
    def is_remote(self) -> bool:
        return isinstance(self.server, HttpServer)

    @property
    def rejected_tools(self) -> Mapping[str, str]:
        """The tools that cannot be offered, with reasons; empty before the first listing."""
        return self._refused

    def declared_output(self, tool: str) -> SchemaValidator | None:
        """Return the validator of the tool's structured output, if it declares one that is valid."""
        return self._outputs.get(tool)

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        timeout: float,
        accepted: Collection[str | None],
        open_call: OpenCall,
    ) -> Result:
        """Call a tool whose definition has one of these digests.

        Return a CallToolResult, an InputRequiredResult with requests, or a TaskMade.

        Raises McpUnreachableError, McpConnectionLostError and McpTimeoutError; MCPError if the server rejects the call;
        RuntimeError if the answer is not valid.
        """
        await self.authorize()
        link, client = await self._open_link()
        self._must_be_accepted(tool, accepted)
        try:
            async with self._sending(link, open_call, timeout):
                try:
                    result = await self._send_call(client, tool, arguments, timeout, open_call)
                except MCPError as error:
                    if error.code != HEADER_MISMATCH:
                        raise
                    await self._refresh_tools(client)  # the headers follow from the schema
                    self._must_be_accepted(tool, accepted)
                    result = await self._send_call(client, tool, arguments, timeout, open_call)
        except ValidationError as error:
            raise RuntimeError(f"its answer is none of MCP: {_summarize_error(error)}") from None
        link.has_served = True
        return result

    def _must_be_accepted(self, tool: str, accepted: Collection[str | None]) -> None:
        if self._is_stale or tool not in self._tools or self._tools[tool].sha256 not in accepted:
            raise McpUnreachableError(self._format_failure("changed its tools just now"))  # after the preflight

    async def _send_call(
        self, client: Client, tool: str, arguments: dict[str, Any], timeout: float, open_call: OpenCall
    ) -> Result:
        """Send a call, again while the server wants only its state back, and without one that is too old for it."""
        responses, state = open_call.responses, open_call.state
        meta: RequestParamsMeta = {KEY: open_call.key}  # type: ignore[misc]  # the SDK names its own keys only
        for _ in range(MAX_STATES):
            try:
                result = await client.session.call_tool(
                    tool,
                    arguments,
                    read_timeout_seconds=timeout,
                    input_responses=responses,
                    request_state=state,
                    meta=meta,
                    allow_input_required=True,
                    allow_claimed=True,
                )
            except MCPError as error:
                if error.code != INVALID_PARAMS or state is None:
                    raise
                responses = state = None
                continue
            if not isinstance(result, InputRequiredResult) or result.input_requests:
                return result
            responses, state = None, result.request_state
            await asyncio.sleep(STATE_PAUSE)
        raise RuntimeError("it wants its state back again and again, and asks nothing")

    async def request(self, request: TaskRequest, timeout: float) -> dict[str, Any]:
        """Return the reply to a request about a task, of `timeout` seconds. Raises as `call`, and ValidationError."""
        await self.authorize()
        link, client = await self._open_link()
        async with self._sending(link, request, timeout):
            shown = await client.session.send_request(request, TaskShown, timeout)
        link.has_served = True
        return shown.model_dump(by_alias=True, mode="json", exclude_none=True)

    @asynccontextmanager
    async def _sending(self, link: _Link, sent: OpenCall | TaskRequest, timeout: float) -> AsyncIterator[None]:
        """Translate the errors of a request. Raises as `call`."""
        link.calls.append(sent)
        try:
            async with asyncio.timeout(timeout + 1):  # the client's own timeout excludes writing
                yield
        except TimeoutError:
            raise McpTimeoutError(f"{self.server.name} did not answer within {timeout:g} s") from None
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                raise McpTimeoutError(f"{self.server.name} did not answer within {timeout:g} s") from None
            if error.code == CONNECTION_CLOSED:
                if error.message == CONNECTION_CLOSED_MESSAGE:  # not only the stream of this answer
                    link.end.set()
                raise McpConnectionLostError(self._format_failure("ended the connection")) from None
            if isinstance(self.server, HttpServer) and error.message == "Session terminated":
                link.end.set()  # the server was restarted and did not process the call
                raise McpUnreachableError(self._format_failure("has forgotten the session")) from None
            raise
        finally:
            link.calls.remove(sent)

    async def _on_elicitation(self, link: _Link, _: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        """Answer what a server asks within an open call, if that is clear: the request does not say which one."""
        calls = [sent for sent in link.calls if isinstance(sent, OpenCall)]
        if len(calls) == 1:
            return calls[0].answer(params)
        for sent in calls:
            sent.was_shared = True
        return ElicitResult(action="cancel")

    async def close(self) -> None:
        """End the server, if it runs, in bounded time."""
        if self._link is not None:
            await self._close_link(self._link)

    async def _open_link(self) -> tuple[_Link, Client]:
        """Return the open connection, or open one. Raises McpUnreachableError."""
        if self._link is not None and self._link.end.is_set():
            await self._close_link(self._link)
        if self._link is None:
            self._check_pause()
            self._link = _Link(asyncio.get_running_loop().create_future(), asyncio.Event(), self._login)
            self._link.owner = asyncio.create_task(self._run_link(self._link))
        link = self._link
        try:
            return link, await asyncio.shield(link.ready)
        except asyncio.CancelledError:
            if not link.ready.cancelled():
                raise
            raise McpUnreachableError(self._format_failure("was not ready when it was given up")) from None

    async def _close_link(self, link: _Link) -> None:
        link.end.set()
        if link.owner is not None:
            if not link.ready.done():
                link.owner.cancel()  # it may wait for the server forever
            await asyncio.wait([link.owner], timeout=CLOSE_TIMEOUT)
            if not link.owner.done():
                link.owner.cancel()
                await asyncio.wait([link.owner], timeout=CLOSE_TIMEOUT)
        if self._link is link:  # no other task has opened another one
            self._link = None

    def _check_pause(self) -> None:
        """Raise Unreachable during the pause after repeated failures."""
        pause = PAUSES.seconds(self._failures - 1)
        if (remaining := self._failed_at + pause - monotonic()) > 0:
            raise McpUnreachableError(f"{self._reason} (it is tried again in {remaining:.1f} s)")

    async def _run_link(self, link: _Link) -> None:
        """Hold all contexts of the connection until it ends."""
        started_at = monotonic()
        self._reason, self._last_line = "", ""
        limit = self.server.start_timeout
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(limit):
                    transport = await self._open_transport(stack, link.end.set)
                    client = Client(
                        transport,
                        read_timeout_seconds=limit,
                        message_handler=self._on_message,
                        elicitation_callback=partial(self._on_elicitation, link),
                        extensions=[TasksExtension()],
                        cache=None,
                    )
                    await stack.enter_async_context(client)
                    # The SDK's check of answers by the server's schema takes as long as the server wants.
                    client.session.validate_tool_result = _accept_any_result  # type: ignore[method-assign]
                    await self._refresh_tools(client)
                link.ready.set_result(client)
                await link.end.wait()
        except TimeoutError:
            self._fail_link(link, f"it did not get ready within {limit:g} s")
        except Exception as error:  # noqa: BLE001 - any error of the SDK makes the server unusable
            self._fail_link(link, _summarize_error(error))
        finally:
            link.end.set()
            link.ready.cancel()  # no effect if it is done
            if link.has_served or monotonic() - started_at >= STEADY_SECONDS:
                self._failures = 0
            else:
                self._failures, self._failed_at = self._failures + 1, monotonic()
                self._reason = self._reason or self._format_failure("ended before it was of any use")

    def _fail_link(self, link: _Link, reason: str) -> None:
        if link.ready.done():
            _log.info("mcp server %s: the connection ended: %s", self.server.name, self._redact(reason))
            return
        self._reason = self._format_failure(f"cannot be reached: {reason}")
        link.ready.set_exception(McpUnreachableError(self._reason))
        link.ready.exception()  # marks it as retrieved if no caller is left

    async def _open_transport(self, stack: AsyncExitStack, on_end: Callable[[], None]) -> Transport:
        """Open the transport. Raises any error of the start."""
        server = self.server
        if server.missing:
            raise ValueError(server.missing)
        if isinstance(server, StdioServer):
            program = await asyncio.to_thread(program_of, server)
            if self._program not in (None, program):
                raise ValueError(_changed_program(server.name, program, self._program))
            return running_server(replace(server, command=program.path), on_end, self._record_line)
        auth = StoredAuth(self.keeper) if self.keeper else None
        http = await stack.enter_async_context(http_client(server, server.start_timeout, self._record_line, auth))
        return streamable_http_client(server.url, http_client=http, max_sse_event_size=MAX_MESSAGE_LINE)

    async def _on_message(self, message: ServerNotification | Exception | Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._is_stale = True

    def _record_line(self, line: str) -> None:
        self._last_line = line

    def _format_failure(self, text: str) -> str:
        ending = f"; its last words: {self._last_line}" if self._last_line else ""
        return render_visible_line(self._redact(f"MCP server {self.server.name} {text}{ending}"))[:1000]

    async def _refresh_tools(self, client: Client) -> None:
        """List all tools, and sort out those that models do not accept."""
        async with self._listing:
            self._is_stale = False  # first, so that a change during the listing sets it again
            try:
                self._tools, self._refused, self._outputs = await list_offerable_tools(client, self.server.name)
            except BaseException:
                self._is_stale = True
                raise


async def _accept_any_result(name: str, result: CallToolResult) -> None:
    """Accept the result; `perdure.features.mcp.activities.tool` checks it."""


def _changed_program(name: str, now: PinnedProgram, accepted: PinnedProgram | None) -> str:
    what = "other arguments" if accepted is None or accepted.path == now.path else f"{now.path}, not {accepted.path}"
    return (
        f"it would be started with {what}, which nobody has accepted; see .mcp.json, then perdure tools --accept {name}"
    )


def _summarize_error(error: BaseException) -> str:
    """Return one line on an error, of a group's first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ValidationError):
        return format_validation_error(error)[:300]
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"there is no {error.filename!r} here"
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__

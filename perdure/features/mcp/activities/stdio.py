"""MCP servers that run as programs: start, end, and messages as lines.

The SDK's own transport has no bound on a line and passes our stderr to the server. Here lines are bounded, noise is
read slowly and dropped, and the server's stderr is logged.
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Self

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter

from perdure.features.mcp.activities.config import StdioServer

MAX_MESSAGE_LINE = 64 * 1024 * 1024  # bytes of a message, also of an answer over HTTP
CHUNK = 64 * 1024  # bytes read at once; the pipe holds back the rest
MAX_REQUESTS = 64  # unanswered requests of the server to us; more are dropped
NOISE_PAUSE = 0.01  # seconds of pause after `NOISE` useless messages, so at most 10,000 a second are read
NOISE = 100
MAX_LOGGED_LINES = 100  # lines of stderr a minute
MAX_LOG_LINE = 500  # characters
EXIT_GRACE = 2.0  # seconds for a server to end once its stdin is closed, and again after SIGTERM

USEFUL_NOTIFICATIONS = ("notifications/tools/list_changed", "notifications/cancelled")

_log = logging.getLogger(__name__)


class StdioProcess:
    """A started server, and both streams of its transport."""

    def __init__(
        self, name: str, stdout: asyncio.StreamReader, stdin: asyncio.StreamWriter, on_end: Callable[[], None]
    ) -> None:
        self._name = name
        self._stdout = stdout
        self._stdin = stdin
        self._on_end = on_end
        self._writing = asyncio.Lock()
        self._pending = bytearray()  # read, but no complete line yet
        self._searched = 0  # bytes of it without a line end
        self._noise = 0
        self._asked = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> SessionMessage | Exception:
        """Return the next useful message. Raises EndOfStream."""
        while True:
            line = await self._read_line()
            if line is None:
                self._on_end()
                raise anyio.EndOfStream
            if (message := self._parse_useful(line)) is not None:
                return message
            self._noise += 1
            if self._noise % NOISE == 0:
                await asyncio.sleep(NOISE_PAUSE)

    async def _read_line(self) -> bytes | None:
        """Return the next line, unless the stream ends or the line is too long."""
        while (end := self._pending.find(b"\n", self._searched)) < 0:
            self._searched = len(self._pending)
            if self._searched > MAX_MESSAGE_LINE:
                _log.warning(
                    "mcp server %s: stopped after a line of more than %s bytes", self._name, f"{MAX_MESSAGE_LINE:,}"
                )
                return None
            try:
                chunk = await self._stdout.read(CHUNK)
            except ConnectionError:
                return None
            if not chunk:
                return None
            self._pending += chunk
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        self._searched = 0
        return line

    def _parse_useful(self, line: bytes) -> SessionMessage | None:
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except (ValueError, RecursionError):
            if self._noise < NOISE and line.strip():
                text = line[:MAX_LOG_LINE].decode(errors="replace").strip()
                _log.warning("mcp server %s: not a message: %s", self._name, text)
            return None
        if isinstance(message, JSONRPCNotification) and message.method not in USEFUL_NOTIFICATIONS:
            return None
        if isinstance(message, JSONRPCRequest):
            if self._asked >= MAX_REQUESTS:
                return None
            self._asked += 1
        return SessionMessage(message)

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message. Raises BrokenResourceError if the server has ended."""
        if isinstance(item.message, JSONRPCResponse | JSONRPCError):
            self._asked = max(self._asked - 1, 0)
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        async with self._writing:
            try:
                self._stdin.write(line)
                await self._stdin.drain()
            except (ConnectionError, RuntimeError) as error:  # RuntimeError: the pipe is closed on our side
                raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        """Do nothing: `started` ends the process."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


@asynccontextmanager
async def running_server(
    server: StdioServer, on_end: Callable[[], None], on_said: Callable[[str], None]
) -> AsyncIterator[tuple[StdioProcess, StdioProcess]]:
    """Run a server for the duration of the block, and yield its transport. `on_said` gets each line of its stderr.

    Raises OSError and ValueError if the server cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        server.command,
        *server.args,
        env={**get_default_environment(), **server.env},
        cwd=server.cwd,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=CHUNK,
        start_new_session=True,  # Ctrl-C at the terminal reaches the worker only, which then ends the server
    )
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    if stdin is None or stdout is None or stderr is None:
        raise AssertionError("the process was started with pipes")
    listening = asyncio.create_task(_log_stderr(server.name, stderr, on_said))
    try:
        both = StdioProcess(server.name, stdout, stdin, on_end)
        yield both, both
    finally:
        # Run to the end even if cancelled, so that no server is left behind.
        ending = asyncio.create_task(
            _end_process(process, stdin, [listening, asyncio.create_task(_drain_stdout(stdout))])
        )
        with suppress(asyncio.CancelledError):
            await asyncio.shield(ending)
        await asyncio.wait([ending])


async def _log_stderr(name: str, stderr: asyncio.StreamReader, on_said: Callable[[str], None]) -> None:
    """Log stderr in pieces of bounded length until it is closed."""
    logged, since = 0, monotonic()
    while data := await stderr.read(4096):
        if monotonic() - since > 60:
            logged, since = 0, monotonic()
        for line in filter(None, (line.strip() for line in data.decode(errors="replace").splitlines())):
            on_said(line[:MAX_LOG_LINE])
            logged += 1
            if logged <= MAX_LOGGED_LINES:
                _log.info("mcp server %s: %s", name, line[:MAX_LOG_LINE])
            elif logged == MAX_LOGGED_LINES + 1:
                _log.info("mcp server %s: (further lines of this minute are omitted)", name)
        await asyncio.sleep(0)


async def _drain_stdout(stdout: asyncio.StreamReader) -> None:
    """Read stdout to its end: a server that blocks on writing does not notice that its stdin was closed."""
    while await stdout.read(CHUNK):
        pass


async def _end_process(
    process: asyncio.subprocess.Process, stdin: asyncio.StreamWriter, reading: list[asyncio.Task[None]]
) -> None:
    """Close stdin, as MCP requires; then send SIGTERM and SIGKILL to the process group."""
    stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if await _has_ended(process):
            break
        _signal_group(process, number)
    else:
        await _has_ended(process)
    _signal_group(process, signal.SIGKILL)  # remaining children
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    # If a child holds a pipe open, the transport would stay open, and warn when it is collected.
    process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - nothing public closes it


async def _has_ended(process: asyncio.subprocess.Process) -> bool:
    """Wait up to `GRACE` for the exit. `Process.wait` would also wait for pipes that a child holds."""
    deadline = monotonic() + EXIT_GRACE
    while process.returncode is None and monotonic() < deadline:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.01)
    return process.returncode is not None


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)

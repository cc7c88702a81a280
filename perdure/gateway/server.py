"""The gateway's HTTP server."""

import asyncio
import contextlib
import os
import re
import resource
import socket
from collections.abc import Generator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from perdure.client.errors import TemporalUnavailableError
from perdure.gateway.app import make_app
from perdure.gateway.auth import Gateway

_BARE = re.compile(rb"(?<!\r)\n")
BARE_LINE_FEED = "Each line of the head of a request ends in CR LF."
MAX_HEAD = 16 * 1024  # bytes, as uvicorn has it
HEAD_PATIENCE = 20.0  # seconds to receive the head of a request
GRACE = 10  # seconds for active requests at shutdown
BACKLOG = 512
MAX_CONNECTIONS = 800  # each takes a descriptor, and a process may have 1,024 of them


def max_connections() -> int:
    """Return the limit on open connections: at most three quarters of the descriptors, the rest is for other uses."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, soft * 3 // 4)


class _StrictHeads(h11.Connection):
    """Refuses a head with a line that ends in LF alone: a proxy before this server may see no end there."""

    @property
    def has_bare_line_feed(self) -> bool:
        head = self.trailing_data[0].partition(b"\r\n\r\n")[0] if self.their_state is h11.IDLE else b""
        return _BARE.search(head) is not None

    def next_event(self) -> Any:
        if self.has_bare_line_feed:
            raise h11.RemoteProtocolError(BARE_LINE_FEED)
        return super().next_event()


class _Connection(H11Protocol):
    """A connection that is closed if the client sends no request.

    If too many are open, the one that has waited longest for a request is closed.
    """

    late: asyncio.TimerHandle | None = None

    def __init__(self, config: uvicorn.Config, *args: Any, **options: Any) -> None:
        super().__init__(config, *args, **options)
        self.conn = self._heads = _StrictHeads(h11.SERVER, config.h11_max_incomplete_event_size or MAX_HEAD)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.late = self.loop.call_later(HEAD_PATIENCE, transport.abort)
        if len(self.connections) > max_connections():
            self._make_room()

    def _make_room(self) -> None:
        """Close an idle connection, if need be this one; active requests continue."""
        waiting = {c: c.late for c in self.connections if isinstance(c, _Connection) and c.late is not None}
        oldest = min(waiting, key=lambda connection: waiting[connection].when())
        self.connections.discard(oldest)  # connection_lost runs in the next loop iteration
        oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        asks = not getattr(self.cycle, "response_complete", True)  # there is no cycle before the first request
        if asks and self.late is not None:
            self.late.cancel()
            self.late = None
        elif not asks and self.late is None:
            self.late = self.loop.call_later(HEAD_PATIENCE, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(BARE_LINE_FEED if self._heads.has_bare_line_feed else msg)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.late is not None:
            self.late.cancel()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to the command."""
        yield


def open_listener(host: str, port: int) -> socket.socket:
    """Open the listening socket. Raises TemporalUnavailableError if the address is in use or not local."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise TemporalUnavailableError(
            f"the gateway cannot listen on {host} port {port} ({reason}): use another --port"
        ) from None
    # asyncio sets it only for sockets of its own making, and without it an answer in two parts waits 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


async def serve_gateway(gateway: Gateway, listener: socket.socket) -> None:
    """Serve until `gateway.stopping` is set; then end open streams and answer active requests."""
    config = uvicorn.Config(
        make_app(gateway),
        http=_Connection,
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,  # an address may hold a secret
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE,
    )
    server = _Server(config)

    def close_connections(client: Any) -> None:
        for connection in list(server.server_state.connections):
            if isinstance(connection, _Connection) and connection.client == tuple(client):
                connection.transport.abort()

    gateway.drop = close_connections
    serving = asyncio.create_task(server.serve([listener]))
    stopping = asyncio.create_task(gateway.stopping.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    server.should_exit = True
    await serving

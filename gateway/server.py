"""The process that serves the gateway, until it is told to stop."""

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import Generator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.app import make_app
from gateway.auth import Gateway
from perdure.client.errors import NotReachable

HEAD_PATIENCE = 20.0  # seconds in which the head of a request has to come
GRACE = 10  # seconds in which what runs at the end may end
BACKLOG = 512
MAX_CONNECTIONS = 800  # each takes a descriptor, and a process may have 1,024 of them


def max_connections() -> int:
    """Return how many may be open, three quarters of the descriptors at most: Temporal and files need some too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, soft * 3 // 4)


class _Connection(H11Protocol):
    """Cuts off a client that opens a connection and does not ask.

    If there are too many connections, the one that waited longest for a request ends.
    """

    late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.late = self.loop.call_later(HEAD_PATIENCE, transport.abort)
        if len(self.connections) > max_connections():
            self._make_room()

    def _make_room(self) -> None:
        """Ends an idle connection, this one if no other is: a request that runs is not cut off."""
        waiting = {c: c.late for c in self.connections if isinstance(c, _Connection) and c.late is not None}
        oldest = min(waiting, key=lambda connection: waiting[connection].when())
        self.connections.discard(oldest)  # its end is seen in the next round only
        oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        asks = not getattr(self.cycle, "response_complete", True)  # there is none before the first request
        if asks and self.late is not None:
            self.late.cancel()
            self.late = None
        elif not asks and self.late is None:
            self.late = self.loop.call_later(HEAD_PATIENCE, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.late is not None:
            self.late.cancel()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are the command's."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """Raises NotReachable where the address is taken, or is not ours."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise NotReachable(f"the gateway cannot listen at {host} port {port} ({why}): take another --port") from None


async def serve(gateway: Gateway, listener: socket.socket) -> None:
    """Until `gateway.stopping` is set; then open streams end, and requests are answered."""
    config = uvicorn.Config(
        make_app(gateway),
        http=_Connection,
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,  # an address may hold what is nobody's business
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE,
    )
    server = _Server(config)

    def drop(client: Any) -> None:
        for each in list(server.server_state.connections):
            if isinstance(each, _Connection) and each.client == tuple(client):
                each.transport.abort()

    gateway.drop = drop
    serving = asyncio.create_task(server.serve([listener]))
    stopping = asyncio.create_task(gateway.stopping.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    server.should_exit = True
    await serving

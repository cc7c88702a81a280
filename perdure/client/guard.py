"""A guard against another server at the address of the one that a client met first, on this machine.

Projects share ports: where one's server has ended, another's may begin, and Temporal's SDK reconnects without a word.
An idle connection beside the SDK's is the proof: while it is silent, the server that accepted it holds the port. Once
it is not, the id of the namespace tells whether the same server is back. Nothing is taken from another one, nor sent
to it.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from weakref import finalize

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, DescribeNamespaceResponse
from temporalio.client import Client, ClientConfig, Interceptor, OutboundInterceptor
from temporalio.service import RPCError, RPCStatusCode

from perdure.client.errors import TemporalUnavailableError
from perdure.settings.environment import is_loopback

HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # HTTP/2's preface, and no settings
WELCOME = b"\x00\x00\x00\x04\x01\x00\x00\x00\x00"  # the server has read it, and says nothing more for a minute
HELLO_TIMEOUT = 2.0  # seconds
RETRY_PAUSE = 0.05  # seconds between attempts while no server answers: another one must be noticed before it has work
DESCRIBE_TIMEOUT = timedelta(seconds=3)
CONFIRM_TIMEOUT = 1.5  # seconds that a workflow's thread waits; after two, the SDK takes it for a deadlock
CONFIRM_MARGIN = 0.2  # seconds of it in which no further attempt begins
NOT_DESCRIBED = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.UNIMPLEMENTED)

_log = logging.getLogger(__name__)


class OtherServerError(TemporalUnavailableError):
    """Another server has taken the address."""


class ServerGuard(Interceptor):
    """Guards a client. Its workers have `perdure.process.guard`, which a client alone need not load."""

    def __init__(self, target: str, config: ClientConfig) -> None:
        self.target = target
        self.namespace: DescribeNamespaceResponse | None = None
        """The latest description of the namespace by the server."""
        self.report: Callable[[str], None] = _log.warning
        """Called with a line when the server is gone, and when it is back."""
        host, _, port = target.rpartition(":")
        self._place = (host.strip("[]"), int(port))
        self._name, self._service = config["namespace"], config["service_client"].workflow_service
        self._line: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._id = ""
        self._is_unsure = True
        self._is_other = False
        self._is_off = False  # what listens does not answer as a server does, or does not describe its namespace
        self._stirred = asyncio.Event()
        self._turn = asyncio.Lock()
        self._closing: Callable[[], object] = bool

    @property
    def is_sure(self) -> bool:
        """True while nothing suggests that the server is another one. It costs one system call."""
        if self._is_off:
            return True
        if self._line is None or self._is_unsure or self._is_other:
            return False
        try:
            self._line.recv(1)
        except BlockingIOError:
            return True
        except OSError:
            pass
        self._is_unsure = True  # it is closed, or is about to be, or asks whether this process is alive
        return False

    async def check(self) -> None:
        """Raises OtherServerError, or TemporalUnavailableError if no server answers."""
        if not self.is_sure:
            await self.ask_server(again=False)

    async def ask_server(self, *, again: bool = True) -> None:
        """Ask the server for its namespace, with `again` also if nothing suggests that it is another one.

        Raises as `check`.
        """
        async with self._turn:
            if not again and self.is_sure:
                return
            if not self._is_other:
                await self._compare_server()
            if self._is_other:
                raise OtherServerError(
                    f"another Temporal server answers at {self.target} than the one that this process began with; it "
                    "takes no work from it and sends none: start it again, with the server of its own project"
                )

    def confirm(self) -> None:
        """Check from a workflow's thread, and wait for a server that restarts. Raises as `check`."""
        if self.is_sure or self._loop is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._await_server(), self._loop).result(CONFIRM_TIMEOUT)
        except TimeoutError:
            raise TemporalUnavailableError(f"no Temporal server answers at {self.target} in time") from None

    async def _await_server(self) -> None:
        """Check until a server answers. A failure would be in the run's history, and nothing has failed in the run."""
        end = asyncio.get_running_loop().time() + CONFIRM_TIMEOUT - CONFIRM_MARGIN
        while True:
            try:
                return await self.check()
            except OtherServerError:
                raise
            except TemporalUnavailableError:
                if asyncio.get_running_loop().time() > end:
                    raise
            await asyncio.sleep(RETRY_PAUSE)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """End the block with OtherServerError as soon as another server answers."""
        task, other = asyncio.current_task(), list[OtherServerError]()

        async def watch() -> None:
            try:
                await self._watch()
            except OtherServerError as error:
                other.append(error)
                if task:
                    task.cancel()

        watcher = asyncio.create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            if other and task and task.uncancel() == 0:
                raise other[0] from None
            raise
        finally:
            watcher.cancel()
            await asyncio.wait({watcher})

    async def _watch(self) -> None:
        is_there = True
        while not self._is_off:
            self._stirred.clear()
            try:
                await self.check()
            except OtherServerError:
                raise
            except TemporalUnavailableError:
                if is_there:
                    self.report(f"the Temporal server at {self.target} is gone; waiting until it is back")
                is_there = False
                await asyncio.sleep(RETRY_PAUSE)
                continue
            if not is_there:
                self.report(f"the Temporal server at {self.target} is back")
            is_there = True
            await self._stirred.wait()

    async def _compare_server(self) -> None:
        """Compare the server with the first one. The connection is opened first: who answers then holds the port."""
        try:
            line = await self._open_line()
        except TemporalUnavailableError:
            if self._id:
                raise
            self._is_off = True  # the SDK has reached something that does not answer as a Temporal server does
            return
        found = await self._describe()
        self._is_other = bool(self._id) and found not in (self._id, "")
        self._id = self._id or found
        self._is_off = not found
        self._watch_line(line)

    async def _open_line(self) -> socket.socket:
        """Return a connection that the server has accepted. Raises TemporalUnavailableError."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT):
                return await _connect(*self._place)
        except OSError as error:
            raise TemporalUnavailableError(f"no Temporal server answers at {self.target}: {error}") from None

    async def _describe(self) -> str:
        """Return the id of the namespace, "" if the server does not give it. Raises TemporalUnavailableError."""
        request = DescribeNamespaceRequest(namespace=self._name)
        try:
            # Later `_watch` asks again soon; the SDK would wait ever longer, in which another server's work arrives.
            is_first = not self._id
            self.namespace = await self._service.describe_namespace(request, retry=is_first, timeout=DESCRIBE_TIMEOUT)
        except RPCError as error:
            if error.status in NOT_DESCRIBED or (error.status is RPCStatusCode.NOT_FOUND and not self._id):
                return ""
            if error.status is RPCStatusCode.NOT_FOUND:
                return "another"
            raise TemporalUnavailableError(f"no Temporal server answers at {self.target}: {error.message}") from None
        return self.namespace.namespace_info.id

    def _watch_line(self, line: socket.socket) -> None:
        old, self._line, self._is_unsure = self._line, line, False
        if old is not None and self._loop is not None:
            with suppress(RuntimeError):  # an earlier loop, which is closed
                self._loop.remove_reader(old)
            self._closing()

        def stir() -> None:
            loop.remove_reader(line)
            self._is_unsure = True
            self._stirred.set()

        self._loop = loop = asyncio.get_running_loop()
        loop.add_reader(line, stir)
        self._closing = finalize(self, line.close)

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the SDK's
        return _Outbound(next, self)


async def _connect(host: str, port: int) -> socket.socket:
    """Return a connection on which the server has answered and is silent. Raises OSError."""
    loop = asyncio.get_running_loop()
    [(family, kind, protocol, _, address), *_] = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    line = socket.socket(family, kind, protocol)
    try:
        line.setblocking(False)
        await loop.sock_connect(line, address)
        await loop.sock_sendall(line, HELLO)
        said = b""
        while not said.endswith(WELCOME):
            said += await _receive(line)
    except BaseException:
        line.close()
        raise
    return line


async def _receive(line: socket.socket) -> bytes:
    """Return the next bytes. Raises OSError at the end."""
    if said := await asyncio.get_running_loop().sock_recv(line, 4096):
        return said
    raise ConnectionError("the connection was closed")


def _checked(name: str) -> Any:
    async def call(self: "_Outbound", input: Any) -> Any:  # noqa: A002 - the SDK's
        if not self.guard.is_sure:
            await self.guard.check()
        return await getattr(self.next, name)(input)

    return call


class _Outbound(OutboundInterceptor):
    """Everything that writes, or asks a worker."""

    def __init__(self, next: OutboundInterceptor, guard: ServerGuard) -> None:  # noqa: A002 - the SDK's
        super().__init__(next)
        self.guard = guard

    start_workflow = _checked("start_workflow")
    start_update_with_start_workflow = _checked("start_update_with_start_workflow")
    start_workflow_update = _checked("start_workflow_update")
    signal_workflow = _checked("signal_workflow")
    query_workflow = _checked("query_workflow")
    cancel_workflow = _checked("cancel_workflow")
    terminate_workflow = _checked("terminate_workflow")
    create_schedule = _checked("create_schedule")
    update_schedule = _checked("update_schedule")
    delete_schedule = _checked("delete_schedule")
    pause_schedule = _checked("pause_schedule")
    unpause_schedule = _checked("unpause_schedule")
    trigger_schedule = _checked("trigger_schedule")


def with_guard(config: ClientConfig) -> ClientConfig:
    """Return the client's configuration with a guard, if its server is on this machine and speaks without TLS."""
    service = config["service_client"].config
    is_guarded = any(isinstance(interceptor, ServerGuard) for interceptor in config["interceptors"])
    if is_guarded or service.tls or not is_loopback(service.target_host.rpartition(":")[0].strip("[]")):
        return config
    guard = ServerGuard(service.target_host, config)
    return {**config, "interceptors": [guard, *config["interceptors"]]}


def guard_of(client: Client) -> ServerGuard | None:
    """Return the guard of a client, if it has one."""
    interceptors = client.config(active_config=True)["interceptors"]
    return next((guard for guard in interceptors if isinstance(guard, ServerGuard)), None)


@asynccontextmanager
async def watching_server(client: Client) -> AsyncIterator[None]:
    """End the block with OtherServerError as soon as another server answers at the client's address."""
    guard = guard_of(client)
    if guard is None:
        yield
        return
    async with guard.watching():
        yield

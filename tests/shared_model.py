"""Scripted models behind one listener. A server of their own would take 0.2 s each to stop."""

import atexit
import socket
import threading
from functools import cache, partial
from types import TracebackType
from typing import Self
from uuid import uuid4

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from perdure.testkit import model_server
from perdure.testkit.model_server import ScriptedModel


class SharedModel(ScriptedModel):
    """A `ScriptedModel` of its own script and requests, at a path of this process's listener."""

    def __enter__(self) -> Self:
        wires = {"/v1/messages": model_server.MESSAGES, "/v1/chat/completions": model_server.CHAT}
        routes = [Route(path, partial(self._handle, wire), methods=["POST"]) for path, wire in wires.items()]
        self._path = f"/{uuid4().hex[:8]}"
        host = _serve_host()
        host.apps[self._path] = Starlette(routes=[*routes, *self.batches.build_routes(self._build_result)])
        self.base_url = f"{host.url}{self._path}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        del _serve_host().apps[self._path]


class _Host:
    """Passes a request on to the app of the first part of its path."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.apps: dict[str, Starlette] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = "/" + scope["path"].split("/")[1]
        app = self.apps.get(path) or PlainTextResponse("this model has gone", 404)
        await app({**scope, "root_path": path}, receive, send)


@cache
def _serve_host() -> _Host:
    """Start the listener; it stops with the process."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as `ScriptedModel` does
    host = _Host(f"http://127.0.0.1:{listener.getsockname()[1]}")
    config = uvicorn.Config(host, loop="asyncio", ws="none", lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="scripted-models", daemon=True)
    thread.start()

    def stop() -> None:
        server.should_exit = server.force_exit = True
        thread.join(5)
        listener.close()

    atexit.register(stop)
    return host

"""A gRPC proxy in front of the server: it denies calls, or wants an API key, as Temporal Cloud does."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc.aio

RESERVED = ("user-agent", "grpc-", "te", "content-type")  # headers that gRPC sets by itself


class Proxy(grpc.GenericRpcHandler):
    """Calls are counted by name. `denied` has the status for each name of a call that is not passed on."""

    def __init__(self, channel: Any) -> None:
        self.address = ""
        self.calls: Counter[str] = Counter()
        self.denied: dict[str, grpc.StatusCode] = {}
        self.key: str | None = None
        self._channel = channel

    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(partial(self._pass_on, handler_call_details.method))

    async def _pass_on(self, method: str, request: bytes, context: Any) -> bytes:
        name = method.rpartition("/")[2]
        metadata = context.invocation_metadata()
        self.calls[name] += 1
        if self.key is not None and dict(metadata).get("authorization") != f"Bearer {self.key}":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the API key is not valid")
        if name in self.denied:
            await context.abort(self.denied[name], "Request unauthorized.")
        own = [(key, value) for key, value in metadata if not key.startswith(RESERVED)]
        try:
            answer: bytes = await self._channel.unary_unary(method)(
                request, metadata=own, timeout=context.time_remaining()
            )
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details(), tuple(error.trailing_metadata()))
        return answer


@asynccontextmanager
async def proxied(target: str) -> AsyncIterator[Proxy]:
    """A proxy in front of the server at `target`, with an address of its own."""
    async with grpc.aio.insecure_channel(target) as channel:
        proxy, server = Proxy(channel), grpc.aio.server()
        server.add_generic_rpc_handlers((proxy,))
        proxy.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            yield proxy
        finally:
            await server.stop(None)

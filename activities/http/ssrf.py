"""A transport that connects to public addresses only. The checked address is the one it connects to.

So DNS rebinding has no effect, and TLS and `Host` still use the name.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from ipaddress import ip_address
from typing import Any

import httpcore
import httpx

from activities.http.addresses import METADATA_NAMES, Address, is_metadata, is_own, is_public, parse_literal

Resolver = Callable[[str, int], Awaitable[list[str]]]


class BlockedAddressError(Exception):
    """The host must not be reached. The message is one line, fit for the model."""


async def resolve_host(host: str, port: int) -> list[str]:
    """Resolve a name with this machine's resolver. Raises OSError."""
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in entries]


class GuardedTransport(httpx.AsyncBaseTransport):
    """A transport for one fetch, without proxies. Raises `BlockedAddressError` and the exceptions of httpcore."""

    def __init__(self, tls: ssl.SSLContext, allow_hosts: frozenset[str], resolver: Resolver) -> None:
        backend = _GuardedBackend(allow_hosts, resolver)
        self._pool = httpcore.AsyncConnectionPool(ssl_context=tls, network_backend=backend)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._pool.handle_async_request(
            httpcore.Request(
                method=request.method,
                url=httpcore.URL(
                    scheme=request.url.raw_scheme,
                    host=request.url.raw_host,
                    port=request.url.port,
                    target=request.url.raw_path,
                ),
                headers=request.headers.raw,
                extensions=request.extensions,
            )
        )
        return httpx.Response(response.status, headers=response.headers, stream=_Body(response))

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._response.aiter_stream():
            yield chunk

    async def aclose(self) -> None:
        await self._response.aclose()


class _GuardedBackend(httpcore.AsyncNetworkBackend):
    def __init__(self, allow_hosts: frozenset[str], resolver: Resolver) -> None:
        self._allow_hosts = allow_hosts
        self._resolver = resolver
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self._allowed_addresses(host, port)
        failure: httpcore.ConnectError | httpcore.ConnectTimeout | None = None
        for address in addresses:
            # An address that drops packets must leave time for the next one.
            patience = timeout / len(addresses) if timeout else None
            try:
                return await self._network.connect_tcp(str(address), port, patience, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure or httpcore.ConnectError(f"{host} has no address")

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)

    async def _allowed_addresses(self, host: str, port: int) -> list[Address]:
        """Return the addresses of the host. Raises BlockedAddressError if any of them is not allowed."""
        name = host.lower().rstrip(".")
        allowed = not self._allow_hosts.isdisjoint(host_spellings(name, port))
        if name in METADATA_NAMES:
            raise BlockedAddressError("metadata services are never fetched")
        addresses = await self._resolve_addresses(name, port)
        for address in addresses:
            if is_metadata(address):
                raise BlockedAddressError("metadata services are never fetched")
            if not allowed and (not is_public(address) or is_own(address)):
                raise BlockedAddressError(f"{host} is at {address}, which is not a public address")
        return addresses

    async def _resolve_addresses(self, name: str, port: int) -> list[Address]:
        if address := parse_literal(name):
            return [address]
        try:
            return list(dict.fromkeys(map(ip_address, await self._resolver(name, port))))
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "not a name"
            raise httpcore.ConnectError(f"{name} does not resolve ({reason})") from None


def host_spellings(name: str, port: int) -> set[str]:
    """Return the allow-list entries that match a host. `name` is in lower case, without a trailing dot."""
    bare = f"[{name}]" if ":" in name else name
    return {name, bare, f"{bare}:{port}"}

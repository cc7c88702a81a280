"""HTTP to untrusted servers: URLs, addresses that may be reached, bodies, delays."""

import asyncio
import socket
import ssl
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from math import isfinite
from typing import Any

import httpcore
import httpx

from perdure.contracts.bounds import MAX_RETRY_AFTER

Address = IPv4Address | IPv6Address

# The clouds' instance metadata services, which return the machine's keys.
METADATA_NAMES = frozenset({"metadata.google.internal", "metadata.goog"})
METADATA_ADDRESSES = frozenset(
    ip_address(text)
    for text in (
        "100.100.100.200",
        "168.63.129.16",
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd20:ce::254",
    )
)

# IANA's registries of special-purpose addresses, and multicast: no page is there, and some of them are used within
# networks. `is_global` leaves out some, which differ between Python's releases.
_NOT_PUBLIC = [
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "2001::/23",
        "2001:db8::/32",
        "2620:4f:8000::/48",
        "2d00::/8",  # unassigned from here on; documentation is at 3fff::/20
        "2e00::/7",
        "3000::/4",
    )
]
_GLOBAL_UNICAST = ip_network("2000::/3")
_EMBEDS_IPV4 = [ip_network("64:ff9b::/96"), ip_network("::/96")]  # NAT64, and the old "compatible" form


def parse_literal(host: str) -> Address | None:
    """Parse an address, including `inet_aton` forms (127.1, 0x7f000001), unless `host` is a name."""
    try:
        return ip_address(host)
    except ValueError:
        pass
    if not host.isascii() or not host[:1].isdigit():
        return None
    try:
        return IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def is_metadata(address: Address) -> bool:
    """Return True for a metadata service, which stays blocked even for an allowed host."""
    return _unwrap_ipv4(address) in METADATA_ADDRESSES or address in METADATA_ADDRESSES


def is_public(address: Address) -> bool:
    """Return True if the address is the same host for everyone on the internet."""
    inner = _unwrap_ipv4(address)
    if not inner.is_global or inner.is_multicast or any(inner in network for network in _NOT_PUBLIC):
        return False
    return inner.version == 4 or inner in _GLOBAL_UNICAST


def is_own(address: Address) -> bool:
    """Return True if this machine has the address. Nothing is sent."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
        except (OSError, ValueError):
            return False
        # A machine connects to itself from the same address.
        return ip_address(str(probe.getsockname()[0]).partition("%")[0]) == address


def _unwrap_ipv4(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address carries and the network would use, else the address."""
    if isinstance(address, IPv4Address):
        return address
    if inner := address.ipv4_mapped or address.sixtofour:
        return inner
    if any(address in network for network in _EMBEDS_IPV4):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


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
                content=request.content,
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


IDENTITY = {"accept-encoding": "identity"}
PIECE_BYTES = 64 * 1024  # unpacked at once
_COMPRESSED = frozenset({"gzip", "x-gzip", "deflate"})


class BodyEncodingError(Exception):
    """The body's encoding is not accepted, or its data is corrupt. The message is one line."""


async def decode_pieces(encoding: str, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the decoded body; of a compressed one, at most `PIECE_BYTES` at once. Raises BodyEncodingError."""
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        async for chunk in chunks:
            yield chunk
        return
    if encoding not in _COMPRESSED:
        raise BodyEncodingError(f"the server sent an encoding we did not ask for: {encoding[:50]!a}")
    inflate = zlib.decompressobj(wbits=47)  # 47: gzip or zlib, by its first bytes
    try:
        async for chunk in chunks:
            rest, is_full = chunk, True
            while rest or is_full:
                piece = inflate.decompress(rest, PIECE_BYTES)
                rest, is_full = inflate.unconsumed_tail, len(piece) == PIECE_BYTES
                if piece:
                    yield piece
    except zlib.error:
        raise BodyEncodingError("the answer cannot be unpacked") from None
    if not inflate.eof:
        raise BodyEncodingError("the answer cannot be unpacked: its end is missing")


async def read_prefix(response: httpx.Response, limit: int) -> tuple[bytes, bool]:
    """Return the first `limit` bytes of the decoded body, and True if that is all of it. Raises BodyEncodingError."""
    body = bytearray()
    async for piece in decode_pieces(response.headers.get("content-encoding", ""), response.aiter_raw()):
        body += piece
        if len(body) > limit:
            return bytes(body[:limit]), False
    return bytes(body), True


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the delay in seconds, from 0 to `MAX_RETRY_AFTER`, if the header is valid."""
    delay = _parse_delay(headers.get("retry-after", ""))
    return min(max(delay, 0.0), MAX_RETRY_AFTER) if delay is not None and isfinite(delay) else None


def _parse_delay(value: str) -> float | None:
    with suppress(ValueError):
        return float(value)
    with suppress(ValueError, TypeError, OverflowError, IndexError):  # out of range, or not a date
        moment = parsedate_to_datetime(value)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return (moment - datetime.now(UTC)).total_seconds()
    return None


A_LABEL = "xn--"


def usable_url(text: str) -> httpx.URL:
    """Parse a URL and check each part. Raises ValueError with a one-line reason.

    httpx decodes the host on first use, and raises errors of another library if that fails (`xn--`).
    """
    try:
        url = httpx.URL(text)
        _ = url.host, url.netloc, url.port
        for label in url.raw_host.decode().lower().split("."):
            _check_label(label)
    except (httpx.InvalidURL, ValueError) as error:  # IDNAError is a UnicodeError, and so a ValueError
        raise ValueError(" ".join(str(error).split())[:200] or type(error).__name__) from None
    return url


def _check_label(label: str) -> None:
    """Raise ValueError if an A-label does not decode. Its letters are not checked."""
    if not label.startswith(A_LABEL):
        return
    try:
        decoded = label.removeprefix(A_LABEL).encode().decode("punycode")
    except UnicodeError:
        decoded = ""
    if not decoded or decoded.isascii():
        raise ValueError(f"the label {label[:64]!r} of the host does not decode")

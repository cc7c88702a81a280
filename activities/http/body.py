"""Response bodies, decoded under a limit: two kilobytes of layered gzip can unpack to gigabytes.

A client asks for `identity` and unpacks at most one layer of gzip or deflate, in small pieces. The HTTP libraries
unpack whole chunks, and as many layers as the header names.
"""

import zlib
from collections.abc import AsyncIterable, AsyncIterator

import httpx

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

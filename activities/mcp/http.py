"""The HTTP client of MCP servers at a URL: it bounds responses and reports error statuses, which the SDK does not."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx2

from activities.http.body import IDENTITY, BodyEncodingError, decode_pieces
from activities.mcp.config import HttpServer
from activities.mcp.stdio import MAX_MESSAGE_LINE


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


def http_client(server: HttpServer, connect: float, on_said: Callable[[str], None]) -> httpx2.AsyncClient:
    """Return the client. `connect` is in seconds; there is no read timeout, since calls have their own."""

    async def look(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            on_said(f"HTTP {response.status_code} {response.reason_phrase}".strip())

    return httpx2.AsyncClient(
        transport=_Bounded(trust_env=False),
        headers=dict(server.headers),
        timeout=httpx2.Timeout(connect, read=None),
        event_hooks={"response": [look]},
    )

"""The HTTP client behind a connection to an MCP server at a URL: bounded, and telling of what the SDK leaves out."""

from collections.abc import AsyncIterator, Callable

import httpx2

from activities.mcp_server import HttpServer
from activities.mcp_stdio import MOST_LINE


class _Bounded(httpx2.AsyncHTTPTransport):
    """An answer in one piece of JSON has a bound, as one in a stream has it by the SDK."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if "json" in response.headers.get("content-type", "") and isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Counted(response.stream)
        return response


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        async for chunk in self._stream:
            count += len(chunk)
            if count > MOST_LINE:
                raise httpx2.StreamError(f"the answer is larger than {MOST_LINE:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def http_client(server: HttpServer, connect: float, on_said: Callable[[str], None]) -> httpx2.AsyncClient:
    """`connect` is in seconds. Calls have a timeout of their own, so a silent stream is none."""

    async def look(response: httpx2.Response) -> None:
        if response.status_code >= 400:  # which the SDK does not tell
            on_said(f"HTTP {response.status_code} {response.reason_phrase}".strip())

    return httpx2.AsyncClient(
        transport=_Bounded(trust_env=False),
        headers=dict(server.headers),
        timeout=httpx2.Timeout(connect, read=None),
        event_hooks={"response": [look]},
    )

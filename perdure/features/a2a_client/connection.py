"""Requests to an agent elsewhere, over HTTP, by the SDK of A2A."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import httpx
from a2a.client import Client, ClientConfig, create_client
from a2a.client.errors import A2AClientError
from a2a.types import AgentCard, Message, SendMessageRequest, Task
from google.protobuf.json_format import ParseError

from perdure.activities.http import IDENTITY, BodyEncodingError, decode_pieces
from perdure.activities.tools.outside import TRANSIENT_STATUSES
from perdure.contracts.tool import MAX_RESULT_BYTES
from perdure.decisions.text.formatting import truncate

CARD_PATH = "/.well-known/agent-card.json"
JSONRPC = "JSONRPC"  # the binding that requests use
MAX_BYTES = 2 * MAX_RESULT_BYTES  # of an answer, with files in base64

Reply = TypeVar("Reply")


class AgentUnreachableError(Exception):
    """The agent did not answer, for now. `is_unsent`: the request cannot have reached it."""

    def __init__(self, message: str, *, is_unsent: bool = False) -> None:
        super().__init__(message)
        self.is_unsent = is_unsent


class AgentRefusedError(Exception):
    """The agent, or its card, cannot be used as it is configured."""


@dataclass(frozen=True, eq=False)
class _Bounded(httpx.AsyncBaseTransport):
    """Sends requests by a shared client, without redirects, and ends answers that are too large."""

    shared: httpx.AsyncClient

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self.shared.send(request, stream=True, follow_redirects=False)
        headers = {name: value for name, value in response.headers.items() if name in ("content-type", "retry-after")}
        return httpx.Response(response.status_code, headers=headers, stream=_Body(response))


@dataclass(frozen=True, eq=False)
class _Body(httpx.AsyncByteStream):
    response: httpx.Response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, encoding = 0, self.response.headers.get("content-encoding", "")
        try:
            async for piece in decode_pieces(encoding, self.response.aiter_raw()):
                size += len(piece)
                if size > MAX_BYTES:
                    raise httpx.ReadError(f"the answer is larger than {MAX_BYTES:,} bytes")
                yield piece
        except BodyEncodingError as error:
            raise httpx.ReadError(str(error)) from None

    async def aclose(self) -> None:
        await self.response.aclose()


class AgentConnection:
    """An agent at a URL. Its card is read before the first request, and after one that failed."""

    def __init__(self, url: str, headers: Mapping[str, str], shared: httpx.AsyncClient, timeout: float) -> None:
        self._url = url.removesuffix(CARD_PATH).rstrip("/")
        self._http = httpx.AsyncClient(
            transport=_Bounded(shared), headers={**headers, **IDENTITY}, timeout=timeout, trust_env=False
        )
        self._timeout = timeout
        self._client: Client | None = None

    async def open(self) -> Client:
        """Return the client of the agent. Raises AgentUnreachableError, which is unsent, and AgentRefusedError."""
        if self._client is None:
            try:
                self._client = await self._attempt(self._connect)
            except AgentUnreachableError as error:
                raise AgentUnreachableError(str(error), is_unsent=True) from None
        return self._client

    async def _connect(self) -> Client:
        config = ClientConfig(
            streaming=False, polling=True, httpx_client=self._http, supported_protocol_bindings=[JSONRPC]
        )
        # The verifier is the SDK's hook between a card and its use.
        return await create_client(self._url, config, signature_verifier=self._check_card)

    def _check_card(self, card: AgentCard) -> None:
        """Raise AgentRefusedError if requests would go elsewhere, with the headers."""
        own = httpx.URL(self._url)
        for interface in card.supported_interfaces:
            if interface.protocol_binding != JSONRPC:
                continue
            other = httpx.URL(interface.url)
            if (other.scheme, other.host, other.port) != (own.scheme, own.host, own.port):
                reason = f"its card sends requests to {truncate(interface.url, 200)}, another host than {own.host}'s"
                raise AgentRefusedError(f"{reason}: name the agent there as the url")

    async def send(self, message: Message) -> Task | Message:
        """Send a message, and return the task or the reply at once. Raises as `request`."""
        request = SendMessageRequest(message=message)

        async def ask(client: Client) -> Task | Message:
            async for event in client.send_message(request):
                return event.task if event.HasField("task") else event.message
            raise AgentUnreachableError("it sent no reply")

        return await self.request(ask)

    async def request(self, ask: Callable[[Client], Awaitable[Reply]]) -> Reply:
        """Make one request. Raises AgentUnreachableError, AgentRefusedError, and A2AError of the agent's own."""
        client = await self.open()
        try:
            return await self._attempt(lambda: ask(client))
        except (AgentUnreachableError, AgentRefusedError):
            self._client = None  # the agent may have moved: its card is read again
            raise

    async def _attempt(self, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        try:
            async with asyncio.timeout(self._timeout):
                return await ask()
        except TimeoutError:
            raise AgentUnreachableError(f"it did not answer within {self._timeout:g} s") from None
        except A2AClientError as error:
            raise _of_transport(error, error.__cause__) from None
        except (httpx.HTTPError, ParseError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise _of_transport(error, error) from None  # the SDK reads an answer without checking it first


def _of_transport(error: Exception, cause: BaseException | None) -> Exception:
    """Return the error of a request that brought no answer of A2A."""
    if isinstance(cause, httpx.HTTPStatusError):
        status = cause.response.status_code
        if status in TRANSIENT_STATUSES or status >= 500:
            return AgentUnreachableError(f"it answered with {status}")
        hint = ": check headers_env" if status in (401, 403) else ": check the url" if status == 404 else ""
        return AgentRefusedError(f"it answered with {status}{hint}")
    reason = truncate(str(cause or error) or "the connection broke", 300)
    if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.UnsupportedProtocol):
        return AgentUnreachableError(f"it cannot be reached: {reason}", is_unsent=True)
    if isinstance(cause, httpx.HTTPError):
        return AgentUnreachableError(f"it cannot be reached: {reason}")
    return AgentRefusedError(f"its answer is none of A2A: {reason}")

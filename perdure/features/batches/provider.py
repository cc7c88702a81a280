"""The Message Batches API through the `anthropic` SDK. A create request has no idempotency key: see `find`.

The results are a line of JSON for each request. They are read line by line, within a bound, and parsed in a thread.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping
from itertools import count
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import anthropic
import httpx2
from anthropic import AsyncAnthropic, AsyncStream
from anthropic.types.messages import MessageBatch
from temporalio.exceptions import ApplicationError

from perdure.activities.providers.anthropic import MessagesModel
from perdure.activities.providers.errors import (
    WrongApiError,
    model_refused_error,
    model_unavailable_error,
    to_model_failure,
)
from perdure.activities.providers.port import Model, ModelReply
from perdure.activities.providers.replies.reply import ReplyBuilder, expecting_api
from perdure.contracts.failures import RunFailure

CLOCK_MARGIN = 60.0  # seconds by which the provider's clock may be behind Temporal's
PAGE = 100  # batches
RESULTS_PATH = "/v1/messages/batches/{}/results"
MAX_LINE_BYTES = 4 * 1024**2  # history holds a reply of 1 MiB
SHOWN_LINE = 80  # characters of a line that an error quotes
SHOWN_NAME = 1000  # bytes in which the name of a line is looked for that is too long to be parsed
_NAME = re.compile(rb'"custom_id"\s*:\s*"([\w-]{1,64})"')
T = TypeVar("T")


class BatchNotFoundError(ApplicationError):
    """The provider does not find a batch. For some minutes that may be so of one that it has."""

    def __init__(self, batch: str) -> None:
        super().__init__(f"the provider does not find the batch {batch} (404)", type=RunFailure.model_unavailable)


class BatchResult(NamedTuple):
    """The result of a request in a batch by its id. Without an id (""), it is the reason why a line is none."""

    entry: str
    result: ModelReply | ApplicationError


class MessageBatches:
    """The batches of a server that speaks the Messages API. The client's own retries are off.

    All methods raise ApplicationError as `Model.reply`.
    """

    def __init__(self, client: AsyncAnthropic) -> None:
        self._client = client

    async def create(self, requests: Mapping[str, dict[str, Any]], headers: Mapping[str, str]) -> str:
        """Send requests by their ids. Return the id of the batch."""
        parts: list[Any] = [{"custom_id": name, "params": params} for name, params in requests.items()]
        created = self._client.messages.batches.create(requests=parts, extra_headers=dict(headers))
        return (await self._await_reply(created)).id

    async def find(self, count: int, since: float, known: Collection[str]) -> str | None:
        """Return the oldest batch since a time that has so many requests, apart from those that are known.

        The list has no ids of requests: another program's batch may be found. Its results show it.
        """
        return await self._await_reply(self._find(count, since - CLOCK_MARGIN, known))

    async def _find(self, count: int, since: float, known: Collection[str]) -> str | None:
        found = None
        async for batch in self._client.messages.batches.list(limit=PAGE):  # the newest are first
            if batch.created_at.timestamp() < since:
                break
            if batch.id not in known and _count_requests(batch) == count:
                found = batch.id
        return found

    async def is_ended(self, batch: str) -> bool:
        """Return whether the results can be read. Raises BatchNotFoundError."""
        found = await self._await_reply(_seek(batch, self._client.messages.batches.retrieve(batch)))
        return found.processing_status == "ended"

    async def results(self, batch: str) -> AsyncIterator[BatchResult]:
        """Yield the results of the requests, in any order. Raises BatchNotFoundError.

        The address is the client's own: that in the batch may be of another host, which must not get the key.
        """
        path = RESULTS_PATH.format(quote(batch, safe=""))
        asked = self._client.get(path, cast_to=object, stream=True, stream_cls=AsyncStream[object])
        async with await self._await_reply(_seek(batch, asked)) as stream:
            lines = _bounded_lines(stream.response.aiter_bytes())
            for number in count(1):
                line = await self._await_reply(anext(lines, None))
                if line is None:
                    break
                if line.strip():
                    yield await asyncio.to_thread(_read_line, line, number)

    async def _await_reply(self, reply: Awaitable[T]) -> T:
        try:
            return await reply
        except (anthropic.AnthropicError, httpx2.HTTPError, ValueError) as error:
            raise to_model_failure(error, self._client.api_key) from None


def find_batches(endpoint: Model | None) -> MessageBatches | None:
    """Return the batches of an endpoint, if it has some."""
    client = endpoint.client if isinstance(endpoint, MessagesModel) else None
    return MessageBatches(client) if isinstance(client, AsyncAnthropic) else None


async def _seek(batch: str, reply: Awaitable[T]) -> T:
    """Return the reply. Raises BatchNotFoundError for a 404: the provider may not find a batch that it has."""
    try:
        return await reply
    except anthropic.NotFoundError:
        raise BatchNotFoundError(batch) from None


async def _bounded_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines, of each at most the first `MAX_LINE_BYTES` and one more."""
    line = bytearray()
    async for piece in pieces:
        first, *rest = piece.split(b"\n")
        line += first[: MAX_LINE_BYTES + 1 - len(line)]
        for start in rest:
            yield bytes(line)
            line = bytearray(start[: MAX_LINE_BYTES + 1])
    yield bytes(line)


def _read_line(line: bytes, number: int) -> BatchResult:
    if len(line) > MAX_LINE_BYTES:
        name = _NAME.search(line[:SHOWN_NAME])
        size = f"longer than {MAX_LINE_BYTES // 1024**2} MiB"
        return BatchResult(name[1].decode() if name else "", model_refused_error(f"the reply in the batch is {size}"))
    try:
        part = json.loads(line)
        return BatchResult(str(part["custom_id"]), _read_part(part["result"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        shown = line[:SHOWN_LINE].decode(errors="replace")
        return BatchResult("", model_unavailable_error(f"line {number} is no result of a request: {shown!r}"))


def _read_part(result: Mapping[str, Any]) -> ModelReply | ApplicationError:
    match result["type"]:
        case "succeeded":
            reply = ReplyBuilder(lambda _: None)
            try:
                with expecting_api("the Messages API", ()):
                    reply.add_message(result["message"])
                    return reply.build_reply()
            except WrongApiError as error:
                return to_model_failure(error)
            except ApplicationError as error:
                return error
        case "errored":
            return _to_part_failure(result["error"]["error"])
        case kind:
            return model_unavailable_error(f"the request {kind} in its batch")


def _to_part_failure(error: Mapping[str, Any]) -> ApplicationError:
    """Return the failure of one request in a batch as that of a live one: an error within a stream."""
    kind, message = str(error.get("type") or "error"), str(error.get("message") or "no reason given")
    response = httpx2.Response(200, request=httpx2.Request("GET", "https://batch.invalid"))
    body = {"type": "error", "error": {"type": kind, "message": message}}
    return to_model_failure(anthropic.APIStatusError(message, response=response, body=body))


def _count_requests(batch: MessageBatch) -> int:
    counts = batch.request_counts
    return counts.processing + counts.succeeded + counts.errored + counts.canceled + counts.expired

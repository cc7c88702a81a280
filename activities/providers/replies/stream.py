"""The events of a streamed reply, of every API: bounded, with its end, and with the errors that servers send within it.

The SDKs' own readers drop events without a name, and do not tell whether a stream had its end.
"""

import asyncio
import json
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from html import unescape
from typing import Any, Protocol, cast

import anthropic
import httpx2
from temporalio.exceptions import ApplicationError

from perdure.activities.providers.errors import WrongApiError, to_model_failure
from perdure.contracts.failures import RunFailure

# The longest replies of today have 128,000 tokens, each in an event of a few hundred bytes.
MAX_STREAM_BYTES = 64 * 1024 * 1024
MAX_EVENTS = 500_000
MAX_EVENT_BYTES = 4 * 1024 * 1024  # parsed at once, in the event loop
EVENTS_AT_ONCE = 50  # after so many, the event loop is free for others
DRAIN_SECONDS = 0.1  # for what follows the end, so that the connection can be used again
DONE = "[DONE]"  # the data of the last event, in the Chat Completions API
END = "message_stop"  # the type of the last event, in the Messages API
AWS_STREAM = "application/vnd.amazon.eventstream"  # which the SDK decodes

Json = dict[str, Any]


class Reader(Protocol):
    """A reply under construction. `size` is the number of its characters."""

    @property
    def size(self) -> int: ...

    def add_event(self, event: Json) -> None: ...


class ModelStream:
    """The events of a response, which an SDK has begun to read as `typed` ones.

    After the last event it `is_ended` if the server has said so, and `is_too_large` if its rest was not read.
    """

    def __init__(self, response: httpx2.Response, typed: Any) -> None:
        self.is_ended = False
        self.is_too_large = False
        self._response = response
        self._typed = typed
        self._total = 0  # bytes
        self._since_event = 0  # bytes

    async def feed(self, reply: Reader, limit: int) -> None:
        """Give the events to a reply, until it is larger than the limit.

        Raises anthropic.APIStatusError for an error within the stream, and WrongApiError.
        """
        is_aws = self._response.headers.get("content-type", "").startswith(AWS_STREAM)
        count = 0
        async with aclosing(self._read_typed() if is_aws else self._read_raw()) as events:
            async for event in events:
                count += 1
                self._since_event = 0
                reply.add_event(event)
                self.is_too_large = count == MAX_EVENTS or reply.size > limit
                self.is_ended = event.get("type") in (END, DONE)
                if self.is_too_large or self.is_ended:
                    break
                if count % EVENTS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            if self.is_ended:
                await _drain(events)

    async def aiter_bytes(self) -> AsyncGenerator[bytes]:
        """Yield the body, up to its bounds."""
        async with aclosing(self._response.aiter_bytes()) as chunks:
            async for chunk in chunks:
                self._total += len(chunk)
                self._since_event += len(chunk)
                if self._total > MAX_STREAM_BYTES or self._since_event > MAX_EVENT_BYTES:
                    self.is_too_large = True
                    return
                yield chunk

    async def _read_raw(self) -> AsyncGenerator[Json]:
        response = cast("httpx2.Response", self)  # only its bytes are read
        raw = cast("AsyncGenerator[Any]", anthropic.AsyncStream.raw_events(response))
        async with aclosing(raw) as events:
            async for event in events:
                if event.event == "ping" or not event.data.strip():
                    continue
                yield {"type": DONE} if event.data.startswith(DONE) else self._read_event(event.event, event.data)

    def _read_event(self, name: str | None, text: str) -> Json:
        """Return the data of an event, typed by its name unless it has a type."""
        if name == "error":
            data: Any = text
            with suppress(ValueError):
                data = json.loads(text)
            raise self._to_error(data)
        data = json.loads(text)
        if not isinstance(data, dict):
            raise WrongApiError(f"an event of its stream is of type {type(data).__name__}")
        if data.get("error") or data.get("type") == "error":
            raise self._to_error(data)
        return {"type": name, **data} if name else data

    def _to_error(self, data: Any) -> anthropic.APIStatusError:
        return anthropic.APIStatusError(str(data), response=self._response, body=data)

    async def _read_typed(self) -> AsyncGenerator[Json]:
        async for event in self._typed:
            yield event.model_dump(mode="json", warnings=False)


async def _drain(events: AsyncGenerator[Json]) -> None:
    with suppress(Exception):  # the reply is whole, whatever follows
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in events:
                pass


MAX_BODY_BYTES = 4 * 1024 * 1024  # of an answer that is no stream, and of an error's body
MAX_WORDS = 500  # characters of such an answer that an error quotes
_PASSING_KINDS = ("overloaded_error", "api_error", "timeout_error")
_WHOLE_TYPES = re.compile(r"application/([\w.-]+\+)?json|text/(html|plain|xml)|application/(xhtml\+)?xml")


def is_document(response: httpx2.Response) -> bool:
    """Return True if the content type is a document; any other type, or no type, means a stream."""
    return bool(_WHOLE_TYPES.match(_content_type(response)))


async def read_body(response: httpx2.Response, secret: str | None, expected: str) -> dict[str, Any]:
    """Return the body as a reply, which has the list `expected`.

    Raises ApplicationError of a `RunFailure` type, or `ContextTooLong`.
    """
    text = await _read_text(response)
    body = None
    with suppress(ValueError, RecursionError):
        body = json.loads(text)
    if isinstance(body, dict) and body.get("type") != "error" and isinstance(body.get(expected), list):
        return body
    error = anthropic.APIStatusError(_error_words(body, text), response=response, body=body)
    failure = to_model_failure(error, secret)
    if failure.type != RunFailure.model_unavailable or str(error.type or "").lower() in _PASSING_KINDS:
        raise failure
    words = failure.message.partition(": ")[2]
    message = f"the model's server answered 200 with {_content_type(response)} and no reply: {words}"
    raise ApplicationError(message, type=RunFailure.model_refused, non_retryable=True)


async def _read_text(response: httpx2.Response) -> str:
    body = b""
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            break
    return body[:MAX_BODY_BYTES].decode(errors="replace")


def _error_words(body: Any, text: str) -> str:
    """Return the error's message, the page's title, or the start of the body."""
    if isinstance(body, dict):
        error = body.get("error")
        words = error.get("message") if isinstance(error, dict) else error or body.get("message") or body.get("detail")
        if isinstance(words, str) and words.strip():
            return words[:MAX_WORDS]
    title = re.search(r"<title[^>]*>([^<]{1,200})", text, re.IGNORECASE)
    visible = title[1] if title else re.sub(r"<[^>]*>", " ", text[: 10 * MAX_WORDS])
    return " ".join(unescape(visible).split())[:MAX_WORDS] or "an empty body"


def _content_type(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


async def bound_body(response: httpx2.Response) -> None:
    """Bound error bodies to `MAX_BODY_BYTES`, and close what reads a body with it; a hook of the model's HTTP client.

    Raises httpx2.DecodingError if the body is compressed although `identity` was requested.
    """
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise httpx2.DecodingError(f"the body is compressed ({encoding[:40]}), which was not asked for")
    response.stream = _ResponseBody(response.stream, MAX_BODY_BYTES if response.is_error else sys.maxsize)


class _ResponseBody(httpx2.AsyncByteStream):
    """A body whose reader is closed with it.

    The library reads by nested generators. A stream that fails in the middle leaves them open, held by the error's
    traceback, until the event loop ends and closes all of them at once, which breaks those that close each other.
    """

    def __init__(self, stream: Any, limit: int) -> None:
        self._stream = stream
        self._pieces: AsyncGenerator[bytes] = aiter(stream)
        self._remaining = limit

    def __aiter__(self) -> "_ResponseBody":
        return self

    async def __anext__(self) -> bytes:
        if self._remaining <= 0:
            raise StopAsyncIteration
        piece = (await anext(self._pieces))[: self._remaining]
        self._remaining -= len(piece)
        return piece

    async def aclose(self) -> None:
        await self._pieces.aclose()
        await self._stream.aclose()

"""Answers of a model's server that are not an event stream.

Proxies, sign-in pages and servers that ignore `stream` answer 200 with a whole body. A message is used as the reply;
anything else is an error that quotes the body, final unless its kind is retryable.
"""

import json
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from html import unescape
from typing import Any

import anthropic
import httpx2
from temporalio.exceptions import ApplicationError

from activities.providers.errors import to_model_failure
from contracts.failures import RunFailure

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

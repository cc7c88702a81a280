"""A scripted server on loopback, of the Messages API and the Chat Completions API.

The reply depends on the request only, so a retry gets the same reply.
"""

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Literal, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from perdure.testkit.chat_completions import (
    build_completion,
    chat_error_body,
    encode_chunks,
    encode_data,
    read_chat_request,
)
from perdure.testkit.message_batches import ScriptedBatches
from perdure.testkit.rehearsal.sse import (
    TYPE_OF_STATUS,
    DemoReply,
    Json,
    build_message,
    digest_of,
    encode_event,
    error_body,
    request_error,
)
from perdure.testkit.rules import chat_rejection, messages_rejection
from perdure.testkit.ways import CHAT_OVERFLOW, MESSAGES_OVERFLOW, USUAL_WAYS, Ways, encode_messages


@dataclass(frozen=True)
class Reply(DemoReply):
    """A reply that is streamed over `seconds`, or comes after them if the request asks for no stream.

    If it `is_cut`, the stream ends after `message_start`: silently, or with an `error` event of type `error`.
    """

    seconds: float = 0
    is_cut: bool = False
    error: str | None = None


@dataclass(frozen=True)
class ErrorReply:
    """An HTTP error. With `then`, that follows after `times` requests for the same conversation."""

    status: int
    type: str
    message: str
    retry_after: float | None = None  # seconds
    times: int = 1
    then: "ScriptedAnswer | None" = None


@dataclass(frozen=True)
class Wire:
    """An API of the server. `read` returns a request in the Messages API's form; it raises ValueError."""

    read: Callable[[Json], Json]
    reject: Callable[[Json, Ways], str | None]
    build: Callable[[Json], Json]
    stream: Callable[[Json, Ways], Iterator[bytes]]
    error: Callable[[str, str], Json]
    encode: Callable[[Json], bytes]


def _reject_messages(body: Json, ways: Ways) -> str | None:
    return request_error(body) or messages_rejection(body) or ways.find_overflow(body, MESSAGES_OVERFLOW)


def _reject_chat(body: Json, ways: Ways) -> str | None:
    return chat_rejection(body, has_strict_order=ways.has_strict_order) or ways.find_overflow(body, CHAT_OVERFLOW)


MESSAGES = Wire(lambda body: body, _reject_messages, lambda message: message, encode_messages, error_body, encode_event)
CHAT = Wire(read_chat_request, _reject_chat, build_completion, encode_chunks, chat_error_body, encode_data)

WRONG_FIELD = "the body lacks a field, or has one of the wrong type"

ScriptedAnswer = Reply | ErrorReply
Script = Sequence[ScriptedAnswer] | Callable[[Json], ScriptedAnswer]


def says(text: str, *, stop_reason: str | None = None) -> Reply:
    """Return a reply with text only, which ends a run."""
    return Reply(text=text, stop_reason=stop_reason)


def calls(*uses: tuple[str, Json], text: str = "") -> Reply:
    """Return a reply with tool calls (name and input) after an optional text."""
    return Reply(text=text, calls=uses)


def broken_json(tool: str, raw: str = '{"path": "notes.md", "content": "cut off in mid', *, text: str = "") -> Reply:
    """Return a tool call with invalid JSON arguments. (Some parsers read the default as an empty object.)"""
    return Reply(text=text, calls=((tool, raw),))


def fails(
    status: int = 429,
    *,
    type: str | None = None,  # noqa: A002 - the API's own word
    message: str = "a fault of the script",
    retry_after: float | None = None,
    times: int = 1,
    then: ScriptedAnswer | None = None,
) -> ErrorReply:
    """Return an HTTP error; with `then`, only for the first `times` requests of the same conversation."""
    error_type = type or TYPE_OF_STATUS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return ErrorReply(status=status, type=error_type, message=message, retry_after=retry_after, times=times, then=then)


def expires(
    *,
    type: Literal["expired", "canceled"] = "expired",  # noqa: A002 - the API's own word
    times: int = 1,
    then: ScriptedAnswer | None = None,
) -> ErrorReply:
    """Return a request of a batch that is not answered; with `then`, only the first `times`. It has no use live."""
    return ErrorReply(status=504, type=type, message="not answered in a batch", times=times, then=then)


def cut(reply: Reply, *, error: str | None = None) -> Reply:
    """Return a stream that ends after `message_start`, with an `error` event if given ("overloaded_error")."""
    return replace(reply, is_cut=True, error=error)


def slow(reply: Reply, seconds: float) -> Reply:
    """Return a reply that is streamed over `seconds`, or comes after them if the request asks for no stream."""
    return replace(reply, seconds=seconds)


class ScriptedModel:
    """`with ScriptedModel(script) as model:` serves the script at `model.base_url`.

    By default `port` is a free one. A list is indexed by turn: the number of assistant messages in the request; past
    its end the server answers 400. A function takes the request's body instead. Conversations that the API would
    reject (a `tool_use` without its `tool_result`) are rejected. A request for `/v1/chat/completions` is answered by
    the same script, which sees it in the Messages API's form. The server stops at the end of the `with` block.
    `batches` answers the Message Batches API from the same script. `ways` are those of other servers of these APIs.
    """

    def __init__(
        self, script: Script, *, port: int = 0, batches: ScriptedBatches | None = None, ways: Ways = USUAL_WAYS
    ) -> None:
        self._script = script
        self._ways = ways
        self.batches = batches or ScriptedBatches()
        self._port = port
        self._requests: list[Json] = []
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._closing = threading.Event()

    @property
    def requests(self) -> list[Json]:
        """The request bodies so far, in order, with rejected and failed ones."""
        with self._lock:
            return list(self._requests)

    def __enter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", self._port))
        # asyncio sets it only for sockets that it makes; without it each reply waits 40 ms for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        wires = {"/v1/messages": MESSAGES, "/v1/chat/completions": CHAT}
        routes = [Route(path, partial(self._handle, wire), methods=["POST"]) for path, wire in wires.items()]
        app = Starlette(routes=[*routes, *self.batches.build_routes(self._build_result)])
        config = uvicorn.Config(
            app,
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="scripted-model", daemon=True
        )
        self._listener = listener
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the scripted model did not start")
            time.sleep(0.005)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()

    async def _handle(self, wire: Wire, request: Request) -> Response:
        try:
            sent = await _read_body(request)
            reason = wire.reject(sent, self._ways) if isinstance(sent.get("messages"), list) else None
            body = wire.read(sent)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = str(error) if isinstance(error, ValueError) else f"{WRONG_FIELD}: {error}"
            return _error_response(wire, 400, "invalid_request_error", reason)
        earlier = self._record_request(body)
        if reason := reason or request_error(body):
            return _error_response(wire, 400, "invalid_request_error", reason)
        answer = self._pick_answer(body, earlier)
        if isinstance(answer, ErrorReply):
            return _error_response(wire, answer.status, answer.type, answer.message, answer.retry_after)
        return await self._to_response(wire, answer, body)

    def _build_result(self, params: Json, earlier: int) -> Json:
        """Return the result of a request in a batch. `earlier` counts the requests in batches for its conversation."""
        reason = request_error(params) or messages_rejection(params)
        answer = fails(400, message=reason) if reason else self._pick_answer(params, earlier)
        match answer:
            case ErrorReply(type="expired" | "canceled"):
                return {"type": answer.type}
            case ErrorReply():
                return {"type": "errored", "error": error_body(answer.type, answer.message)}
            case Reply():
                return {"type": "succeeded", "message": _message(answer, params, _count_turns(params))}

    def _record_request(self, body: Json) -> int:
        """Record the body; return the number of earlier requests for this conversation."""
        key = digest_of(body.get("messages"))
        with self._lock:
            self._requests.append(body)
            self._seen[key] += 1
            return self._seen[key] - 1

    def _pick_answer(self, body: Json, earlier: int) -> ScriptedAnswer:
        """Return the script's answer, after `earlier` requests for the same conversation."""
        answer = self._read_script(body)
        while isinstance(answer, ErrorReply) and answer.then is not None and earlier >= answer.times:
            earlier -= answer.times
            answer = answer.then
        return answer

    def _read_script(self, body: Json) -> ScriptedAnswer:
        if callable(self._script):
            return self._script(body)
        turn = _count_turns(body)
        if turn < len(self._script):
            return self._script[turn]
        message = f"the script has {len(self._script)} replies, and this is a request for turn {turn}"
        return ErrorReply(status=400, type="invalid_request_error", message=message)

    async def _to_response(self, wire: Wire, reply: Reply, body: Json) -> Response:
        message = _message(reply, body, _count_turns(body))
        if not body.get("stream"):
            await self._sleep_until(time.monotonic() + reply.seconds)
            return JSONResponse(wire.build(message))
        events = list(wire.stream(message, self._ways))
        if reply.is_cut:
            error = [wire.encode(wire.error(reply.error, "a fault of the script"))] if reply.error else []
            events = [events[0], *error]
        return StreamingResponse(self._stream_events(reply, events), media_type="text/event-stream")

    async def _stream_events(self, reply: Reply, events: list[bytes]) -> AsyncIterator[bytes]:
        if not reply.seconds:
            yield b"".join(events)
            return
        start = time.monotonic()
        for number, event in enumerate(events, 1):
            yield event
            await self._sleep_until(start + reply.seconds * number / len(events))

    async def _sleep_until(self, due: float) -> None:
        """Wait until `due` on the monotonic clock, or until the server stops."""
        while (remaining := due - time.monotonic()) > 0 and not self._closing.is_set():  # noqa: ASYNC110 - set by a thread
            await asyncio.sleep(min(remaining, 0.02))


def _message(reply: Reply, body: Json, turn: int) -> Json:
    return build_message(reply, body, body["model"], f"toolu_{turn}")


def _count_turns(body: Json) -> int:
    return sum(message["role"] == "assistant" for message in body["messages"])


async def _read_body(request: Request) -> Json:
    """Return the body. Raises ValueError."""
    try:
        body = await request.json()
    except ValueError:
        raise ValueError("the body is not JSON") from None
    except ClientDisconnect:  # the client was killed; this answer is not read
        raise ValueError("the body is not whole") from None
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")  # noqa: TRY004 - as any other body that is not valid
    return body


def _error_response(
    wire: Wire, status: int, type_: str, message: str, retry_after: float | None = None
) -> JSONResponse:
    headers = {} if retry_after is None else {"retry-after": f"{retry_after:g}"}
    return JSONResponse(wire.error(type_, message), status_code=status, headers=headers)

"""A run as server-sent events: its events as JSON, each with its position in history, and its end.

Events are read from history, so a client can reconnect to any gateway, with the last event it saw. A client that
reads too slowly is disconnected.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from starlette.types import Message, Receive, Scope, Send
from temporalio.service import RPCError

from perdure.client.errors import RejectedError, RunNotFoundError, TemporalUnavailableError
from perdure.client.run_events import event_to_json
from perdure.client.watch import EventPosition
from perdure.decisions.text.visible_text import render_values
from perdure.gateway.auth import Caller, Gateway
from perdure.gateway.problems import ApiError, ProblemKind

V = TypeVar("V")

MAX_STREAMS = 500  # each costs five Temporal requests a second while the model answers, and one while a tool runs
KEEP_ALIVE = 15.0  # seconds without an event until a comment is sent
CHECK_EVERY = 5.0  # seconds between looks at whether the stream's token and session still count
CLIENT_READ_TIMEOUT = 30.0  # seconds for a client to read what was sent
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
RETRY_HINT = b"retry: 1000\n\n"


def parse_position(last_event_id: str | None) -> EventPosition | None:
    """Parse the header `Last-Event-ID`. Raises ApiError."""
    try:
        return EventPosition.parse(last_event_id) if last_event_id else None
    except ValueError as error:
        raise ApiError(422, f"Last-Event-ID: {error}", field="Last-Event-ID") from None


class PatientStream(StreamingResponse):
    """A response in pieces that ends if its client leaves or stops reading for `patience` seconds."""

    def __init__(self, content: Any, gateway: Gateway, patience: float, status: int, headers: dict[str, str]) -> None:
        super().__init__(content, status, headers, self.media_type)
        self._gateway, self._patience = gateway, patience
        self._drop: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._drop = lambda: self._gateway.drop(scope["client"])
        await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            try:
                async with asyncio.timeout(self._patience):
                    await send(message)
            except TimeoutError:
                self._drop()
                raise

        try:
            async with aclosing(self.body_iterator):  # type: ignore[type-var]  # it is a generator
                await super().stream_response(send_in_time)
        except TimeoutError:
            return


class EventStream(PatientStream):
    """A stream of events, which the gateway counts."""

    media_type = "text/event-stream"

    def __init__(self, content: Any, gateway: Gateway, patience: float, headers: dict[str, str] = HEADERS) -> None:
        super().__init__(content, gateway, patience, 200, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._gateway.streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._gateway.streams -= 1


class AccessEndedError(Exception):
    """The token of a stream was revoked or has expired, or its session is over."""


BROKEN = (RPCError, OSError, TemporalUnavailableError, RunNotFoundError, RejectedError, AccessEndedError)


def open_event_stream(
    gateway: Gateway, caller: Caller, run_id: str, after: EventPosition | None, *, rendered: bool = False
) -> EventStream:
    """Return the stream of a run; `rendered` makes invisible characters visible. Raises ApiError at the limit."""
    require_free_stream(gateway)
    return EventStream(_format_events(gateway, caller, run_id, after, rendered=rendered), gateway, CLIENT_READ_TIMEOUT)


def require_free_stream(gateway: Gateway) -> None:
    """Raises ApiError 429 if the gateway has as many streams as it serves."""
    if gateway.streams >= MAX_STREAMS:
        reason = f"this gateway has {MAX_STREAMS} streams, its limit; try again"
        raise ApiError(429, reason, kind=ProblemKind.too_many_streams, headers={"Retry-After": "5"})


async def _format_events(
    gateway: Gateway, caller: Caller, run_id: str, after: EventPosition | None, *, rendered: bool
) -> AsyncGenerator[bytes]:
    run, last = gateway.perdure.get_run(run_id), after
    finish: Callable[[str], str] = _render_json if rendered else str
    yield RETRY_HINT
    try:
        async with (
            aclosing(run.watch(after).positioned_events()) as entries,
            aclosing(with_keep_alive(entries, gateway.stopping, lambda: caller.is_over(gateway.tokens))) as paced,
        ):
            async for entry in paced:
                if entry is None:
                    yield b": still here\n\n"
                    continue
                position, event = entry
                last = position or last
                yield format_sse_event(data_str=finish(event_to_json(event)), id=str(position) if position else None)
        if not gateway.stopping.is_set():
            end = json.dumps({"run_id": run_id, **asdict(await run.end())})
            yield format_sse_event(event="end", data_str=finish(end), id=str(last) if last else None)
    except BROKEN:  # Temporal or a store is down, or the access has ended: the client reconnects, if it may
        return


def describe_events(description: str) -> dict[int | str, dict[str, Any]]:
    """Return the response of a route that streams JSON values in events without names."""
    event = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
    return {200: {"description": description, "content": {"text/event-stream": {"schema": event}}}}


def frame_json(value: Any) -> bytes:
    """Return a value as a server-sent event without a name, in ASCII."""
    return f"data: {json.dumps(value)}\n\n".encode()


async def stream_values(
    gateway: Gateway, caller: Caller, values: AsyncGenerator[V], write: Callable[[V], bytes]
) -> AsyncGenerator[bytes]:
    """Yield values as `write` makes them, and comments between. A stream that breaks off has no end: it is resumed."""
    try:
        async with (
            aclosing(values),
            aclosing(with_keep_alive(values, gateway.stopping, lambda: caller.is_over(gateway.tokens))) as paced,
        ):
            async for value in paced:
                yield b": still here\n\n" if value is None else write(value)
    except BROKEN:  # Temporal or a store is down, or the access has ended
        return


def _render_json(text: str) -> str:
    return json.dumps(render_values(json.loads(text)))


async def with_keep_alive(
    values: AsyncGenerator[V], stopping: asyncio.Event, is_over: Callable[[], bool] = bool
) -> AsyncGenerator[V | None]:
    """Yield values as they arrive, until `stopping`, with a gap marker after each silent `KEEP_ALIVE`.

    Raises AccessEndedError within `CHECK_EVERY` after `is_over`.
    """
    now = asyncio.get_running_loop().time
    stop = asyncio.create_task(stopping.wait())
    following: asyncio.Future[Any] | None = None
    checked = spoke = now()
    try:
        while not stop.done():
            following = following or asyncio.ensure_future(anext(values, None))
            patience = min(spoke + KEEP_ALIVE, checked + CHECK_EVERY) - now()
            await asyncio.wait({following, stop}, timeout=max(0, patience), return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                return
            if now() >= checked + CHECK_EVERY:
                checked = now()
                if is_over():
                    raise AccessEndedError
            if following.done():
                value, following = following.result(), None
                if value is None:
                    return
                spoke = now()
                yield value
            elif now() >= spoke + KEEP_ALIVE:
                spoke = now()
                yield None
    finally:
        remaining = [task for task in (stop, following) if task is not None]
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)

"""A run as server-sent events: what happens in it, as JSON, each with its place in history, and its end.

History is what is read, so a stream that broke goes on at any gateway, after the event that was seen last. Nothing is
kept for a client that reads too slowly: it is cut off, and can come again.
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

from decisions.text.visible_text import render_values
from gateway.auth import Gateway
from gateway.problems import Failure, Kind
from perdure.client.errors import NoSuchRun, NotReachable, Refused
from perdure.client.run_events import happening_json
from perdure.client.runs import ended
from perdure.client.watch import Position, Watch

V = TypeVar("V")

MOST_STREAMS = 500  # each costs a look at Temporal a second
KEEP_ALIVE = 15.0  # seconds without a happening until a comment says that the stream lives
LOOK_EVERY = 1.0  # seconds between looks at the model's partial answer
PATIENCE = 30.0  # seconds in which a client has to take what was sent
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
FIRST = b"retry: 1000\n\n"


def position_of(last_event_id: str | None) -> Position | None:
    """Raises Failure."""
    try:
        return Position.read(last_event_id) if last_event_id else None
    except ValueError as error:
        raise Failure(422, f"Last-Event-ID: {error}", field="Last-Event-ID") from None


class Stream(StreamingResponse):
    """Ends with its client, also with one that is there and does not read."""

    media_type = "text/event-stream"

    def __init__(self, content: Any, gateway: Gateway, patience: float) -> None:
        super().__init__(content, headers=HEADERS)
        self._gateway, self._patience = gateway, patience
        self._drop: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._drop = lambda: self._gateway.drop(scope["client"])
        self._gateway.streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._gateway.streams -= 1

    async def stream_response(self, send: Send) -> None:
        async def patiently(message: Message) -> None:
            try:
                async with asyncio.timeout(self._patience):
                    await send(message)
            except TimeoutError:
                self._drop()
                raise

        try:
            async with aclosing(self.body_iterator):  # type: ignore[type-var]  # it is a generator
                await super().stream_response(patiently)
        except TimeoutError:
            return


def followed(gateway: Gateway, run_id: str, after: Position | None, *, rendered: bool = False) -> Stream:
    """The stream; `rendered` shows people what is hidden in its texts. Raises Failure where there are too many."""
    if gateway.streams >= MOST_STREAMS:
        why = f"{MOST_STREAMS} runs are followed here already; try again"
        raise Failure(429, why, kind=Kind.too_many_streams, headers={"Retry-After": "5"})
    return Stream(_stream(gateway, run_id, after, rendered=rendered), gateway, PATIENCE)


async def _stream(gateway: Gateway, run_id: str, after: Position | None, *, rendered: bool) -> AsyncGenerator[bytes]:
    client, last = gateway.session.client, after
    finish: Callable[[str], str] = _render_json if rendered else str
    yield FIRST
    try:
        watch = Watch(client, run_id, after=after, look_every=LOOK_EVERY)
        async with aclosing(watch.positioned()) as happenings, aclosing(_paced(happenings, gateway.stopping)) as paced:
            async for told in paced:
                if told is None:
                    yield b": still here\n\n"
                    continue
                last = told[0] or last
                yield format_sse_event(data_str=finish(happening_json(told[1])), id=str(told[0]) if told[0] else None)
        if not gateway.stopping.is_set():
            end = json.dumps({"run_id": run_id, **asdict(await ended(client, run_id))})
            yield format_sse_event(event="end", data_str=finish(end), id=str(last) if last else None)
    except (RPCError, OSError, NotReachable, NoSuchRun, Refused):  # Temporal or a store is away: it goes on later
        return


def _render_json(text: str) -> str:
    return json.dumps(render_values(json.loads(text)))


async def _paced(values: AsyncGenerator[V], stopping: asyncio.Event) -> AsyncGenerator[V | None]:
    """The values as they come, until `stopping`; None where none has come for a while."""
    stop = asyncio.create_task(stopping.wait())
    following: asyncio.Task[V | None] | None = None
    try:
        while not stop.done():
            following = following or asyncio.create_task(_next(values))
            await asyncio.wait({following, stop}, timeout=KEEP_ALIVE, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                return
            if not following.done():
                yield None
                continue
            value, following = following.result(), None
            if value is None:
                return
            yield value
    finally:
        left = [task for task in (stop, following) if task is not None]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _next(values: AsyncGenerator[V]) -> V | None:
    return await anext(values, None)

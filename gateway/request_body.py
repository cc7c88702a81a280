"""Limits on a request's body: its size, its time, and unambiguous JSON."""

import asyncio
from contextlib import suppress
from typing import Any

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts import strict_json
from contracts.models import MOST_DEPTH, depth, printable
from contracts.strict_json import JsonError
from gateway.problems import Failure, answer_to

MOST_BODY = 1024 * 1024  # bytes
MOST_DRAINED = 16 * MOST_BODY
PATIENCE = 20.0  # seconds to receive a body
MOST_NESTED = MOST_DEPTH + 10  # room for the fields around a value of that depth
_CLOSE = {"Connection": "close"}  # the rest of the body is not read


class BoundedBodies:
    """Middleware that rejects bodies which are too large or too slow, also chunked ones."""

    def __init__(self, app: ASGIApp, limit: int = MOST_BODY, patience: float = PATIENCE) -> None:
        self._app, self._limit, self._patience = app, limit, patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if b"content-length" in headers and b"transfer-encoding" in headers:
            reason = "Content-Length and Transfer-Encoding together: the end of the body is ambiguous"
            await answer_to(Failure(400, reason, headers=_CLOSE))(scope, receive, send)
            return
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._limit:
            if b"expect" not in headers:  # otherwise the client waits before it sends
                await self._drain(receive, asyncio.get_running_loop().time() + self._patience)
            await answer_to(self._too_large())(scope, receive, send)
            return
        await self._app(scope, self._bounded(receive), send)

    def _bounded(self, receive: Receive) -> Receive:
        taken, is_read, deadline = 0, False, 0.0

        async def receive_bounded() -> Message:
            nonlocal taken, is_read, deadline
            if is_read:  # the next message is the disconnect
                return await receive()
            deadline = deadline or asyncio.get_running_loop().time() + self._patience
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                reason = f"the body did not arrive within {self._patience:g} s"
                raise Failure(408, reason, headers=_CLOSE) from None
            taken += len(message.get("body", b""))
            is_read = not message.get("more_body", False)
            if taken > self._limit:
                if not is_read:
                    await self._drain(receive, deadline)
                raise self._too_large()
            return message

        return receive_bounded

    async def _drain(self, receive: Receive, deadline: float) -> None:
        """Read the rest of a body, up to a limit: a client that still sends would see a reset, not the answer."""
        taken, more = 0, True
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while more and taken < MOST_DRAINED:
                    message = await receive()
                    taken += len(message.get("body", b""))
                    more = message.get("more_body", False)

    def _too_large(self) -> Failure:
        return Failure(413, f"a body may have {self._limit:,} bytes", headers=_CLOSE)


class StrictRequest(Request):
    async def json(self) -> Any:
        return read_json(await self.body())


def read_json(data: bytes) -> Any:
    """Parse JSON. Raises Failure if it is ambiguous, invalid or nested too deep."""
    try:
        value = strict_json.read_json(data)
        is_flat = depth(value) <= MOST_NESTED
    except RecursionError:
        is_flat, value = False, None
    except JsonError as error:
        raise Failure(400, f"the body: {printable(str(error))}", field=error.place or None) from None
    if not is_flat:
        raise Failure(400, f"the body: nested more than {MOST_NESTED} levels deep")
    return value

"""What is read of a request's body: so much, for so long, and only JSON that says one thing."""

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
PATIENCE = 20.0  # seconds from the first look at a body to its end
MOST_NESTED = MOST_DEPTH + 10  # what wraps a value that may be nested so deep
_CLOSE = {"Connection": "close"}  # what still comes is not read


class BoundedBodies:
    """Ends requests whose body is too large, or too slow, also one that comes in chunks."""

    def __init__(self, app: ASGIApp, most: int = MOST_BODY, patience: float = PATIENCE) -> None:
        self._app, self._most, self._patience = app, most, patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if b"content-length" in headers and b"transfer-encoding" in headers:
            why = "Content-Length and Transfer-Encoding together: nobody can tell where the body ends"
            await answer_to(Failure(400, why, headers=_CLOSE))(scope, receive, send)
            return
        told = headers.get(b"content-length", b"")
        if told.isdigit() and int(told) > self._most:
            if b"expect" not in headers:  # else it waits for our word before it sends
                await self._drain(receive, asyncio.get_running_loop().time() + self._patience)
            await answer_to(self._too_large())(scope, receive, send)
            return
        await self._app(scope, self._bounded(receive), send)

    def _bounded(self, receive: Receive) -> Receive:
        taken, is_read, deadline = 0, False, 0.0

        async def bounded() -> Message:
            nonlocal taken, is_read, deadline
            if is_read:  # what comes now is that the client has left
                return await receive()
            deadline = deadline or asyncio.get_running_loop().time() + self._patience
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                why = f"the body did not come within {self._patience:g} s"
                raise Failure(408, why, headers=_CLOSE) from None
            taken += len(message.get("body", b""))
            is_read = not message.get("more_body", False)
            if taken > self._most:
                if not is_read:
                    await self._drain(receive, deadline)
                raise self._too_large()
            return message

        return bounded

    async def _drain(self, receive: Receive, deadline: float) -> None:
        """Lets go of what still comes, within bounds: who is answered while it sends gets a reset, and no answer."""
        taken, more = 0, True
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while more and taken < MOST_DRAINED:
                    message = await receive()
                    taken += len(message.get("body", b""))
                    more = message.get("more_body", False)

    def _too_large(self) -> Failure:
        return Failure(413, f"a body may have {self._most:,} bytes", headers=_CLOSE)


class StrictRequest(Request):
    async def json(self) -> Any:
        return read_json(await self.body())


def read_json(data: bytes) -> Any:
    """Raises Failure for what JSON readers understand differently, or not at all."""
    try:
        value = strict_json.read_json(data)
        is_flat = depth(value) <= MOST_NESTED
    except RecursionError:
        is_flat, value = False, None
    except JsonError as error:
        raise Failure(400, f"the body: {printable(str(error))}", field=error.place or None) from None
    if not is_flat:
        raise Failure(400, f"the body: it is nested more than {MOST_NESTED} levels deep")
    return value

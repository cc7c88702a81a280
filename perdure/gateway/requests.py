"""A request before its route: ids with a slash in its address, limits on its body's size and time, strict JSON."""

import asyncio
import logging
from contextlib import suppress
from time import perf_counter
from typing import Any
from urllib.parse import unquote

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.contracts.media import MAX_MEDIA_BYTES
from perdure.contracts.models import MAX_NESTING, escape_unprintable
from perdure.contracts.strict_input import JsonError, parse_strict_json
from perdure.decisions.text.formatting import truncate
from perdure.gateway.problems import ApiError, problem_response

MAX_BODY_BYTES = 1024 * 1024  # bytes
MAX_DRAINED_BYTES = 16 * MAX_BODY_BYTES
BODY_TIMEOUT = 20.0  # seconds to receive a body
UPLOAD_PATH = "/v1/files"  # the only address that takes a larger body, and more time for it
MAX_UPLOAD_SECONDS = 300.0  # seconds to receive a file
MAX_BODY_NESTING = MAX_NESTING + 10  # room for the fields around a value of that depth
_SLASH = "\udc2f"  # half a surrogate pair, which decoded UTF-8 never holds
_SINGLE = frozenset(
    b"authorization content-length content-type host idempotency-key last-event-id origin sec-fetch-site "
    b"transfer-encoding webhook-id webhook-signature webhook-timestamp x-github-event x-hub-signature-256 x-perdure "
    b"x-slack-request-timestamp x-slack-signature".split()
)
_CLOSE = {"Connection": "close"}  # the rest of the body is not read


class EncodedSlashes:
    """Middleware that hides encoded slashes from the router; `restore_slashes` puts them back. Servers decode paths."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") or b""
        if b"%2f" in raw.lower():
            parts = (unquote(part).replace("/", _SLASH) for part in raw.decode("latin-1").split("/"))
            scope = {**scope, "path": "/".join(parts)}
        await self._app(scope, receive, send)


def restore_slashes(scope: Scope) -> None:
    scope["path_params"] = {name: value.replace(_SLASH, "/") for name, value in scope["path_params"].items()}


class BoundedBodies:
    """Middleware that rejects bodies which are too large or too slow, also chunked ones."""

    def __init__(self, app: ASGIApp, limit: int = MAX_BODY_BYTES, patience: float = BODY_TIMEOUT) -> None:
        self._app, self._limit, self._patience = app, limit, patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if repeated := _find_repeated(scope["headers"]):
            await problem_response(ApiError(400, f"the header {repeated} is there twice"))(scope, receive, send)
            return
        is_upload = scope["path"] == UPLOAD_PATH
        limit = MAX_MEDIA_BYTES if is_upload else self._limit
        patience = MAX_UPLOAD_SECONDS if is_upload else self._patience
        headers = dict(scope["headers"])
        if b"content-length" in headers and b"transfer-encoding" in headers:
            reason = "Content-Length and Transfer-Encoding together: the end of the body is ambiguous"
            await problem_response(ApiError(400, reason, headers=_CLOSE))(scope, receive, send)
            return
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > limit:
            if b"expect" not in headers:  # otherwise the client waits before it sends
                await self._drain_body(receive, asyncio.get_running_loop().time() + self._patience)
            await problem_response(_too_large_error(limit))(scope, receive, send)
            return
        await self._app(scope, self._bound_receive(receive, limit, patience), send)

    def _bound_receive(self, receive: Receive, limit: int, patience: float) -> Receive:
        taken, is_read, deadline = 0, False, 0.0

        async def receive_bounded() -> Message:
            nonlocal taken, is_read, deadline
            if is_read:  # the next message is the disconnect
                return await receive()
            deadline = deadline or asyncio.get_running_loop().time() + patience
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                reason = f"the body did not arrive within {patience:g} s"
                raise ApiError(408, reason, headers=_CLOSE) from None
            taken += len(message.get("body", b""))
            is_read = not message.get("more_body", False)
            if taken > limit:
                if not is_read:
                    await self._drain_body(receive, deadline)
                raise _too_large_error(limit)
            return message

        return receive_bounded

    async def _drain_body(self, receive: Receive, deadline: float) -> None:
        """Read the rest of a body, up to a limit: a client that still sends would see a reset, not the answer."""
        taken, more = 0, True
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while more and taken < MAX_DRAINED_BYTES:
                    message = await receive()
                    taken += len(message.get("body", b""))
                    more = message.get("more_body", False)


def _find_repeated(headers: list[tuple[bytes, bytes]]) -> str | None:
    """Return the name of a header that comes twice and has one value alone: two readers may take different ones."""
    names = [name.lower() for name, _ in headers]
    return next((name.decode("latin-1") for name in names if names.count(name) > 1 and name in _SINGLE), None)


def _too_large_error(limit: int) -> ApiError:
    return ApiError(413, f"a body may have {limit:,} bytes", headers=_CLOSE)


class StrictRequest(Request):
    async def json(self) -> Any:
        return read_body_json(await self.body())


def read_body_json(data: bytes) -> Any:
    """Parse JSON. Raises ApiError if it is ambiguous, invalid or nested too deep."""
    try:
        return parse_strict_json(data, MAX_BODY_NESTING)
    except JsonError as error:
        raise ApiError(400, f"the body: {escape_unprintable(str(error))}", field=error.place or None) from None


PROBES = ("/healthz", "/readyz")  # called every few seconds: only failures are logged

_log = logging.getLogger(__name__)


class AccessLog:
    """Logs each request, also a stream, at its end.

    The line has the route, never the requested address, which may hold a token by mistake. `address` is the peer of
    the connection, such as a proxy.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status: int | None = None
        started = perf_counter()

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception:
            status = status or 500  # an outer middleware answers
            raise
        finally:
            _log_request(scope, status, round((perf_counter() - started) * 1000))


def _log_request(scope: Scope, status: int | None, ms: int) -> None:
    """Log a request; without a `status` the client left before the answer."""
    route = scope.get("route")
    path = route.path if isinstance(route, APIRoute) else None
    if path in PROBES and status == 200:
        return
    state = scope.get("state", {})
    refused = state.get("login_refused")
    caller = state.get("caller")
    line = {
        "event": "gateway.login_failed" if refused else "gateway.request",
        "method": truncate(escape_unprintable(str(scope["method"])), 20),
        "route": path,
        "status": status,
        "duration_ms": ms,
        "address": scope["client"][0] if scope.get("client") else None,
        "token": caller.token.name if caller is not None and caller.token is not None else None,
        "person": caller.person if caller is not None else None,
        "credential": str(caller.credential) if caller is not None else None,
        "run_id": _path_parameter(scope, "run_id"),
        "conversation_id": _path_parameter(scope, "conversation_id"),
        "reason": refused,
    }
    level = logging.WARNING if refused or (status or 0) >= 500 else logging.INFO
    event = {name: value for name, value in line.items() if value is not None or name in ("token", "route", "status")}
    _log.log(level, line["event"], extra={"event": event})


def _path_parameter(scope: Scope, name: str) -> str | None:
    value: Any = scope.get("path_params", {}).get(name)
    return truncate(escape_unprintable(value), 200) if isinstance(value, str) else None


def note_login_failure(scope: Scope, reason: str) -> None:
    """Record for the log line why this request was not authenticated, in a word."""
    scope.setdefault("state", {})["login_refused"] = reason

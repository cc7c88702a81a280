"""The access log: one line for each request, with its token and status, and without content."""

import logging
from time import perf_counter
from typing import Any

from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.models import escape_unprintable
from decisions.text.formatting import truncate

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
    token = state.get("token")
    line = {
        "event": "gateway.login_failed" if refused else "gateway.request",
        "method": truncate(escape_unprintable(str(scope["method"])), 20),
        "route": path,
        "status": status,
        "duration_ms": ms,
        "address": scope["client"][0] if scope.get("client") else None,
        "token": token.name if token is not None else None,
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

"""Percent-encoded slashes in ids: routes see them as a character that no other text has."""

from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

_WITHIN = "\udc2f"  # half a surrogate pair, which decoded UTF-8 never holds


class EncodedSlashes:
    """Middleware that hides encoded slashes from the router; `restore` puts them back. Servers decode the path."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") or b""
        if b"%2f" in raw.lower():
            parts = (unquote(part).replace("/", _WITHIN) for part in raw.decode("latin-1").split("/"))
            scope = {**scope, "path": "/".join(parts)}
        await self._app(scope, receive, send)


def restore_slashes(scope: Scope) -> None:
    """Restore the slashes in the path parameters of a routed request."""
    scope["path_params"] = {name: value.replace(_WITHIN, "/") for name, value in scope["path_params"].items()}

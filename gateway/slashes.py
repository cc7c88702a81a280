"""A slash within an id comes percent-encoded, and parts no address: routes see it as a sign that no other text has."""

from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

_WITHIN = "\udc2f"  # half a surrogate pair, which nothing that is decoded from UTF-8 holds


class EncodedSlashes:
    """For the application; `restore` gives the routes their ids back. Servers hand on the path with them decoded."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") or b""
        if b"%2f" in raw.lower():
            parts = (unquote(part).replace("/", _WITHIN) for part in raw.decode("latin-1").split("/"))
            scope = {**scope, "path": "/".join(parts)}
        await self._app(scope, receive, send)


def restore(scope: Scope) -> None:
    """Where a route was found."""
    given = scope["path_params"]
    scope["path_params"] = {name: value.replace(_WITHIN, "/") for name, value in given.items()}

"""A login at the terminal: the authorization server sends the browser back to this machine (RFC 8252)."""

import asyncio
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from perdure.features.mcp.activities.config import HttpServer
from perdure.features.mcp.activities.grants import Grant, GrantStore
from perdure.features.mcp.login import LOGIN_SECONDS, LoginError, begin_login, finish_login

MAX_REQUEST = 16 * 1024  # bytes of a request's head
REQUEST_SECONDS = 10.0
PATH = "/callback"


async def log_in(  # noqa: PLR0913 - the facts of a login
    server: HttpServer, store: GrantStore, port: int, by: str, show: Callable[[str], None], requester: str = ""
) -> Grant:
    """Show the link, wait until the browser comes back, and store the grant. Raises GrantError, OSError."""
    came: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
    expected = ""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fields = await _read_query(reader)
        is_own = fields.get("state") == expected and bool(expected) and not came.done()
        text = "You can close this page." if is_own else "This is no login that was begun here."
        head = f"HTTP/1.1 {'200 OK' if is_own else '400 Bad Request'}\r\nContent-Type: text/plain\r\n"
        writer.write(f"{head}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode())
        if is_own:
            came.set_result(fields)
        writer.close()

    listener = await asyncio.start_server(take, "127.0.0.1", port, limit=MAX_REQUEST)
    try:
        redirect_uri = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}{PATH}"
        url, expected = await begin_login(server, store, redirect_uri, by, requester=requester)
        show(url)
        fields = await asyncio.wait_for(came, LOGIN_SECONDS)
    except TimeoutError:
        raise LoginError("no login within ten minutes: begin it again") from None
    finally:
        listener.close()
    if "code" not in fields:
        raise LoginError(f"the login was refused: {fields.get('error', 'without a reason')[:100]}")
    return await finish_login(store, expected, fields["code"], fields.get("iss"))


async def _read_query(reader: asyncio.StreamReader) -> dict[str, str]:
    """Return the parameters of a GET of the callback; none for any other request."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
        return {}
    method, _, rest = head.partition(" ")
    target = urlsplit(rest.partition(" ")[0])
    if method != "GET" or target.path != PATH:
        return {}
    return {name: values[0] for name, values in parse_qs(target.query).items() if len(values) == 1}

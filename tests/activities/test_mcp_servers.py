"""The servers that people use, as they come: time, git, fetch (Python), filesystem and everything (npm), and HTTP."""

import asyncio
import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import pytest
import uvicorn
from mcp.server.mcpserver import Image, MCPServer
from mcp_types import ToolAnnotations

from perdure.activities.tools.interface import TransientToolError
from perdure.contracts.failures import ToolFault
from perdure.contracts.tool import Effect
from perdure.features.mcp.activities.config import HttpServer, StdioServer
from perdure.features.mcp.activities.connection import Connection, McpUnreachableError
from tests.activities.calls import error_of
from tests.mcp.client import check, connected
from tests.ports import free_port

BIN = Path(sys.executable).parent
NPM = Path(__file__).parents[1] / "mcp" / "node_modules" / ".bin"


def npm(name: str) -> str:
    """The path of an npm server; skips the test where it is not there."""
    if shutil.which("node") is None:
        pytest.skip("there is no node here")
    if not (NPM / name).exists():
        pytest.skip(f"{name} is not installed: npm ci --prefix tests/mcp")
    return str(NPM / name)


def repository(folder: Path) -> Path:
    """With a file that git does not know yet."""
    repo = folder / "repo"
    repo.mkdir()
    subprocess.run([shutil.which("git") or "git", "init", "-q", str(repo)], check=True)
    (repo / "a.txt").write_text("a")
    return repo


async def test_time(tmp_path: Path) -> None:
    async with connected(Connection(StdioServer("time", str(BIN / "mcp-server-time"))), tmp_path) as time:
        assert await time.effects() == {"get_current_time": Effect.read, "convert_time": Effect.read}
        outcome = await time.run("get_current_time", timezone="Asia/Tokyo")
        assert outcome.status == "ok"
        assert "Asia/Tokyo" in str(outcome.result)
        error = error_of(await time.run("get_current_time", timezone="Nowhere/None"))
        assert error.kind == ToolFault.tool_error


async def test_git(tmp_path: Path) -> None:
    repo = repository(tmp_path)
    async with connected(Connection(StdioServer("git", str(BIN / "mcp-server-git"))), tmp_path) as git:
        effects = await git.effects()
        wanted = {"git_status": Effect.read, "git_add": Effect.keyed, "git_commit": Effect.once}
        assert effects.items() >= wanted.items()
        assert "a.txt" in (await git.run("git_status", repo_path=str(repo))).result
        await git.run("git_add", repo_path=str(repo), files=["a.txt"])
        assert "Changes to be committed" in (await git.run("git_status", repo_path=str(repo))).result
        nowhere = await git.run("git_status", repo_path=str(tmp_path / "none"))
        assert nowhere.status == "error"


async def test_fetch(tmp_path: Path) -> None:
    async with connected(Connection(StdioServer("fetch", str(BIN / "mcp-server-fetch"))), tmp_path) as fetch:
        assert list(await fetch.effects()) == ["fetch"]
        error = error_of(await fetch.run("fetch", url="http://127.0.0.1:9/"))
        assert error.kind == ToolFault.tool_error


async def test_filesystem(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.txt").write_text("hello")
    args = (str(folder),)
    async with connected(Connection(StdioServer("fs", npm("mcp-server-filesystem"), args)), tmp_path) as files:
        effects = await files.effects()
        assert effects["read_text_file"] is Effect.read
        assert effects["move_file"] is Effect.once
        read = await files.run("read_text_file", path=str(folder / "a.txt"))
        assert "hello" in str(read.result)
        await files.run("write_file", path=str(folder / "b.txt"), content="new")
        assert (folder / "b.txt").read_text() == "new"
        outside = await files.run("read_text_file", path="/etc/passwd")
        assert outside.status == "error"


async def test_everything(tmp_path: Path) -> None:
    async with connected(Connection(StdioServer("all", npm("mcp-server-everything"))), tmp_path) as everything:
        assert "hello" in str((await everything.run("echo", message="hello")).result)
        image = await everything.run("get-tiny-image")
        [file] = image.result["files"]
        assert file["content_type"] == "image/png"
        assert (everything.workspace.root / file["path"]).read_bytes().startswith(b"\x89PNG")
        structured = await everything.run("get-structured-content", location="Chicago")
        assert set(structured.result) >= {"temperature", "conditions"}


def web() -> MCPServer:
    server = MCPServer("web")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def wait(seconds: float) -> str:
        """Waits."""
        await asyncio.sleep(seconds)
        return "waited"

    @server.tool()
    def large() -> str:
        """Says much."""
        return "x" * 3_000_000

    @server.tool()
    def picture() -> Image:
        """Draws."""
        return Image(data=b"\x89PNG\r\n", format="png")

    return server


def serve(server: MCPServer, port: int) -> AbstractAsyncContextManager[None]:
    return listen(server.streamable_http_app(), port)


@asynccontextmanager
async def listen(app: Any, port: int) -> AsyncIterator[None]:
    config = uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1)
    http = uvicorn.Server(config)
    http.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(http.serve())
    try:
        while not http.started:  # noqa: ASYNC110 - it has no event for it
            await asyncio.sleep(0.01)
        yield
    finally:
        http.should_exit = True
        await task


async def test_a_server_at_a_url(tmp_path: Path) -> None:
    port = free_port()
    async with connected(Connection(HttpServer("web", f"http://127.0.0.1:{port}/mcp")), tmp_path) as client:
        async with serve(web(), port):
            assert await client.effects() == {
                "add": Effect.read,
                "wait": Effect.read,
                "large": Effect.once,
                "picture": Effect.once,
            }
            assert (await client.run("add", a=1, b=2)).result == {"result": 3}
            assert len((await client.run("large")).result["result"]) == 3_000_000
            assert (await client.run("picture")).artifacts == ("artifacts/web__picture-01.png",)
            slow = await client.tool("wait", 0.3)
            with pytest.raises(TransientToolError, match="did not answer within"):
                await slow.run({"seconds": 30}, client.context)
            assert (await client.run("add", a=2, b=2)).result == {"result": 4}
            add = await client.tool("add")
        with pytest.raises(TransientToolError) as caught:  # it is gone
            await check(add)
        assert caught.value.kind == ToolFault.unreachable
        async with serve(web(), port):  # and comes back, and knows nothing of the session
            async with asyncio.timeout(60):
                while True:
                    try:
                        assert (await client.run("add", a=3, b=3)).result == {"result": 6}
                        break
                    except (McpUnreachableError, TransientToolError):
                        await asyncio.sleep(0.1)


async def test_a_restarted_server_at_a_url_is_asked_again_at_once(tmp_path: Path) -> None:
    port = free_port()
    async with connected(Connection(HttpServer("web", f"http://127.0.0.1:{port}/mcp")), tmp_path) as client:
        async with serve(web(), port):
            assert (await client.run("add", a=1, b=2)).result == {"result": 3}
        async with serve(web(), port):
            tool = await client.tool("large")
            assert await check(tool) is None
            assert (await tool.run({}, client.context)).status == "ok"


class Front:
    """What stands before a server of the version with sessions: it refuses listings with `status`, if that is set.

    Requests of `forgotten` sessions are refused in `words`, as servers do that are not of the SDK.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self.status: int | None = None
        self.words = ""
        self.forgotten: set[bytes] = set()
        self.seen: set[bytes] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        first = await receive()
        body = first.get("body", b"")
        session = dict(scope["headers"]).get(b"mcp-session-id")
        if session is not None:
            self.seen.add(session)
        if self.status and b"tools/list" in body:
            await refuse(send, self.status)
        elif b"server/discover" in body:
            await refuse(send, 404, -32601, "Method not found")
        elif session in self.forgotten:
            await refuse(send, 404, -32001, self.words)
        else:
            waiting = [first]

            async def rest() -> Any:
                return waiting.pop() if waiting else await receive()

            await self._app(scope, rest, send)


async def refuse(send: Any, status: int, code: int | None = None, words: str = "") -> None:
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": words}} if code else None
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


@pytest.mark.parametrize("status", [429, 503])
async def test_a_url_that_refuses_to_list_its_tools_goes_on_with_the_calls_of_others(
    tmp_path: Path, status: int
) -> None:
    server, begun, released = web(), asyncio.Event(), asyncio.Event()

    @server.tool()
    async def hold() -> str:
        """Acts for as long as it takes."""
        begun.set()
        await released.wait()
        return "held"

    front, port = Front(server.streamable_http_app()), free_port()
    web_server = HttpServer("web", f"http://127.0.0.1:{port}/mcp")
    async with listen(front, port), connected(Connection(web_server), tmp_path) as client:
        holding = asyncio.create_task(client.run("hold"))
        await asyncio.wait_for(begun.wait(), 60)
        front.status = status
        with pytest.raises(McpUnreachableError, match="does not say which tools it has"):
            await client.connection.tools(refresh=True)
        released.set()
        assert (await holding).result == {"result": "held"}
        front.status = None
        assert (await client.run("add", a=1, b=2)).result == {"result": 3}


async def test_a_forgotten_session_is_opened_again_whatever_the_servers_words(tmp_path: Path) -> None:
    front, port = Front(web().streamable_http_app()), free_port()
    server = HttpServer("web", f"http://127.0.0.1:{port}/mcp")
    async with listen(front, port), connected(Connection(server), tmp_path) as client:
        for words in ("Session not found", "Bad Request: No valid session ID provided"):
            assert (await client.run("add", a=1, b=2)).result == {"result": 3}
            front.words, front.forgotten = words, set(front.seen)
            assert front.forgotten
            assert (await client.run("add", a=2, b=2)).result == {"result": 4}


async def test_a_url_that_refuses_access_says_so(tmp_path: Path) -> None:
    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    port = free_port()
    server = HttpServer("web", f"http://127.0.0.1:{port}/mcp", {"Authorization": "Bearer wrong"})
    async with listen(refuses, port), connected(Connection(server), tmp_path) as client:
        with pytest.raises(McpUnreachableError, match="its last words: HTTP 401 Unauthorized"):
            await client.connection.tools()


@pytest.mark.parametrize(
    ("status", "content_type"), [(200, "application/json"), (200, "text/html"), (202, "text/plain")]
)
async def test_a_once_call_whose_answer_cannot_be_read_may_have_happened(
    tmp_path: Path, status: int, content_type: str
) -> None:
    """What the SDK makes of it looks like a refusal of the server's."""
    app = web().streamable_http_app()

    async def garbling(scope: Any, receive: Any, send: Any) -> None:
        async def garbled(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "status": status, "headers": [(b"content-type", content_type.encode())]}
            await send(message if "body" not in message else {**message, "body": b"{oops"})

        called: list[Any] = []

        async def received() -> Any:
            called.append(await receive())
            return called[-1]

        async def answered(message: Any) -> None:
            is_call = any(b"tools/call" in each.get("body", b"") for each in called)
            await (garbled if is_call else send)(message)

        await app(scope, received, answered)

    port = free_port()
    server = HttpServer("web", f"http://127.0.0.1:{port}/mcp")
    async with listen(garbling, port), connected(Connection(server), tmp_path) as client:
        error = error_of(await client.run("picture"))
        assert "the call was sent, and may have happened" in error.message


async def test_an_endless_answer_of_a_url_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.features.mcp.activities.connection.MAX_MESSAGE_LINE", 100_000)

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            with suppress(OSError):
                while True:
                    await send({"type": "http.response.body", "body": b" " * 10_000, "more_body": True})
                    await asyncio.sleep(0)

    port = free_port()
    async with (
        listen(endless, port),
        connected(Connection(HttpServer("web", f"http://127.0.0.1:{port}/mcp")), tmp_path) as client,
    ):
        with pytest.raises(McpUnreachableError, match="larger than 100,000 bytes"):
            await client.connection.tools()


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("layers", [1, 2])
async def test_the_bound_holds_for_what_an_answer_unpacks_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content_type: str, layers: int
) -> None:
    monkeypatch.setattr("perdure.features.mcp.activities.connection.MAX_MESSAGE_LINE", 1_000_000)
    monkeypatch.setattr("perdure.features.mcp.activities.connection.MAX_MESSAGE_LINE", 1_000_000)
    body = b"data: " + b" " * 200_000_000
    for _ in range(layers):
        body = gzip.compress(body, 1)

    async def bomb(scope: Any, _: Any, send: Any) -> None:
        if scope["type"] == "http":
            encoding = ", ".join(["gzip"] * layers)
            headers = [(b"content-type", content_type.encode()), (b"content-encoding", encoding.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    port = free_port()
    before = getrusage(RUSAGE_SELF).ru_maxrss
    async with (
        listen(bomb, port),
        connected(Connection(HttpServer("web", f"http://127.0.0.1:{port}/mcp")), tmp_path) as client,
    ):
        with pytest.raises(McpUnreachableError):
            await client.connection.tools()
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB

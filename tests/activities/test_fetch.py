"""Against a real server on the loopback interface, which the tool may reach only where a test allows it."""

import asyncio
import gzip
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from perdure.activities.storage.workspace import Workspace
from perdure.activities.tools import fetch as html
from perdure.activities.tools.fetch import FetchTool, read_webpage
from perdure.activities.tools.interface import Tool
from perdure.contracts.tool import Effect, ToolKind, ToolOutcome
from tests.activities.calls import error_of, new_context, transient_error
from tests.ports import free_port
from tests.waiting import PATIENCE

PAGE = """<!doctype html><html><head><title> A  page
 &amp; more</title><style>p{}</style><script>alert(1)</script></head><body>
<h1>Heading</h1><noscript>enable it</noscript><svg><title>icon</title></svg><template>t</template>
<p>Some <b>bold</b> snake_case text, <a href="../other?x=1">a link</a>,
<a href="javascript:alert(1)">no link</a>.</p>
<ul><li>one</li><li>two</li></ul>
<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td colspan="1000">2</td></tr></table>
<img src="/i.png" alt="a drawing"><img src="/pixel.gif"><img src="data:image/png;base64,AAAA" alt="inline">
<pre>
x = 1
</pre></body></html>"""


class Server(ThreadingHTTPServer):
    """`hold` keeps the slow pages open until the test is over; `seen` has the headers of each request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hold = threading.Event()
        self.seen: list[dict[str, str]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is what several tests are about."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.seen.append({"path": self.path, **{key.lower(): value for key, value in self.headers.items()}})
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        getattr(self, f"on_{parts.path.strip('/').replace('/', '_')}")(query)

    def log_message(self, *args: object) -> None:
        """The tests' output is theirs."""

    def answer(self, body: bytes, content_type: str = "text/plain", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        if content_type:
            self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def on_docs_page(self, query: dict[str, str]) -> None:
        self.answer(PAGE.encode(), "text/html; charset=utf-8")

    def on_tangled(self, query: dict[str, str]) -> None:
        self.answer(b"<!--" * 500_000, "text/html")

    def on_text(self, query: dict[str, str]) -> None:
        self.answer(query.get("body", "hello").encode(), query.get("type", "text/plain"))

    def on_status(self, query: dict[str, str]) -> None:
        headers = {"retry_after": query["after"]} if "after" in query else {}
        self.answer(b"no", status=int(query["code"]), **headers)

    def on_to(self, query: dict[str, str]) -> None:
        self.answer(b"", status=int(query.get("code", "302")), location=query["url"])

    def on_image(self, query: dict[str, str]) -> None:
        self.answer(b"\x89PNG\0\0" * 1000, "image/png")

    def on_endless(self, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/plain")
        self.end_headers()
        while not self.server.hold.is_set():
            self.wfile.write(b"more " * 10_000)

    def on_bomb(self, query: dict[str, str]) -> None:
        packed = gzip.compress(b"0" * (64 << 20))
        for _ in range(int(query.get("layers", "1")) - 1):
            packed = gzip.compress(packed)
        self.answer(packed, content_encoding=query.get("encoding", "gzip"))

    def on_packed(self, query: dict[str, str]) -> None:
        self.answer(gzip.compress(b"unpacked"), content_encoding="gzip")

    def on_unpackable(self, query: dict[str, str]) -> None:
        self.answer(b"not gzip at all", content_encoding="gzip")

    def on_declared_huge(self, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("content-length", str(10**12))
        self.end_headers()

    def on_silent(self, query: dict[str, str]) -> None:
        self.server.hold.wait(20)

    def on_trickle(self, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/plain")
        self.end_headers()
        while not self.server.hold.wait(0.02):
            self.wfile.write(b".")

    def on_cut(self, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("content-length", "1000")
        self.end_headers()
        self.wfile.write(b"short")


@contextmanager
def serve() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.hold.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    with serve() as server:
        yield server


class Fetch:
    """Fetches a path of the server, or any URL, by a tool that may reach the server and what else a test names."""

    def __init__(self, server: Server, workspace: Path) -> None:
        self.server = server
        self.context = new_context(Workspace(workspace))

    async def __call__(self, path: str, allowed: Iterable[str] | None = None, **options: Any) -> ToolOutcome:
        tool = FetchTool(frozenset((self.server.address,) if allowed is None else allowed), **options)
        url = self.server.url + path if path.startswith("/") else path
        outcome = await tool.run({"url": url}, self.context)
        assert outcome.error is None or outcome.error.message.isprintable()
        return outcome

    async def is_blocked(self, path: str, *words: str, **options: Any) -> bool:
        error = error_of(await self(path, **options))
        return error.kind == "blocked" and all(word in error.message for word in words)


@pytest.fixture
def fetch(server: Server, tmp_path: Path) -> Fetch:
    return Fetch(server, tmp_path)


def resolving(**table: list[str]) -> Callable[[str, int], Awaitable[list[str]]]:
    """A resolver that knows these names, with `_` for the dot."""

    async def resolve(host: str, port: int) -> list[str]:
        return table[host.replace(".", "_")]

    return resolve


async def resolve_nothing(host: str, port: int) -> list[str]:
    raise AssertionError("must not even be resolved")


def test_the_tool_only_looks_and_says_so() -> None:
    tool: Tool = FetchTool(frozenset())
    assert tool.route.name == tool.schema.name == "fetch"
    assert (tool.route.kind, tool.route.effect) == (ToolKind.native, Effect.read)
    assert tool.route.timeout == timedelta(seconds=30)


# What comes back


async def test_html_comes_back_as_markdown_with_absolute_links(fetch: Fetch, server: Server) -> None:
    head, _, text = (await fetch("/docs/page")).result.partition("\n\n")
    assert head.splitlines() == [
        f"url: {server.url}/docs/page",
        "status: 200 OK",
        "content-type: text/html; charset=utf-8",
        "title: A page & more",
    ]
    assert "# Heading" in text
    assert f"**bold** snake_case text, [a link]({server.url}/other?x=1)" in text
    assert "- one\n- two" in text
    assert "| a | b |\n| --- | --- |\n| 1 | 2 |\n" in text
    assert f"![a drawing]({server.url}/i.png)" in text
    assert f"![]({server.url}/pixel.gif)" in text
    assert "inline" in text
    assert "```\nx = 1\n```" in text
    for unread in ("alert", "p{}", "enable it", "icon", "base64", "javascript:"):
        assert unread not in text


@pytest.mark.parametrize("content_type", ["text/plain", "application/json", "application/ld+json", "text/markdown"])
async def test_other_text_comes_back_as_it_is(fetch: Fetch, content_type: str) -> None:
    outcome = await fetch(f"/text?body=%7B%22a%22:%20%22_x_%22%7D&type={content_type.replace('+', '%2B')}")
    assert outcome.status == "ok"
    assert f"content-type: {content_type}" in outcome.result
    assert outcome.result.endswith('\n\n{"a": "_x_"}')


async def test_binary_content_is_described_not_shown(fetch: Fetch) -> None:
    outcome = await fetch("/image")
    assert outcome.status == "ok"
    assert outcome.result.endswith("\ncontent-type: image/png\n\n[not text: 6,000 bytes, not shown]")


async def test_packed_text_is_unpacked(fetch: Fetch) -> None:
    assert (await fetch("/packed")).result.endswith("\n\nunpacked")
    assert error_of(await fetch("/unpackable")).kind == "http_error"


async def test_markup_that_takes_too_long_to_read_is_an_error_for_the_model(
    fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_briefly(body: bytes, content_type: str, url: str, patience: timedelta) -> html.Webpage:
        assert patience == timedelta(seconds=10)  # a third of the call's time
        return read_webpage(body, content_type, url, timedelta(seconds=0.3))

    monkeypatch.setattr(html, "read_webpage", read_briefly)
    assert error_of(await fetch("/tangled")).kind == "too_large"


# What ends a fetch


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (404, "not_found", "404 Not Found: "),
        (410, "not_found", "410 Gone: "),
        (403, "http_error", "403 Forbidden: "),
        (400, "http_error", "400 Bad Request: "),
        (304, "http_error", "304 Not Modified: "),
    ],
)
async def test_an_error_that_a_retry_does_not_help_goes_to_the_model(
    fetch: Fetch, server: Server, code: int, kind: str, message: str
) -> None:
    path = f"/status?code={code}"
    error = error_of(await fetch(path))
    assert (error.kind, error.message) == (kind, f"{message}{server.url}{path}")


@pytest.mark.parametrize("code", [408, 425, 429, 500, 502, 503, 504, 529])
async def test_an_error_that_a_retry_may_help_is_raised(fetch: Fetch, code: int) -> None:
    failure = await transient_error(fetch(f"/status?code={code}"))
    assert failure.kind == "http_error"
    assert failure.message.startswith(str(code))
    assert failure.retry_after is None


async def test_the_delay_a_server_asks_for_is_handed_on(fetch: Fetch) -> None:
    assert (await transient_error(fetch("/status?code=429&after=7"))).retry_after == 7.0
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=50), usegmt=True).replace(" ", "%20")
    delay = (await transient_error(fetch(f"/status?code=503&after={date}"))).retry_after
    assert delay is not None
    assert 20 < delay <= 50


@pytest.mark.parametrize("after", ["soon", "nan", "Mon,%2099%20Jan%2099999%2000:00:00%20GMT"])
async def test_an_invalid_delay_is_ignored(fetch: Fetch, after: str) -> None:
    assert (await transient_error(fetch(f"/status?code=503&after={after}"))).retry_after is None


@pytest.mark.parametrize("path", ["/endless", "/bomb", "/declared_huge"])
async def test_a_page_over_the_cap_is_cut_off_and_the_cap_named(fetch: Fetch, path: str) -> None:
    error = error_of(await fetch(path))
    assert error.kind == "too_large"
    assert "5,242,880 bytes" in error.message


async def test_the_cap_counts_what_is_unpacked_and_stops_there(fetch: Fetch) -> None:
    assert (await fetch(f"/text?body={'x' * 1000}", max_bytes=1000)).status == "ok"
    for path in (f"/text?body={'x' * 1001}", "/bomb"):
        assert error_of(await fetch(path, max_bytes=1000)).kind == "too_large"


@pytest.mark.parametrize("encoding", ["gzip,%20gzip", "br", "zstd"])
async def test_an_encoding_that_was_not_asked_for_is_not_unpacked(fetch: Fetch, encoding: str) -> None:
    assert error_of(await fetch(f"/bomb?layers=2&encoding={encoding}")).kind == "http_error"


@pytest.mark.parametrize("path", ["/silent", "/trickle"])
async def test_a_slow_server_cannot_outlast_the_wall_clock(fetch: Fetch, path: str) -> None:
    failure = await transient_error(asyncio.wait_for(fetch(path, timeout=timedelta(seconds=0.3)), PATIENCE))
    assert failure.kind == "timeout"
    assert "0.3 s" in failure.message


async def test_a_connection_that_breaks_or_is_refused_may_be_retried(fetch: Fetch) -> None:
    address = f"127.0.0.1:{free_port()}"
    for call in (fetch("/cut"), fetch(f"http://{address}/", allowed=[address])):
        assert (await transient_error(call)).kind == "unreachable"


async def test_a_name_that_does_not_resolve_may_be_retried(fetch: Fetch) -> None:
    async def resolve_no_name(host: str, port: int) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    failure = await transient_error(fetch("http://no.such.name/", resolver=resolve_no_name))
    assert failure.kind == "unreachable"
    assert "no.such.name does not resolve (Name or service not known)" in failure.message


# What is blocked


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "LOCALHOST.",
        "[::1]",
        "[::]",
        "0.0.0.0",
        "0",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "127.0.0.1.",
        "127。0。0。1",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[fe80::1%25lo]",
        "①②⑦.⓪.⓪.①",
    ],
)
async def test_this_machine_is_not_reached_however_it_is_spelled(fetch: Fetch, server: Server, host: str) -> None:
    assert await fetch.is_blocked(f"http://{host}:{server.server_port}/text", allowed=())
    assert server.seen == []


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.com/",
        "gopher://example.com/",
        "data:text/plain,x",
        "javascript:alert(1)",
        "http:/x",
        "http:///x",
        "http:x",
        "\\\\host\\share",
        "http:\\\\example.com",
        "http://example.com\\@127.0.0.1/",
        "//example.com/",
        "example.com",
        "",
        "http://",
        "http://a b/",
        "http://a\nb/",
        "http://example.com:0/",
        "http://example.com:99999/",
        "http://[::1",
        "x" * 100_000,
    ],
    ids=ascii,
)
async def test_what_is_not_plainly_http_is_blocked(fetch: Fetch, url: str) -> None:
    error = error_of(await FetchTool(frozenset(), resolver=resolve_nothing).run({"url": url}, fetch.context))
    assert error.kind == "blocked"
    assert len(error.message) < 1000


async def test_a_user_name_in_the_url_is_refused_and_not_repeated(fetch: Fetch, server: Server) -> None:
    for path in (f"http://me:hunter2@{server.address}/", f"/to?url=http://me:hunter2@{server.address}/"):
        assert await fetch.is_blocked(path, "URLs with a user name")
        assert path.startswith("/") or not await fetch.is_blocked(path, "hunter2")


async def test_one_private_address_among_public_ones_blocks_the_name(fetch: Fetch) -> None:
    resolver = resolving(two_faced=["93.184.216.34", "10.0.0.1"])
    words = "two.faced is at 10.0.0.1, which is not a public address"
    assert await fetch.is_blocked("http://two.faced/", words, resolver=resolver)


@pytest.mark.parametrize("port", [443, 80])
async def test_a_public_address_of_this_machine_is_not_reached_by_its_name(
    fetch: Fetch, monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    """What listens there is ours: the Temporal server, its Web UI, a codec server, the gateway."""
    monkeypatch.setattr("perdure.activities.http.is_own", lambda address: str(address) == "93.184.216.34")
    resolver = resolving(runner_test=["93.184.216.34"])
    assert await fetch.is_blocked(f"http://runner.test:{port}/", "runner.test is at 93.184.216.34", resolver=resolver)


async def test_the_address_that_was_checked_is_the_one_connected_to(fetch: Fetch, server: Server) -> None:
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.99"]

    url = f"http://inside.test:{server.server_port}/text"
    assert (await fetch(url, allowed=["inside.test"], resolver=rebinding)).result.endswith("hello")
    assert asked == ["inside.test"]
    assert server.seen[0]["host"] == f"inside.test:{server.server_port}"


async def test_the_second_address_is_tried_when_the_first_does_not_answer(fetch: Fetch, server: Server) -> None:
    url, resolver = f"http://inside.test:{server.server_port}/text", resolving(inside_test=["127.0.0.99", "127.0.0.1"])
    assert (await fetch(url, allowed=["inside.test"], resolver=resolver)).status == "ok"


async def test_tls_asks_for_the_name_not_the_address(fetch: Fetch) -> None:
    hello: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello.put_nowait(await reader.read(4096))
        writer.close()

    listener = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    resolver = resolving(inside_test=["127.0.0.1"])
    async with listener:
        await transient_error(fetch(f"https://inside.test:{port}/", allowed=["inside.test"], resolver=resolver))
    assert b"inside.test" in await hello.get()


async def test_an_allowed_host_is_allowed_by_name_and_port(fetch: Fetch, server: Server) -> None:
    for allowed in (server.address, "127.0.0.1"):
        assert (await fetch("/text", allowed=[allowed])).status == "ok"
    for other in ("localhost", "127.0.0.1:1", f"127.0.0.2:{server.server_port}"):
        assert await fetch.is_blocked("/text", allowed=[other])


async def test_proxies_of_the_environment_are_ignored(fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await fetch("/text")).status == "ok"


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "168.63.129.16",
        "100.100.100.200",
        "[fd00:ec2::254]",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "2852039166",
        "metadata.google.internal",
        "Metadata.Google.Internal.",
    ],
)
async def test_metadata_services_stay_blocked_even_where_allowed(fetch: Fetch, host: str) -> None:
    bare = host.strip("[]").lower()
    allowed = (bare, bare.rstrip("."), f"{host.lower()}:80")
    assert await fetch.is_blocked(f"http://{host}/latest/meta-data", "metadata", allowed=allowed)


# Redirects


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_redirects_are_followed_and_the_last_url_is_shown(fetch: Fetch, server: Server, code: int) -> None:
    outcome = await fetch(f"/to?code={code}&url=text%23part")
    assert outcome.result.startswith(f"url: {server.url}/text\nstatus: 200 OK\n")


async def test_five_redirects_are_followed_and_not_a_sixth(fetch: Fetch, server: Server) -> None:
    def nested(hops: int) -> str:
        path = "/text"
        for _ in range(hops):
            path = "/to?url=" + path.replace("%", "%25").replace("?", "%3F").replace("&", "%26").replace("=", "%3D")
        return path

    assert (await fetch(nested(5))).status == "ok"
    error = error_of(await fetch(nested(6)))
    assert (error.kind, error.message.startswith("more than 5 redirects")) == ("http_error", True)


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1:{other}/text",
        "http://localhost:{port}/",
        "//[::1]:{port}/",
        "http://10.0.0.1/",
        "http://169.254.169.254/",
        "file:///etc/passwd",
        "ftp://x/",
        "javascript:alert(1)",
        "data:text/plain,x",
    ],
)
async def test_a_redirect_to_what_is_blocked_is_not_taken(fetch: Fetch, server: Server, target: str) -> None:
    where = target.format(port=server.server_port, other=server.server_port + 1)
    assert await fetch.is_blocked(f"/to?url={where}")
    assert len(server.seen) == 1


@pytest.mark.parametrize("target", ["http://other.test:22/", "https://other.test:8443/", "http://inside.test:6379/"])
async def test_a_redirect_to_a_port_that_is_not_allowed_is_not_taken(fetch: Fetch, server: Server, target: str) -> None:
    own = f"inside.test:{server.server_port}"
    resolver = resolving(inside_test=["127.0.0.1"])  # the other one must not even be resolved
    words = f"unless perdure.toml names host:port, not {target}"
    assert await fetch.is_blocked(f"http://{own}/to?url={target}", words, allowed=[own], resolver=resolver)
    assert len(server.seen) == 1


async def test_a_redirect_may_lead_to_a_port_that_is_allowed(fetch: Fetch, server: Server) -> None:
    with serve() as other:
        outcome = await fetch(f"/to?url={other.url}/text", allowed=[server.address, other.address])
    assert outcome.result.endswith("hello")


@pytest.mark.parametrize("target", ["http://[", "http://a..b:x/", "http://[::1%5d/"])
async def test_a_redirect_that_is_no_url_is_an_error_not_a_crash(fetch: Fetch, target: str) -> None:
    assert error_of(await fetch(f"/to?url={target}")).kind in {"http_error", "blocked"}


# Where the project lets it go


@pytest.mark.parametrize(
    ("only", "url"),
    [
        (None, "http://open.test:8080/"),
        (None, "https://open.test:22/"),
        ({"open.test"}, "http://other.test/"),
        ({"open.test"}, "http://sub.open.test/"),
        ({"open.test"}, "http://open.test.evil.test/"),
        ({"open.test"}, "http://open.test:8080/"),
        ({"*.open.test"}, "http://open.test/"),
        ({"*.open.test"}, "http://notopen.test/"),
        ({"open.test:8080"}, "http://open.test/"),
        (set(), "http://open.test/"),
    ],
)
async def test_what_the_project_does_not_list_is_not_even_resolved_and_no_redirect_leads_there(
    fetch: Fetch, server: Server, only: set[str] | None, url: str
) -> None:
    options = {"resolver": resolve_nothing, "only_hosts": None if only is None else frozenset(only)}
    for asked in (url, f"/to?url={url}"):
        assert await fetch.is_blocked(asked, "only ", **options)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("only", "url"),
    [
        (None, "http://open.test/"),
        (None, "https://open.test/"),
        ({"open.test"}, "http://OPEN.test./"),
        ({"*.open.test"}, "http://a.b.open.test/"),
        ({"open.test:8080"}, "http://open.test:8080/"),
        ({"*.open.test:8080"}, "http://a.open.test:8080/"),
    ],
)
async def test_what_the_project_lists_is_fetched(fetch: Fetch, only: set[str] | None, url: str) -> None:
    asked: list[str] = []

    async def resolve_no_name(host: str, port: int) -> list[str]:
        asked.append(host)
        raise OSError("no such name")

    only_hosts = None if only is None else frozenset(only)
    await transient_error(fetch(url, allowed=(), resolver=resolve_no_name, only_hosts=only_hosts))
    assert len(asked) == 1


@pytest.mark.parametrize(
    "host", ["xn--", "xn--a.com", "a.xn--", "a.xn--zzzzzzzz99999.com", "XN--", "www.xn--abc-.com", "xn--" + "9" * 60]
)
async def test_a_host_that_does_not_decode_is_one_error_and_not_tried_again(fetch: Fetch, host: str) -> None:
    for asked in (f"http://{host}/", f"/to?url=http://{host}/"):
        assert await fetch.is_blocked(asked, "not a usable URL")

"""The kinds `http` and `signal` of `perdure.toml`, against a server on loopback."""

import asyncio
import gzip
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import httpx
import pytest

from perdure.activities.storage.workspace import Workspace
from perdure.activities.tools import outside as http_tool
from perdure.activities.tools.interface import CallContext, TransientToolError
from perdure.activities.tools.outcome import ResultBudget
from perdure.activities.tools.outside import HttpTool, SignalTool
from perdure.contracts.agent import ToolSchema
from perdure.contracts.tool import MAX_RESULT_BYTES, Effect, ToolKind, ToolOutcome, ToolRoute
from tests.activities.calls import error_of

SCHEMA = ToolSchema(name="ask", description="Asks.", input_schema={"type": "object"})
Answer = Callable[[], bytes]


def new_route(timeout: float = 5.0, name: str = "ask") -> ToolRoute:
    return ToolRoute(name=name, kind=ToolKind.http, effect=Effect.read, timeout=timedelta(seconds=timeout))


@pytest.fixture
def context(tmp_path: Path) -> CallContext:
    return CallContext(
        run_id="R1",
        step=3,
        idempotency_key="agentic:run:R1:step:3:request",
        requested_at=datetime(2026, 2, 16, 12, tzinfo=UTC),
        workspace=Workspace(tmp_path),
    )


def http_response(status: int, body: str = "", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body.encode())}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


@asynccontextmanager
async def serve(*pieces: bytes, pause: float = 0.0) -> AsyncIterator[tuple[str, list[Any]]]:
    """A server that answers with these pieces, and keeps (request line, headers, body) of what it gets."""
    got: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
        got.append((head[0], headers, json.loads(await reader.readexactly(int(headers["content-length"])))))
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)
        except ConnectionError:
            pass  # the tool has heard enough
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x", got


async def call_http(url: str, context: CallContext, timeout: float = 5.0, **arguments: Any) -> ToolOutcome:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await HttpTool(new_route(timeout), SCHEMA, url, client).run(arguments, context)


async def test_a_key_with_other_letters_goes_percent_encoded_into_the_header(context: CallContext) -> None:
    async with serve(http_response(200, "fine")) as (url, got):
        outcome = await call_http(url, replace(context, run_id="Rü", idempotency_key="agentic:run:Rü:step:3:request"))
    ((_, headers, body),) = got
    assert outcome.result == "fine"
    assert headers["idempotency-key"] == "agentic%3Arun%3AR%C3%BC%3Astep%3A3%3Arequest"
    assert body["dedupe_key"] == "agentic:run:Rü:step:3:request"


async def test_the_request_event_is_posted_with_its_key(context: CallContext) -> None:
    async with serve(http_response(200, "fine")) as (url, got):
        outcome = await call_http(url, context, run_id="forged", q=1)
    ((line, headers, body),) = got
    assert line == "POST /x HTTP/1.1"
    assert (headers["idempotency-key"], headers["content-type"]) == (context.idempotency_key, "application/json")
    assert body["type"] == "agentic.tool_request.ask"
    assert body["payload"]["run_id"] == "R1"
    assert body["payload"]["tool_payload"] == {"run_id": "forged", "q": 1}
    assert outcome == ToolOutcome(result="fine")


@pytest.mark.parametrize(
    ("body", "content_type", "result"),
    [
        ('{"a": [1]}', "application/json", {"a": [1]}),
        ('{"a": 1}', "application/problem+json; charset=utf-8", {"a": 1}),
        ('{"a": ', "application/json", '{"a": '),
        ('"\\ud800"', "application/json", "\ufffd"),
        ('{"a": 1}', "text/plain", '{"a": 1}'),
        ("", "text/plain", ""),
    ],
)
async def test_an_answer_is_json_where_it_says_so_and_is_and_text_otherwise(
    context: CallContext, body: str, content_type: str, result: Any
) -> None:
    async with serve(http_response(200, body, content_type=content_type)) as (url, _):
        assert (await call_http(url, context)).result == result


@pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 502, 503, 504, 529])
async def test_what_may_pass_is_raised(context: CallContext, status: int) -> None:
    async with serve(http_response(status, "busy", retry_after="4")) as (url, _):
        with pytest.raises(TransientToolError, match=f"{status} from ask: busy") as failure:
            await call_http(url, context)
    assert (failure.value.kind, failure.value.retry_after) == ("http_error", 4.0)


@pytest.mark.parametrize("status", [300, 302, 400, 401, 404, 409, 422])
async def test_every_other_answer_is_an_error_for_the_model(context: CallContext, status: int) -> None:
    async with serve(http_response(status, "no " * 5000, location="http://127.0.0.1:1/")) as (url, got):
        outcome = await call_http(url, context)
    assert error_of(outcome).kind == "http_error"
    assert error_of(outcome).message.startswith(f"{status} from ask: no no")
    assert len(error_of(outcome).message) < 2100
    assert len(got) == 1


async def test_a_refused_connection_may_pass(context: CallContext) -> None:
    async with serve() as (url, _):
        pass
    with pytest.raises(TransientToolError) as failure:
        await call_http(url, context)
    assert failure.value.kind == "unreachable"


async def test_a_connection_that_breaks_is_named_although_the_error_has_no_text(context: CallContext) -> None:
    async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with await asyncio.start_server(reset, "127.0.0.1", 0) as server:
        with pytest.raises(TransientToolError, match="ask cannot be reached: the connection broke"):
            await call_http(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x", context)


@pytest.mark.parametrize(
    "pieces", [(b"",), (http_response(200, "x" * 40)[:-30], *[b"x"] * 30)], ids=["silent", "dripping"]
)
async def test_the_timeout_counts_for_the_whole_call(context: CallContext, pieces: tuple[bytes, ...]) -> None:
    async with serve(*pieces, pause=1.0 if len(pieces) == 1 else 0.05) as (url, _):
        with pytest.raises(TransientToolError, match=r"did not answer within 0\.3 s") as failure:
            await call_http(url, context, timeout=0.3)
    assert failure.value.kind == "timeout"


async def test_an_answer_without_end_is_cut_off(context: CallContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_tool, "MAX_RESULT_BYTES", 10_000)
    async with serve(b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * 5000] * 100) as (url, _):
        outcome = await call_http(url, context)
    assert outcome.result == "x" * 10_001  # one too many, by which the call knows that it is not whole


def packed(data: bytes, layers: int) -> bytes:
    for _ in range(layers):
        data = gzip.compress(data)
    return data


def compressed(status: int, body: bytes, encoding: str) -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-encoding: {encoding}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


BOMB = packed(b" " * 150_000_000, 1)
UNREADABLE = "the call was made, but the answer of ask cannot be read: "


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (compressed(200, BOMB, "gzip"), None),
        (compressed(200, packed(BOMB, 1), "gzip, gzip"), UNREADABLE + "the server sent an encoding"),
        (compressed(200, packed(BOMB, 2), "gzip,gzip, gzip"), UNREADABLE + "the server sent an encoding"),
        (compressed(200, b"x", "br"), UNREADABLE + "the server sent an encoding"),
        (compressed(200, b"no gzip", "gzip"), UNREADABLE + "the answer cannot be unpacked"),
        (compressed(200, BOMB[:500], "gzip"), UNREADABLE + "the answer cannot be unpacked: its end"),
        (compressed(400, BOMB, "gzip"), "400 from ask"),
        (compressed(400, packed(BOMB, 1), "gzip, gzip"), "400 from ask: the server sent an encoding"),
    ],
)
async def test_what_unpacks_to_gigabytes_is_never_unpacked(
    context: CallContext, answer: bytes, message: str | None
) -> None:
    before = getrusage(RUSAGE_SELF).ru_maxrss
    async with serve(answer) as (url, got):
        outcome = await call_http(url, context)
    assert got[0][1]["accept-encoding"] == "identity"
    if message is None:
        assert outcome.result == " " * (MAX_RESULT_BYTES + 1)
    else:
        assert error_of(outcome).message.startswith(message)
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB


async def test_a_compressed_answer_is_unpacked(context: CallContext) -> None:
    for size in (0, 10, 64 * 1024, 64 * 1024 + 1, 1_000_000):
        text = "".join(chr(32 + i * i % 90) for i in range(size))
        async with serve(compressed(200, packed(text.encode(), 1), "gzip")) as (url, _):
            assert (await call_http(url, context)).result == text


async def test_few_large_answers_are_read_at_the_same_time(context: CallContext) -> None:
    """The third waits for a share, and small ones do not."""
    budget, large = ResultBudget(shares=1), http_response(200, "x" * 2_000_000)
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def hold(url: str) -> None:
        async with budget.call():
            await call_http(url, context)
            reading.set()
            await go_on.wait()

    async def ask(url: str) -> ToolOutcome:
        async with budget.call():
            return await call_http(url, context)

    async with serve(large) as (url, _), serve(http_response(200, "small")) as (small, _), asyncio.TaskGroup() as tasks:
        tasks.create_task(hold(url))
        await reading.wait()
        second = tasks.create_task(ask(url))
        assert (await ask(small)).result == "small"
        assert not second.done()
        go_on.set()
        assert len((await second).result) == 2_000_000


async def signal(url: str | None, context: CallContext) -> ToolOutcome:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await SignalTool(new_route(), SCHEMA, url, client).run({"q": 1}, context)


async def test_a_signal_tool_hands_the_event_out(context: CallContext) -> None:
    async with serve(http_response(202)) as (url, got):
        assert (await signal(url, replace(context, nonce="5f1d"))).status == "ok"
    assert got[0][2]["dedupe_key"] == context.idempotency_key
    assert got[0][2]["nonce"] == "5f1d"


async def test_a_signal_tool_without_a_url_only_waits(context: CallContext) -> None:
    assert (await signal(None, context)).status == "ok"


async def test_a_request_that_is_not_taken_is_an_error_or_may_be_retried(context: CallContext) -> None:
    async with serve(http_response(404, "nobody here")) as (url, _):
        outcome = await signal(url, context)
    assert error_of(outcome).message == "404 from ask: nobody here"
    async with serve(http_response(503)) as (url, _):
        with pytest.raises(TransientToolError):
            await signal(url, context)

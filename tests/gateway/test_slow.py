"""Clients that send or read too slowly, on a server of the test's own with little patience."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvicorn
from fastapi import APIRouter, FastAPI, Request

import perdure.gateway.routes.health
import perdure.gateway.routes.sse
import perdure.gateway.server
from perdure.activities.security import NO_SECRETS
from perdure.gateway.app import make_app
from perdure.gateway.auth import Caller, CurrentGateway, Gateway, ScopedRoute
from perdure.gateway.problems import ApiError
from perdure.gateway.requests import BoundedBodies
from perdure.gateway.routes.sse import MAX_STREAMS, EventStream, open_event_stream
from perdure.gateway.server import open_listener, serve_gateway
from perdure.gateway.tokens import Tokens
from tests.waiting import until


def app_of(here: Gateway) -> FastAPI:
    app = make_app(here)
    router = APIRouter(route_class=ScopedRoute)

    @router.get("/flood", response_class=EventStream, status_code=200)
    async def flood(here: CurrentGateway, patience: float = 0.5) -> EventStream:
        async def endless() -> AsyncGenerator[bytes]:
            while True:
                await asyncio.sleep(0)  # or it would hold up the loop when its client is gone
                yield b"data: " + b"x" * 65536 + b"\n\n"

        return EventStream(endless(), here, patience)

    @router.post("/read")
    async def read(request: Request) -> dict[str, int]:
        return {"bytes": len(await request.body())}

    @router.get("/breaks")
    async def breaks() -> None:
        raise RuntimeError("words of the bug")

    app.include_router(router)
    return app


@asynccontextmanager
async def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[tuple[Gateway, int]]:
    settings = SimpleNamespace(secrets=NO_SECRETS)
    here = Gateway(SimpleNamespace(settings=settings), Tokens(tmp_path / "tokens.json"))  # type: ignore[arg-type]
    monkeypatch.setattr(perdure.gateway.server, "make_app", app_of)
    monkeypatch.setattr(perdure.gateway.server, "HEAD_PATIENCE", 0.5)
    monkeypatch.setattr("uvicorn.Config", partial(uvicorn.Config, timeout_keep_alive=1))
    patient = BoundedBodies.__init__
    monkeypatch.setattr(BoundedBodies, "__init__", lambda self, app: patient(self, app, patience=0.5))
    with open_listener("127.0.0.1", 0) as listener:
        running = asyncio.create_task(serve_gateway(here, listener))
        try:
            yield here, listener.getsockname()[1]
        finally:
            here.stopping.set()
            await running


async def send(port: int, sent: bytes) -> bytes:
    """All that comes back until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    await writer.drain()
    try:
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


HEAD = b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


async def test_who_sends_no_head_or_half_of_one_is_cut_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with serve(monkeypatch, tmp_path) as (_, port):
        assert await send(port, b"") == b""
        assert await send(port, b"GET /healthz HTTP/1.1\r\nHost:") == b""
        whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        assert (await send(port, whole + b"GET /healthz HT")).count(b"200 OK") == 1


async def test_a_body_that_does_not_come_ends_with_408(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with serve(monkeypatch, tmp_path) as (_, port):
        answer = await send(port, HEAD + b"Content-Length: 10\r\n\r\nhalf")
        assert answer.startswith(b"HTTP/1.1 408")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["status"] == 408


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_body_that_is_too_large_ends_with_413(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_announced: bool
) -> None:
    async with serve(monkeypatch, tmp_path) as (_, port):
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        framed = (
            b"Content-Length: 9999999\r\n\r\n" if is_announced else b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 17
        )
        answer = await send(port, HEAD + framed)
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"application/problem+json" in answer


async def test_two_lengths_of_one_body_end_with_400_and_the_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with serve(monkeypatch, tmp_path) as (_, port):
        framed = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        hidden = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        answer = await send(port, HEAD + framed + hidden)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


async def test_idle_connections_do_not_keep_others_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    monkeypatch.setattr(perdure.gateway.server, "MAX_CONNECTIONS", 5)
    async with serve(monkeypatch, tmp_path) as (here, port):
        monkeypatch.setattr(perdure.gateway.server, "HEAD_PATIENCE", 60)
        with socket.create_connection(("127.0.0.1", port)) as busy:
            busy.sendall(b"GET /flood?patience=60 HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: here.streams == 1)
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
            assert await asyncio.wait_for(idle[0][0].read(), 30) == b""  # the oldest went
            assert b"200 OK" in await send(port, whole)
            assert here.streams == 1
        for _, writer in idle:
            writer.close()


async def test_many_requests_for_readiness_cost_one_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checks = 0

    async def check(_: Any) -> perdure.gateway.routes.health.Readiness:
        nonlocal checks
        checks += 1
        await asyncio.sleep(0)
        return perdure.gateway.routes.health.Readiness(ready=False, temporal=True, worker=False)

    monkeypatch.setattr(perdure.gateway.routes.health, "_check_readiness", check)
    monkeypatch.setattr(perdure.gateway.routes.health, "CHECK_EVERY", 60)
    whole = b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    async with serve(monkeypatch, tmp_path) as (_, port):
        answers = await asyncio.gather(*(send(port, whole) for _ in range(20)))
        monkeypatch.setattr(perdure.gateway.routes.health, "CHECK_EVERY", 0)
        await send(port, whole)
    assert all(answer.startswith(b"HTTP/1.1 503") for answer in answers)
    assert checks == 2


async def test_a_client_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with serve(monkeypatch, tmp_path) as (here, port):
        with socket.create_connection(("127.0.0.1", port)) as idle:
            idle.sendall(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: here.streams == 1)
            await until(lambda: here.streams == 0)
            idle.settimeout(30)

            def last_read() -> bytes:
                last, found = b"", b"-"
                while found:
                    last, found = found, idle.recv(1 << 20)
                return last

            # What the kernel had taken still comes; the stream was not ended, but cut off.
            assert not (await asyncio.to_thread(last_read)).endswith(b"0\r\n\r\n")


async def test_a_bug_is_answered_as_a_problem_without_its_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with serve(monkeypatch, tmp_path) as (_, port):
        answer = await send(port, b"GET /breaks HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500")
    assert b"application/problem+json" in answer
    assert b"words of the bug" not in answer


async def test_one_stream_too_many_is_refused(tmp_path: Path) -> None:
    here = Gateway(SimpleNamespace(), Tokens(tmp_path / "tokens.json"), streams=MAX_STREAMS)  # type: ignore[arg-type]
    with pytest.raises(ApiError) as failure:
        open_event_stream(here, cast(Caller, None), "a", None)
    assert (failure.value.status_code, failure.value.kind) == (429, "too-many-streams")


async def test_a_silent_stream_sends_keep_alives_and_ends_when_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perdure.gateway.routes.sse, "KEEP_ALIVE", 0.01)
    more, stopping = asyncio.Event(), asyncio.Event()

    async def values() -> AsyncGenerator[int]:
        yield 1
        await more.wait()
        yield 2
        await asyncio.Event().wait()

    paced = perdure.gateway.routes.sse.with_keep_alive(values(), stopping)
    assert [await anext(paced) for _ in range(3)] == [1, None, None]
    more.set()
    while (value := await anext(paced)) is None:
        pass
    assert value == 2
    stopping.set()
    assert [each async for each in paced if each is not None] == []

"""The access log: who asked for what, and what came of it; nothing of what was said or shown to get in."""

import asyncio
import stat
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from tests.gateway.conftest import Gateway, make_token
from tests.waiting import until

Json = dict[str, Any]


async def lines(gateway: Gateway, count: int, **fields: Any) -> list[Json]:
    """So many lines of the log that have these fields."""

    def found() -> list[Json]:
        return [line for line in gateway.logged() if all(line.get(name) == value for name, value in fields.items())]

    await until(lambda: len(found()) >= count)
    return found()


async def test_each_request_is_one_line(gateway: Gateway) -> None:
    run_id = await gateway.start()
    await gateway.get(f"/v1/runs/{run_id}?note=secret-of-the-query")  # an unknown parameter
    [line] = await lines(gateway, 1, run_id=run_id)
    assert (line["logger"], line["level"], line["event"]) == ("perdure.gateway.requests", "info", "gateway.request")
    assert (line["method"], line["route"], line["status"]) == ("GET", "/v1/runs/{run_id}", 400)
    assert (line["token"], line["address"]) == ("tester", "127.0.0.1")
    assert 0 <= line["duration_ms"] < 60_000
    assert "secret-of-the-query" not in gateway.log.read_text(encoding="utf-8")
    assert stat.S_IMODE(gateway.log.stat().st_mode) == 0o600


async def test_a_failed_login_says_why_and_never_with_what(gateway: Gateway) -> None:
    run_id = f"of-{uuid4().hex}"
    reader = await asyncio.to_thread(make_token, gateway.project, f"reader-{run_id[:8]}", "runs:read")
    path = f"/v1/runs/{run_id}/cancel"
    for header in ("", "Bearer pdr_stolen-from-somebody", f"Bearer {reader}"):
        await gateway.post(path, {"reason": "words of a body"}, Authorization=header)
    found = await lines(gateway, 3, run_id=run_id)
    assert [line["reason"] for line in found] == ["no_token", "unknown_token", "missing_scope"]
    assert [line["token"] for line in found] == [None, None, f"reader-{run_id[:8]}"]
    assert {(line["level"], line["event"]) for line in found} == {("warning", "gateway.login_failed")}
    await gateway.post("/v1/webhooks/mine", {"type": "x"}, Authorization="")
    assert (await lines(gateway, 1, reason="wrong_signature"))[-1]["route"] == "/v1/webhooks/{name}"
    written = gateway.log.read_text(encoding="utf-8")
    assert not any(said in written for said in ("stolen-from-somebody", reader, "words of a body"))


@pytest.mark.parametrize("hostile", ["a\nb", "a\x1b[2Jb", "a\u202eb", "a\x9bb", "a\u200bb", '"}'])
async def test_hostile_text_stays_one_line_and_is_escaped(gateway: Gateway, hostile: str) -> None:
    mark = uuid4().hex
    await gateway.get(f"/v1/runs/{quote(mark + hostile, safe='')}")

    def found() -> list[str]:
        return [line for line in gateway.log.read_text(encoding="utf-8").split("\n") if mark in line]

    await until(found)
    [line] = found()
    assert all(sign.isprintable() for sign in line)


async def test_probes_and_unknown_addresses_tell_nothing(gateway: Gateway) -> None:
    mark = uuid4().hex
    await gateway.get(f"/v1/{mark}")
    await gateway.get(f"/healthz?{mark}")
    await gateway.get(f"/v1/runs/{mark}")
    await lines(gateway, 1, run_id=mark)
    assert gateway.log.read_text(encoding="utf-8").count(mark) == 1
    assert not any(line.get("route") == "/healthz" for line in gateway.logged())

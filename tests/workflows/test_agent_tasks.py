"""Calls of agents elsewhere: one message and one task each, followed as a task of MCP is; and what is not believed."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure.contracts.tool import Effect, ToolKind, ToolRoute
from perdure.features.a2a_client.connection import AgentConnection
from perdure.features.a2a_client.tool import AgentTool
from perdure.testkit.model_server import calls
from tests.a2a.elsewhere import Elsewhere, elsewhere
from tests.workflows.conftest import MakeWorld, World
from tests.workflows.runs import cancel_run, expect_cancelled, rejection_of
from tests.workflows.script import FINISH, count_replies
from tests.workflows.test_mcp_tasks import events_of, result_in, until_looked


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[Elsewhere]:
    with elsewhere(tmp_path / "counter") as server:
        yield server


@asynccontextmanager
async def asking(
    world: MakeWorld,
    counter: Elsewhere,
    message: str,
    effect: Effect = Effect.once,
    bearer: str = "none",
    **arguments: Any,
) -> AsyncIterator[World]:
    """A world whose model sends the agent one message."""
    await counter.until_up()
    async with httpx.AsyncClient(trust_env=False) as http:
        route = ToolRoute(name="counter", kind=ToolKind.a2a, effect=effect, timeout=timedelta(seconds=20))
        tool = AgentTool(
            route, "Counts.", AgentConnection(counter.url, {"Authorization": f"Bearer {bearer}"}, http, 5.0)
        )
        first = calls(("counter", {"message": message, **arguments}))
        async with world(lambda body: [first, FINISH][count_replies(body)], tool) as it:
            yield it


async def test_a_task_is_followed_to_its_end_and_looks_add_no_event(world: MakeWorld, counter: Elsewhere) -> None:
    async with asking(world, counter, "count it") as it:
        run = await it.start()
        await until_looked(it, run)
        before = await events_of(run)
        state = await it.until_state(run, status="waiting_on_tool")
        await until_looked(it, run, 4)
        assert await events_of(run) == before
        counter.set("end")
        shown = await result_in(it, run)
    assert '"content":"done: count it"' in shown
    [pending] = state["pending"]
    assert pending["task"].startswith("task ")
    assert " of server counter: working, counting; looked at " in pending["task"]
    assert (counter.count("SendMessage"), len(counter.task_files)) == (1, 1)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("chat", '"content":"Hello yourself."'),
        ("fast", '"content":"done: fast"'),
        ("data", '{"content":{"total":3},'),
        ("file", '"name":"sums.csv","path":"artifacts/counter-01.csv"'),
        ("refuse", "counter: no such work here"),
    ],
)
async def test_an_answer_of_any_kind_is_shown_to_the_model(
    world: MakeWorld, counter: Elsewhere, message: str, expected: str
) -> None:
    async with asking(world, counter, message) as it:
        assert expected in await result_in(it, await it.start())
    assert counter.count("SendMessage") == 1


async def test_a_context_is_continued_and_values_are_sent(world: MakeWorld, counter: Elsewhere) -> None:
    async with asking(world, counter, "fast", context_id="c-1", data={"sheet": 3}) as it:
        assert '"context_id":"c-1"' in await result_in(it, await it.start())
    assert counter.log[0]["context"] == "c-1"


async def test_a_question_is_asked_once_and_answered_in_the_task(world: MakeWorld, counter: Elsewhere) -> None:
    async with asking(world, counter, "ask") as it:
        run = await it.start()
        question = (await it.until_state(run, question=True))["question"]
        await it.answer(run, text="blue")
        shown = await result_in(it, run)
    assert question["kind"] == "input"
    assert "The server counter, in `counter ask`, asks\n\nWhich colour?" in question["text"]
    assert "answered blue" in shown
    sent = [entry for entry in counter.log if entry["method"] == "SendMessage"]
    assert [entry["text"] for entry in sent] == ["ask", "blue"]
    assert sent[1]["task"]


async def test_a_choice_takes_its_options_alone(world: MakeWorld, counter: Elsewhere) -> None:
    async with asking(world, counter, "choose") as it:
        run = await it.start()
        await it.until_state(run, question=True)
        assert "expected one of: red, blue" in (await rejection_of(run, "answer", {"text": "green"})).message
        await it.answer(run, text="red")
        assert "answered red" in await result_in(it, run)


@pytest.mark.parametrize(("message", "host"), [("login", "bank.example"), ("approve", "desk.example")])
async def test_a_link_is_for_a_person_and_nothing_is_sent_for_it(
    world: MakeWorld, counter: Elsewhere, message: str, host: str
) -> None:
    async with asking(world, counter, message) as it:
        run = await it.start()
        question = (await it.until_state(run, question=True))["question"]
        counter.set("logged-in")
        await it.answer(run, decision="continue")
        if message == "login":
            assert "answered logged in" in await result_in(it, run)
        else:
            await until_looked(it, run)
            assert not (await it.state(run))["question"], "it is not asked again"
            await cancel_run(run, "signal")
            await expect_cancelled(run)
    assert f"wants you to open a page of {host}" in question["text"]
    assert counter.count("SendMessage") == 1


async def test_a_denied_question_cancels_the_task(world: MakeWorld, counter: Elsewhere) -> None:
    async with asking(world, counter, "ask") as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await it.answer(run, decision="deny")
        assert "ended as canceled" in await result_in(it, run)
    assert counter.count("CancelTask") >= 1


@pytest.mark.parametrize("way", ["signal", "native"])
async def test_a_cancel_reaches_the_agent(world: MakeWorld, counter: Elsewhere, way: str) -> None:
    async with asking(world, counter, "count it") as it:
        run = await it.start()
        await until_looked(it, run)
        await cancel_run(run, way)
        await expect_cancelled(run)
        assert "ended as canceled" in (await it.shown(run))[0]


async def test_a_failed_task_is_an_error_with_its_reason(world: MakeWorld, counter: Elsewhere) -> None:
    async with asking(world, counter, "count it") as it:
        run = await it.start()
        await until_looked(it, run)
        counter.set("fail")
        assert "ended as failed: no funds" in await result_in(it, run)


async def test_a_forgotten_task_is_in_doubt_and_a_person_decides(world: MakeWorld, counter: Elsewhere) -> None:
    async with asking(world, counter, "count it") as it:
        run = await it.start()
        await until_looked(it, run)
        counter.task_files[0].unlink()
        question = (await it.until_state(run, question=True))["question"]
        assert question["kind"] == "resume_unsafe"
        assert "its server does not know it any more" in question["text"]
        counter.set("end")
        await it.answer(run, decision="run_again")
        assert "done: count it" in await result_in(it, run)
    assert len({entry["id"] for entry in counter.log if entry["method"] == "SendMessage"}) == 2


async def test_a_reply_with_the_id_of_another_task_is_refused(world: MakeWorld, counter: Elsewhere) -> None:
    async with asking(world, counter, "swap", Effect.read) as it:
        shown = await result_in(it, await it.start())
    assert "it answered with the task fff" in shown


@pytest.mark.parametrize("effect", [Effect.once, Effect.keyed])
async def test_a_lost_reply_is_found_by_the_context_and_nothing_is_sent_twice(
    world: MakeWorld, counter: Elsewhere, effect: Effect
) -> None:
    counter.set("hold-SendMessage")
    counter.set("end")
    async with asking(world, counter, "count it", effect) as it:
        run = await it.start()
        await it.until(lambda: counter.count("ListTasks") > 0)
        assert "done: count it" in await result_in(it, run)
    assert (counter.count("SendMessage"), len(counter.task_files)) == (1, 1)


async def test_a_lost_reply_of_an_agent_without_lists_is_in_doubt(world: MakeWorld, counter: Elsewhere) -> None:
    counter.set("hold-SendMessage")
    counter.set("no-lists")
    async with asking(world, counter, "count it") as it:
        shown = await result_in(it, await it.start())
    assert "counter: it did not answer within 5 s" in shown
    assert counter.count("SendMessage") == 1


@pytest.mark.parametrize(
    ("setting", "text", "reason"),
    [
        ("token", "secret", "it answered with 401: check headers_env; the call was not made"),
        ("status", "404", "it answered with 404: check the url; the call was not made"),
        ("status", "503", "it answered with 503"),
        ("interface", "https://evil.example/rpc", "its card sends requests to https://evil.example/rpc"),
    ],
)
async def test_an_agent_that_cannot_be_used_is_one_line(
    world: MakeWorld, counter: Elsewhere, setting: str, text: str, reason: str
) -> None:
    await counter.until_up()
    counter.kill()
    counter.set(setting, text)
    counter.start()
    async with asking(world, counter, "fast") as it:
        shown = await result_in(it, await it.start())
    assert reason in shown
    assert counter.count("SendMessage") == 0


async def test_an_agent_that_is_down_is_tried_again(world: MakeWorld, counter: Elsewhere) -> None:
    await counter.until_up()
    async with asking(world, counter, "fast", Effect.keyed) as it:
        counter.kill()
        run = await it.start()
        await it.until_activity(run, lambda found: found.attempt > 1)
        counter.start()
        assert "done: fast" in await result_in(it, run)


async def test_headers_are_sent_and_an_agent_of_0_3_is_understood(world: MakeWorld, counter: Elsewhere) -> None:
    await counter.until_up()
    counter.kill()
    counter.set("token", "secret")
    counter.set("version", "0.3")
    counter.start()
    async with asking(world, counter, "ask", bearer="secret") as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await it.answer(run, text="blue")
        assert "answered blue" in await result_in(it, run)


async def test_two_calls_are_two_tasks(world: MakeWorld, counter: Elsewhere) -> None:
    counter.set("end")
    async with asking(world, counter, "count it") as it:
        first, second = await asyncio.gather(it.start(), it.start())
        await asyncio.gather(result_in(it, first), result_in(it, second))
    assert len({entry["context"] for entry in counter.log if entry["method"] == "SendMessage"}) == 2

"""What an MCP server asks during a call is a question to a person, in both generations of the protocol."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.contracts.tool import Effect
from perdure.features.mcp.activities.config import StdioServer
from perdure.features.mcp.activities.connection import Connection
from perdure.testkit.model_server import calls
from tests.mcp.tasks import ROOT, TaskServer, task_server
from tests.workflows.conftest import MakeWorld
from tests.workflows.runs import expect_cancelled
from tests.workflows.script import FINISH, count_replies
from tests.workflows.test_mcp_tasks import calling, result_in, tool_of, tool_over


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[TaskServer]:
    with task_server(tmp_path / "bank") as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    return tmp_path / "shop"


def shop(folder: Path) -> Connection:
    arguments = ("-m", "tests.mcp.asking", str(folder))
    return Connection(StdioServer("bank", sys.executable, arguments, {"PYTHONPATH": str(ROOT)}, ROOT))


def made(folder: Path) -> list[str]:
    return (folder / "calls").read_text().split()


@pytest.mark.parametrize(("name", "effect"), [("confirm", Effect.read), ("confirm_once", Effect.once)])
async def test_a_call_whose_server_asks_first_is_made_again_with_the_answer(
    world: MakeWorld, bank: TaskServer, name: str, effect: Effect
) -> None:
    tool = await tool_of(bank, name, effect)
    async with world(calling(name), tool) as it:
        run = await it.start()
        question = await it.answer(run, text="yes")
        assert await result_in(it, run) == "done rent"
    assert "asks\n\nReally?" in question["text"]
    calls_of, answers = (
        [entry for entry in bank.log if entry["method"] == method] for method in ("tools/call", "answer")
    )
    assert len({entry["key"] for entry in calls_of}) == 1
    assert len(calls_of) == 2
    assert [(entry["action"], entry["content"]) for entry in answers] == [("accept", {"ok": True})]
    assert (bank.folder / "acts").read_text() == "act\n"
    await tool.connection.close()


async def test_a_person_who_declines_tells_the_server_so(world: MakeWorld, bank: TaskServer) -> None:
    tool = await tool_of(bank, "confirm_once", Effect.once)
    async with world(calling("confirm_once"), tool) as it:
        run = await it.start()
        await it.answer(run, decision="deny", text="not today")
        await result_in(it, run)
    assert [entry["action"] for entry in bank.log if entry["method"] == "answer"] == ["decline"]
    await tool.connection.close()


async def test_a_page_that_is_reported_as_opened_too_early_is_asked_for_again(
    world: MakeWorld, bank: TaskServer
) -> None:
    tool = await tool_of(bank, "link", Effect.read)
    async with world(calling("link"), tool) as it:
        run = await it.start()
        first = await it.answer(run, decision="continue")
        await it.until_question(run, "q2")
        assert bank.count("tools/call") == 2  # each round waits for a person
        bank.set("opened")
        second = await it.answer(run, decision="continue")
        assert await result_in(it, run) == "done rent"
    for question in (first, second):
        assert "wants you to open a page of bank.example" in question["text"]
        assert "https://bank.example/link/1" in question["text"]
    assert bank.count("tools/call") == 3
    await tool.connection.close()


async def test_a_state_that_the_server_does_not_take_any_more_is_left_out_and_it_asks_again(
    world: MakeWorld, bank: TaskServer
) -> None:
    tool = await tool_of(bank, "confirm_once", Effect.once)
    async with world(calling("confirm_once"), tool) as it:
        run = await it.start()
        await it.until_question(run, "q1")
        bank.kill()
        (bank.folder / "key").write_text("n" * 32)
        bank.start()
        await bank.until_up()
        await it.answer(run, text="yes")
        await it.until_question(run, "q2")
        await it.answer(run, text="yes")
        assert await result_in(it, run) == "done rent"
    assert (bank.folder / "acts").read_text() == "act\n"
    await tool.connection.close()


async def test_a_cancel_while_people_are_asked_makes_no_further_call(world: MakeWorld, bank: TaskServer) -> None:
    tool = await tool_of(bank, "confirm_once", Effect.once)
    async with world(calling("confirm_once"), tool) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await run.signal("cancel")
        await expect_cancelled(run)
        assert "in_doubt" not in (await it.shown(run))[0]
    assert bank.count("tools/call") == 1
    await tool.connection.close()


async def test_questions_within_an_open_call_are_asked_and_the_call_is_made_again(
    world: MakeWorld, folder: Path
) -> None:
    tool = await tool_over(shop(folder), "ask", Effect.read)
    async with world(calling("ask"), tool) as it:
        run = await it.start()
        first = await it.answer(run, text="large")
        await it.until_question(run, "q2")
        second = await it.answer(run, text="name: Ada")
        assert await result_in(it, run) == "large for Ada"
    assert "- size (small or large, required)" in first["text"]
    assert "Whose?" in second["text"]
    assert made(folder) == ["ask"] * 3
    await tool.connection.close()


async def test_a_once_call_is_not_made_again_for_a_question_within_it(world: MakeWorld, folder: Path) -> None:
    tool = await tool_over(shop(folder), "order", Effect.once)
    async with world(calling("order"), tool) as it:
        run = await it.start()
        shown = await result_in(it, run)
    assert "ordered: cancel" in shown
    assert "a call that may not be repeated cannot wait for a person: Which size?" in shown
    assert made(folder) == ["order"]
    await tool.connection.close()


async def test_a_question_that_may_be_of_several_open_calls_is_answered_with_cancel(
    world: MakeWorld, folder: Path
) -> None:
    connection = shop(folder)
    tools = [await tool_over(connection, name, Effect.read) for name in ("idle", "ask")]
    both = calls(("bank__idle", {}), ("bank__ask", {}))
    async with world(lambda body: [both, FINISH][count_replies(body)], *tools) as it:
        run = await it.start()
        await it.until(lambda: (folder / "calls").exists() and made(folder).count("ask") == 1)
        (folder / "end").write_text("")
        await run.result()
        shown = (await it.shown(run))[1]
    assert "no size: cancel" in shown
    assert "while several calls were open" in shown
    await connection.close()


@pytest.mark.parametrize("decision", ["continue", "deny"])
async def test_a_page_that_a_server_of_2025_wants_opened_first_is_a_question(
    world: MakeWorld, folder: Path, decision: str
) -> None:
    tool = await tool_over(shop(folder), "page", Effect.read)
    async with world(calling("page"), tool) as it:
        run = await it.start()
        question = (await it.until_state(run, question=True))["question"]
        (folder / "opened").write_text("")
        await it.answer(run, decision=decision)
        shown = await result_in(it, run)
    assert "wants you to open a page of bank.example\n\nAllow it" in question["text"]
    denied = "denied: a person declined to open https://bank.example/consent; the call was not completed"
    assert shown == ("12" if decision == "continue" else denied)
    assert made(folder) == ["page"] * (2 if decision == "continue" else 1)
    await tool.connection.close()

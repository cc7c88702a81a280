"""Calls that an MCP server makes tasks: one `tools/call`, looks without events, questions to people, cancels, doubt."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from perdure.activities.storage.workspace import folder_name
from perdure.client.run_events import ActivityRetrying, RunEvent, ToolCallFinished, ToolCallWaiting
from perdure.client.watch import Watch
from perdure.contracts.tool import Effect, ToolKind, ToolRoute
from perdure.features.mcp.activities.config import HttpServer, StdioServer
from perdure.features.mcp.activities.connection import Connection
from perdure.features.mcp.activities.tool import McpTool
from perdure.features.mcp_server.tools import RunTools
from perdure.session import Session
from perdure.settings import load_settings
from perdure.testkit.model_server import calls
from tests.mcp.tasks import ROOT, TaskServer, task_server
from tests.workflows.conftest import MakeWorld, Run, World, connect_encrypted
from tests.workflows.runs import cancel_run, expect_cancelled, printed_run, rejection_of, trace_events
from tests.workflows.script import FINISH, count_replies, tool_results
from tests.workflows.test_candidate_replay import replayed
from tests.workflows.test_export import export_run

CHECK = "check_task"


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[TaskServer]:
    with task_server(tmp_path / "bank") as server:
        yield server


async def tool_of(bank: TaskServer, name: str, effect: Effect) -> McpTool:
    await bank.until_up()
    return await tool_over(Connection(HttpServer("bank", bank.url)), name, effect)


async def tool_over(connection: Connection, name: str, effect: Effect) -> McpTool:
    pins = await connection.tools()
    route = ToolRoute(name=f"bank__{name}", kind=ToolKind.mcp, effect=effect)
    return McpTool(route, name, pins[name], connection)


def calling(name: str) -> Any:
    first = calls((f"bank__{name}", {"what": "rent"}))
    return lambda body: [first, FINISH][count_replies(body)]


async def until_looked(it: World, run: Run, times: int = 2) -> None:
    await it.until_activity(run, lambda found: found.activity_type.name == CHECK and found.attempt > times)


async def events_of(run: Run) -> list["EventType.ValueType"]:
    return [event.event_type async for event in run.fetch_history_events()]


async def result_in(it: World, run: Run) -> str:
    """What the model was shown of the call, at the end of the run."""
    await asyncio.wait_for(run.result(), 60)
    assert await it.failed_tasks(run) == 0
    return (await it.shown(run))[0]


async def watched(it: World, run: Run, *, follow: bool = False) -> list[RunEvent]:
    return [event async for event in Watch(it.client, run.id.removeprefix("run:"), follow=follow).events()]


async def test_a_task_is_followed_to_its_end_and_looks_add_no_event(world: MakeWorld, bank: TaskServer) -> None:
    tool = await tool_of(bank, "pay", Effect.once)
    async with world(calling("pay"), tool) as it:
        run = await it.start()
        await until_looked(it, run)
        before = await events_of(run)
        state = await it.until_state(run, status="waiting_on_tool")
        await until_looked(it, run, 4)
        assert await events_of(run) == before
        bank.set("end")
        assert await result_in(it, run) == "paid"
        [line] = trace_events(it.project.workspaces / folder_name(run.id.removeprefix("run:")), "tool")
    assert (line["step"], line["tool"], line["status"]) == (1, "bank__pay", "ok")
    [pending] = state["pending"]
    task = bank.tasks[0]["taskId"]
    assert pending["task"].startswith(f"task {task} of server bank: working, paying; looked at ")
    assert ", expires 2" in pending["task"]
    assert bank.count("tools/call") == 1
    await tool.connection.close()


async def test_every_reader_shows_the_task_and_no_retry_of_a_look(world: MakeWorld, bank: TaskServer) -> None:
    tool = await tool_of(bank, "pay", Effect.once)
    async with world(calling("pay"), tool) as it:
        run = await it.start()
        following = asyncio.create_task(watched(it, run, follow=True))
        await until_looked(it, run, 4)
        lines = await printed_run(it, run, 400)
        row = (await run.describe()).typed_search_attributes
        bank.set("end")
        await result_in(it, run)
        live, replayed = await following, await watched(it, run)
    task = f"task {bank.tasks[0]['taskId']} of server bank"
    assert f"{task}: working, paying; looked at " in lines
    assert task in [pair.value for pair in row if pair.key.name == "WaitingFor"]
    assert [pair.value for pair in row if pair.key.name == "PendingTools"] == [["bank__pay:1"]]
    for events in (live, replayed):
        assert not any(isinstance(event, ActivityRetrying) for event in events)
        [finished] = [event for event in events if isinstance(event, ToolCallFinished) and event.call.step == 1]
        assert finished.outcome.result == "paid"
    [waiting] = [event for event in replayed if isinstance(event, ToolCallWaiting)]
    assert (waiting.step, waiting.tool) == (1, "bank__pay")
    assert len([event for event in live if isinstance(event, ToolCallWaiting)]) <= 2  # not one for each look
    await tool.connection.close()


async def test_what_a_task_asks_is_a_question_that_is_asked_once(world: MakeWorld, bank: TaskServer) -> None:
    tool = await tool_of(bank, "ask_once", Effect.once)
    async with world(calling("ask_once"), tool) as it:
        run = await it.start()
        question = (await it.until_state(run, question=True))["question"]
        for text, reason in (
            ("perhaps", "ok: expected yes or no"),
            ('{"ok": true, "x": 1}', "no field 'x'"),
            ("{", "no JSON"),
        ):
            assert reason in (await rejection_of(run, "answer", {"text": text})).message
        assert "is missing: ok" in (await rejection_of(run, "answer", {"decision": "continue"})).message
        assert "takes one of: continue, deny" in (await rejection_of(run, "answer", {"decision": "approve"})).message
        await it.answer(run, text="ok: yes")
        shown = await result_in(it, run)
    assert question["kind"] == "input"
    assert question["form"]["required"] == ["ok"]
    assert "The server bank, in `bank__ask_once rent`, asks" in question["text"]
    assert "Publish?" in question["text"]
    assert "- ok (yes or no, required)" in question["text"]
    assert '"action": "accept"' in shown
    assert '"ok": true' in shown
    assert (bank.count("tools/call"), bank.count("tasks/update")) == (1, 1)
    await tool.connection.close()


async def test_a_link_is_shown_with_its_host_and_is_not_opened(world: MakeWorld, bank: TaskServer) -> None:
    tool = await tool_of(bank, "visit", Effect.read)
    async with world(calling("visit"), tool) as it:
        run = await it.start()
        question = (await it.until_state(run, question=True))["question"]
        assert "takes no text" in (await rejection_of(run, "answer", {"text": "done"})).message
        await it.answer(run, decision="continue")
        shown = await result_in(it, run)
    assert "wants you to open a page of e.example" in question["text"]
    assert question["text"].index("e.example") < question["text"].index("https://e.example/1")
    assert "form" not in question
    assert '{"action": "accept"}' in shown
    await tool.connection.close()


@pytest.mark.parametrize("decision", ["deny", "continue"])
async def test_a_task_that_wants_sampling_is_shown_to_a_person_who_can_cancel_it(
    world: MakeWorld, bank: TaskServer, decision: str
) -> None:
    tool = await tool_of(bank, "sample", Effect.read)
    async with world(calling("sample"), tool) as it:
        run = await it.start()
        question = (await it.until_state(run, question=True))["question"]
        assert "it asks for sampling/createMessage" in question["text"]
        await it.answer(run, decision=decision)
        if decision == "continue":
            await until_looked(it, run)
            assert not (await it.state(run))["question"]
            await cancel_run(run, "signal")
            await expect_cancelled(run)
        else:
            assert "cancelled" in await result_in(it, run)
    assert (bank.count("tasks/cancel") > 0, bank.count("tasks/update")) == (True, 0)
    await tool.connection.close()


@pytest.mark.parametrize("way", ["signal", "native"])
async def test_a_cancel_reaches_the_server(world: MakeWorld, bank: TaskServer, way: str) -> None:
    tool = await tool_of(bank, "pay", Effect.once)
    async with world(calling("pay"), tool) as it:
        run = await it.start()
        await until_looked(it, run)
        await cancel_run(run, way)
        await expect_cancelled(run)
        [result] = [event for event in await watched(it, run) if isinstance(event, ToolCallFinished)]
        assert result.outcome.error is not None
        assert "cancelled" in result.outcome.error.message
    assert [task["status"] for task in bank.tasks] == ["cancelled"]
    assert bank.count("tools/call") == 1
    await tool.connection.close()


async def test_a_cancel_while_people_are_asked_cancels_the_task(world: MakeWorld, bank: TaskServer) -> None:
    tool = await tool_of(bank, "ask", Effect.read)
    async with world(calling("ask"), tool) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await cancel_run(run, "signal")
        await expect_cancelled(run)
    assert [task["status"] for task in bank.tasks] == ["cancelled"]
    await tool.connection.close()


async def test_an_effect_that_happens_in_spite_of_the_cancel_counts(world: MakeWorld, bank: TaskServer) -> None:
    tool = await tool_of(bank, "pay", Effect.once)
    bank.set("uncancellable")
    async with world(calling("pay"), tool) as it:
        run = await it.start()
        await until_looked(it, run)
        await cancel_run(run, "signal")
        await it.until(lambda: bank.count("tasks/cancel") > 1)  # it is looked at again
        bank.set("end")
        await expect_cancelled(run)
        assert (await it.shown(run))[0] == "paid"
    await tool.connection.close()


async def test_a_forgotten_task_of_a_once_call_is_in_doubt_and_a_person_decides(
    world: MakeWorld, bank: TaskServer
) -> None:
    tool = await tool_of(bank, "pay", Effect.once)
    async with world(calling("pay"), tool) as it:
        run = await it.start()
        await until_looked(it, run)
        task = bank.tasks[0]["taskId"]
        bank.forget()
        question = (await it.until_state(run, question=True))["question"]
        assert question["kind"] == "resume_unsafe"
        known = f"task {task} of server bank: working, paying; its server does not know it any more; looked at "
        assert known in question["text"]
        assert ", expires 2" in question["text"]
        await it.answer(run, decision="run_again")
        await it.until(lambda: bank.count("tools/call") == 2)
        bank.set("end")
        assert await result_in(it, run) == "paid"
    keys = [entry["key"] for entry in bank.log if entry["method"] == "tools/call"]
    assert keys == [keys[0], f"{keys[0]}:2"]
    await tool.connection.close()


@pytest.mark.parametrize("name", ["watch", "pay_keyed"])
async def test_a_forgotten_task_that_may_be_repeated_is_in_doubt_for_the_model(
    world: MakeWorld, bank: TaskServer, name: str
) -> None:
    tool = await tool_of(bank, name, Effect.read if name == "watch" else Effect.keyed)
    async with world(calling(name), tool) as it:
        run = await it.start()
        await until_looked(it, run)
        bank.forget()
        shown = await result_in(it, run)
    assert shown.startswith("in_doubt: task ")
    assert "its server does not know it any more" in shown
    await tool.connection.close()


async def test_a_reply_with_the_id_of_another_task_is_refused(world: MakeWorld, bank: TaskServer) -> None:
    tool = await tool_of(bank, "pay", Effect.once)
    async with world(calling("pay"), tool) as it:
        run = await it.start()
        await until_looked(it, run)
        bank.set("swap")
        question = (await it.until_state(run, question=True))["question"]
        assert f"it answered with the task {'f' * 24} instead" in question["text"]
        await it.answer(run, decision="give_up")
        assert "may have happened" in await result_in(it, run)
    await tool.connection.close()


async def test_a_task_that_fails_is_an_error_for_the_model(world: MakeWorld, bank: TaskServer) -> None:
    tool = await tool_of(bank, "pay", Effect.once)
    bank.set("fail")
    async with world(calling("pay"), tool) as it:
        run = await it.start()
        shown = await result_in(it, run)
    assert shown == "tool_error: bank__pay: no funds (code -32000); the call was sent, and may have happened"
    await tool.connection.close()


async def test_a_read_that_becomes_a_task_within_a_fused_turn_is_made_once(world: MakeWorld, bank: TaskServer) -> None:
    tool = await tool_of(bank, "watch", Effect.read)
    async with world(calling("watch"), tool, fuses=True) as it:
        run = await it.start()
        await until_looked(it, run)
        bank.set("end")
        assert await result_in(it, run) == "paid"
    assert bank.count("tools/call") == 1
    await tool.connection.close()


async def test_two_tasks_of_one_turn_are_followed_at_once(world: MakeWorld, bank: TaskServer) -> None:
    tool, other = await tool_of(bank, "watch", Effect.read), await tool_of(bank, "ask", Effect.read)
    both = calls(("bank__watch", {"what": "rent"}), ("bank__ask", {"what": "rent"}))
    async with world(lambda body: [both, FINISH][count_replies(body)], tool, other) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await until_looked(it, run)
        bank.set("end")
        await it.answer(run, text="yes")
        await run.result()
        shown = await it.shown(run)
    assert shown[0] == "paid"
    assert shown[1].startswith("answered")
    await tool.connection.close()
    await other.connection.close()


async def test_a_server_that_is_down_is_looked_at_until_it_is_back(world: MakeWorld, bank: TaskServer) -> None:
    tool = await tool_of(bank, "pay", Effect.once)
    async with world(calling("pay"), tool) as it:
        run = await it.start()
        await until_looked(it, run)
        bank.kill()
        await it.until_activity(run, lambda found: b"cannot be reached" in found.last_failure.SerializeToString())
        bank.start()
        bank.set("end")
        assert await result_in(it, run) == "paid"
    assert bank.count("tools/call") == 1
    await tool.connection.close()


async def test_a_task_over_stdio_is_followed_too(world: MakeWorld, tmp_path: Path) -> None:
    bank = TaskServer(tmp_path / "bank")
    command, *args = [*bank.command, "0"]
    connection = Connection(StdioServer("bank", command, tuple(args), {"PYTHONPATH": str(ROOT)}, ROOT))
    tool = await tool_over(connection, "ask", Effect.read)
    async with world(calling("ask"), tool) as it:
        run = await it.start()
        await it.answer(run, text="no")
        assert '"ok": false' in await result_in(it, run)
    assert bank.count("tools/call") == 1
    await connection.close()


async def test_an_encrypted_run_shows_its_task_to_those_with_the_key(
    world: MakeWorld, bank: TaskServer, client: Any
) -> None:
    tool = await tool_of(bank, "pay", Effect.once)
    async with world(calling("pay"), tool, server=await connect_encrypted(client)) as it:
        run = await it.start()
        await until_looked(it, run)
        lines = await printed_run(it, run, 400)
        raw = await it.raw_history(run)
        task = bank.tasks[0]["taskId"]
        assert f"task {task} of server bank: working" in lines
        assert task.encode() not in raw
        bank.set("end")
        await result_in(it, run)
    await tool.connection.close()


async def test_the_client_declares_what_it_does_and_nothing_else(world: MakeWorld, bank: TaskServer) -> None:
    tool = await tool_of(bank, "watch", Effect.read)
    bank.set("end")
    async with world(calling("watch"), tool) as it:
        run = await it.start(run_id="declared")
        await result_in(it, run)
    [entry] = [entry for entry in bank.log if entry["method"] == "tools/call"]
    extension: dict[str, Any] = {"io.modelcontextprotocol/tasks": {}}
    assert entry["capabilities"] == {"elicitation": {"form": {}, "url": {}}, "extensions": extension}
    assert entry["key"] == "agentic:run:declared:step:1:request"
    await tool.connection.close()


@pytest.mark.slow
async def test_a_record_and_a_replay_have_the_end_of_the_task_and_call_nothing(
    world: MakeWorld, bank: TaskServer
) -> None:
    tool = await tool_of(bank, "ask_once", Effect.once)
    async with world(calling("ask_once"), tool) as it:
        run, lost = await it.start(), await it.start()
        await it.until_state(lost, question=True)
        await it.answer(run, text="yes")
        shown = await result_in(it, run)
        bank.forget()
        await it.answer(lost, text="yes")
        await it.until_question(lost, "q2")
        await it.answer(lost, decision="use_result", text="paid by hand")
        await result_in(it, lost)
        [call] = [call for call in (await export_run(it, run)).calls if call.tool == "bank__ask_once"]
        replays = [await replayed(it, each, calling("ask_once")) for each in (run, lost)]
    assert call.made[-1].outcome is not None
    assert call.made[-1].outcome["result"] == shown
    for (comparison, requests), result in zip(replays, (shown, "paid by hand"), strict=True):
        assert (comparison.differences, comparison.changed, comparison.unmade) == ((), (), ())
        assert tool_results(requests[-1]) == [result]
    assert bank.count("tools/call") == 2
    await tool.connection.close()


async def test_a_program_that_is_connected_to_us_may_not_answer_in_a_persons_place(
    world: MakeWorld, bank: TaskServer
) -> None:
    tool = await tool_of(bank, "ask", Effect.read)
    async with world(calling("ask"), tool) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        session = Session(it.client, load_settings({}, Path("/")), None)
        name = run.id.removeprefix("run:")
        question = (await RunTools(session, may_approve=False).run_state(name)).question
        allowed = (await RunTools(session, may_approve=True).run_state(name)).question
        await it.answer(run, text="yes")
        await result_in(it, run)
    assert question is not None
    assert allowed is not None
    assert (question.answered_by, allowed.answered_by) == ("a person", "you")
    await tool.connection.close()

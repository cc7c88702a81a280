"""The seven cases that the source demands, by name, "step higher than pending escalates", and how calls are made."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from perdure.client.runs import start_or_get_run, wait_for_run_end
from perdure.contracts.run.events import StartEvent
from perdure.contracts.run.state import RunStatus
from perdure.contracts.tool import Effect, ToolKind
from perdure.testkit.model_server import ScriptedAnswer, calls, says, slow
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.tools import HeldTool

FINISH = calls(("finish", {"outcome": "done", "artifacts": ["artifacts/a.md"]}))
VOTE = calls(("vote", {}))
BUSY = {"status": "error", "result": None, "error": {"kind": "busy", "message": "later", "retryable": True}}


def vote() -> ScriptedTool:
    """Its results come from outside."""
    return ScriptedTool("vote", kind=ToolKind.signal, effect=Effect.once)


@asynccontextmanager
async def awaiting(
    world: MakeWorld, *script: ScriptedAnswer, tool: ScriptedTool | None = None
) -> AsyncIterator[tuple[World, Run]]:
    """A run that waits for the result of its first step."""
    async with world(script, tool or vote()) as it:
        run = await it.start()
        await it.until_pending(run, 1)
        yield it, run


async def test_start_event_creates_run_and_first_tool_request(world: MakeWorld) -> None:
    look = ScriptedTool("look")
    async with world([calls(("look", {"at": "x"}), text="Frame: see.\nPlan: look."), FINISH], look) as it:
        handle = await it.start("see x", run_id=it.queue)
        result = await handle.result()
    assert result == {
        "type": "agent.completed",
        "payload": {
            "run_id": it.queue,
            "goal": "see x",
            "outcome": "done",
            "steps_taken": 1,
            "artifacts": ["artifacts/a.md"],
        },
    }
    arguments, context = look.calls[0]
    assert arguments == {"at": "x"}
    assert context.idempotency_key == f"agentic:run:{it.queue}:step:1:request"


async def test_matching_tool_result_resumes_and_advances_to_next_step(world: MakeWorld) -> None:
    async with awaiting(world, VOTE, VOTE, FINISH) as (it, run):
        state = await it.state(run)
        assert (state["status"], state["completed_steps"]) == ("waiting_on_tool", [])
        assert (state["pending"][0]["step"], state["pending"][0]["tool"]) == (1, "vote")
        await it.send_result(run, 1, "vote", result={"votes": 3})
        await it.until_pending(run, 2)
        assert (await it.state(run))["completed_steps"] == [1]
        await it.send_result(run, 2, "vote")
        assert (await run.result())["payload"]["steps_taken"] == 2
        assert await it.results(run) == [
            ("toolu_0_0", '{"votes":3}'),
            ("toolu_1_0", "done outside"),
            ("toolu_2_0", "finished"),
        ]


async def test_duplicate_tool_result_does_not_double_advance_step(world: MakeWorld) -> None:
    async with awaiting(world, VOTE, VOTE, FINISH) as (it, run):
        for _ in range(3):
            await it.send_result(run, 1, "vote", result="one")
        await it.until_pending(run, 2)
        await it.send_result(run, 1, "vote", result="late")
        state = await it.until_state(run, step=2)
        assert state["completed_steps"] == [1]
        await it.send_result(run, 2, "vote", result="two")
        await run.result()
        assert [text for _, text in await it.results(run)] == ["one", "two", "finished"]


async def test_stale_step_result_is_ignored(world: MakeWorld) -> None:
    async with awaiting(world, VOTE, VOTE, FINISH) as (it, run):
        await it.send_result(run, 1, "vote")
        await it.until_pending(run, 2)
        await it.send_result(run, 1, "vote", result="stale")
        state = await it.state(run)
        assert [p["step"] for p in state["pending"]] == [2]
        await it.send_result(run, 1, "vote")
        state = await it.state(run)
        assert state["ignored"][0].startswith("tool_result: conflict (step 1, tool vote): sha256:")
        assert state["ignored"][1:] == ["tool_result: stale (step 1, tool vote)"]
        await it.send_result(run, 2, "vote")
        assert (await run.result())["type"] == "agent.completed"


async def test_wrong_tool_for_pending_step_escalates(world: MakeWorld) -> None:
    async with awaiting(world, VOTE, FINISH) as (it, run):
        await it.send_result(run, 1, "fetch")
        event = await run.result()
        assert (event["type"], event["payload"]["reason"]) == ("agent.escalated", "wrong_tool")
        assert (await it.state(run))["status"] == "escalated"


async def test_step_higher_than_pending_escalates(world: MakeWorld) -> None:
    async with awaiting(world, VOTE, FINISH) as (it, run):
        await it.send_result(run, 2, "vote")
        event = await run.result()
        assert (event["type"], event["payload"]["reason"]) == ("agent.escalated", "step_never_issued")
        assert await it.results(run) == [("toolu_0_0", "in_doubt: interrupted; may have happened")]


async def test_max_steps_cutoff_escalates_deterministically(world: MakeWorld) -> None:
    look = ScriptedTool("look")
    async with world(lambda _: calls(("look", {})), look) as it:
        runs = [await it.start(context={"max_steps": 3}) for _ in range(3)]
        events = [await run.result() for run in runs]
    assert {(e["type"], e["payload"]["reason"], e["payload"]["steps_taken"]) for e in events} == {
        ("agent.escalated", "step_budget", 3)
    }
    assert len(look.calls) == 9


async def test_completion_emits_exactly_one_agent_completed(world: MakeWorld, tmp_path: Path) -> None:
    async with world([calls(("look", {})), FINISH], ScriptedTool("look")) as it:
        run = await it.start(run_id=it.queue)
        event = await run.result()
        found = await wait_for_run_end(it.client, it.queue)
    assert (found.status, found.event) == (RunStatus.completed, event)
    assert (tmp_path / it.queue / "trace.jsonl").read_text().count("agent.completed") == 1


async def test_foreign_run_id_is_ignored(world: MakeWorld) -> None:
    async with awaiting(world, VOTE, FINISH) as (it, run):
        await it.send_result(run, 99, "other", run_id="somebody-else")
        state = await it.state(run)
        assert (state["status"], len(state["pending"])) == ("waiting_on_tool", 1)
        assert state["ignored"] == ["tool_result: foreign_run (step 99, tool other)"]
        await it.send_result(run, 1, "vote")
        await run.result()


async def test_a_retryable_error_from_outside_is_asked_for_again_under_the_same_step(world: MakeWorld) -> None:
    tool = ScriptedTool("vote", kind=ToolKind.signal, effect=Effect.keyed)
    async with awaiting(world, VOTE, FINISH, tool=tool) as (it, run):
        await it.send_result(run, 1, "vote", **BUSY)
        await it.until(lambda: len(tool.calls) == 2)
        await it.until_pending(run, 1)
        assert (await it.state(run))["pending"][0]["attempt"] == 2
        await it.send_result(run, 1, "vote", result="now")
        assert (await run.result())["payload"]["steps_taken"] == 1
        assert (await it.results(run))[0] == ("toolu_0_0", "now")
    assert {context.idempotency_key for _, context in tool.calls} == {tool.calls[0][1].idempotency_key}


async def test_an_error_from_an_outside_effect_goes_to_the_model_at_once(world: MakeWorld) -> None:
    tool = vote()
    async with awaiting(world, VOTE, FINISH, tool=tool) as (it, run):
        await it.send_result(run, 1, "vote", **BUSY)
        await run.result()
        assert (await it.results(run))[0] == ("toolu_0_0", "busy: later")
    assert len(tool.calls) == 1


async def test_neighbouring_reads_overlap(world: MakeWorld) -> None:
    together = asyncio.Barrier(3)  # opens only when all three are running at once

    async def meet(arguments: Any, context: Any) -> str:
        async with asyncio.timeout(15), together:
            return "met"

    async with world([calls(*[("look", {"n": n}) for n in range(3)]), FINISH], ScriptedTool("look", meet)) as it:
        run = await it.run_to_end()
        assert [text for _, text in await it.results(run)] == ["met", "met", "met", "finished"]


async def test_effects_run_one_after_the_other_in_the_models_order(world: MakeWorld) -> None:
    running: list[int] = []
    seen: list[tuple[int, list[int]]] = []

    async def note(arguments: Any, context: Any) -> str:
        running.append(arguments["n"])
        await asyncio.sleep(0.02)
        seen.append((arguments["n"], list(running)))
        running.remove(arguments["n"])
        return "noted"

    tools = (ScriptedTool("save", note, effect=Effect.keyed), ScriptedTool("charge", note, effect=Effect.once))
    uses = [("save", {"n": 0}), ("charge", {"n": 1}), ("charge", {"n": 2}), ("save", {"n": 3})]
    async with world([calls(*uses), FINISH], *tools) as it:
        await (await it.start()).result()
    assert seen == [(n, [n]) for n in range(4)]


async def test_results_reach_the_model_in_the_order_of_its_calls(world: MakeWorld) -> None:
    slow_first = asyncio.Event()

    async def work(arguments: Any, context: Any) -> str:
        if arguments["n"] == 0:
            await asyncio.wait_for(slow_first.wait(), 15)
        else:
            slow_first.set()
        return f"result {arguments['n']}"

    async with world([calls(("look", {"n": 0}), ("look", {"n": 1})), FINISH], ScriptedTool("look", work)) as it:
        await (await it.start()).result()
        blocks = it.model.requests[1]["messages"][-1]["content"]
    assert [block["content"] for block in blocks] == ["result 0", "result 1"]


async def test_a_tool_outside_the_allow_list_is_never_called(world: MakeWorld) -> None:
    look, charge = ScriptedTool("look"), ScriptedTool("charge", effect=Effect.once)
    uses = calls(("charge", {}), ("Look", {}), ("lооk", {}), ("AgentRun", {}))
    async with world([uses, FINISH], look, charge, allowed=["look"]) as it:
        run = await it.start()
        event = await run.result()
        shown = [text for _, text in await it.results(run)]
        offered = [tool["name"] for tool in it.model.requests[0]["tools"]]
    assert (len(look.calls), len(charge.calls), event["payload"]["steps_taken"]) == (0, 0, 0)
    assert all(text.startswith("unknown_tool: ") and "look" in text for text in shown[:4])
    assert "charge" not in offered


async def test_a_reply_in_plain_text_is_the_outcome(world: MakeWorld) -> None:
    async with world([says("It is 4.")]) as it:
        event = await (await it.start("2+2")).result()
    assert (event["type"], event["payload"]["outcome"]) == ("agent.completed", "It is 4.")


async def test_twenty_starts_with_one_dedupe_key_are_one_run(world: MakeWorld) -> None:
    async with world([FINISH], ScriptedTool("look")) as it:
        event = StartEvent.model_validate(
            {"type": "agentic.start", "payload": {"goal": "x"}, "dedupe_key": f"agentic:start:{it.queue}"}
        )
        handles = await asyncio.gather(*(start_or_get_run(it.client, it.queue, event) for _ in range(20)))
        results = [await handle.result() for handle in handles]
        late = await start_or_get_run(it.client, it.queue, event)
        assert await late.result() == results[0]
        assert len(it.model.requests) == 1
    assert len({handle.id for handle in (*handles, late)}) == 1
    assert all(result == results[0] for result in results)


async def test_a_message_too_late_for_a_model_call_is_listed_as_ignored(world: MakeWorld) -> None:
    look = HeldTool("look", Effect.read)
    async with world([calls(("look", {})), FINISH], look.tool, max_turns=1) as it:
        run = await it.start()
        await look.started.wait()
        await run.signal("steer", {"request_id": "m-1", "text": "also do B"})
        look.go_on.set()
        assert (await run.result())["payload"]["reason"] == "turn_budget"
        assert [each for each in (await it.state(run))["ignored"] if each.startswith("steer: m-1: the run ended")]


async def test_a_steer_sent_three_times_under_one_id_reaches_the_model_once(world: MakeWorld) -> None:
    async with world([slow(calls(("get_run_journal", {})), 0.5), says("done")]) as it:
        run = await it.start()
        await it.until(lambda: len(it.model.requests) == 1)
        for _ in range(3):
            await run.signal("steer", {"request_id": "m-1", "text": "use euros"})
        await run.result()
        assert [part["kind"] for part in await it.parts(run)].count("said") == 1

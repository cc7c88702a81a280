"""A stop for all runs, or for some: nothing begins, nothing is lost, and everything goes on."""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Schedule, ScheduleActionStartWorkflow, ScheduleSpec, WorkflowExecutionStatus

from perdure.activities.effects.held import find_held, release_held
from perdure.client.errors import RejectedError
from perdure.contracts.agent import Agent
from perdure.contracts.model_settings import BatchSettings
from perdure.contracts.tool import Approval, Effect
from perdure.decisions import ids
from perdure.features.pauses import client as pauses
from perdure.features.pauses.client import change_pauses, find_in_flight, find_runs, read_pauses
from perdure.features.pauses.contract import Pause, PauseChange
from perdure.features.pauses.rules import pause_name, pauses_id
from perdure.features.pauses.traits import find_traits
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.runs import expect_cancelled
from tests.workflows.script import FINISH, by_turn, count_replies
from tests.workflows.tools import HeldTool

CHARGE = calls(("charge", {"eur": 5}))


async def pause(it: World, **selected: Any) -> Pause:
    """Pause, as the command does, until all workers know of it."""
    name = pause_name(**{key: value for key, value in selected.items() if key != "runs"})
    begun = Pause(name=name, by="maria", at=datetime.now(UTC), why="wrong prices", **selected)
    await change_pauses(it.client, it.queue, PauseChange(begin=(begun,)))
    await asyncio.sleep(pauses.KNOWN_AFTER)
    return begun


async def unpause(it: World, *pauses: Pause) -> None:
    await change_pauses(it.client, it.queue, PauseChange(end=tuple(each.name for each in pauses)))


async def until_held(it: World, *runs: Run) -> None:
    async def are_held() -> bool:
        held = {each.workflow_id async for each in find_held(it.client, it.queue)}
        return held >= {run.id for run in runs}

    await it.until(are_held)


async def until_over(it: World) -> None:
    """Until nothing is paused or held, and the workflow of pauses has ended."""

    async def is_over() -> bool:
        return (await it.client.get_workflow_handle(pauses_id(it.queue)).describe()).status is not (
            WorkflowExecutionStatus.RUNNING
        )

    await it.until(is_over)


async def test_all_runs_stop_before_their_next_call_and_go_on_where_they_were(world: MakeWorld) -> None:
    """A call that has begun goes on; later runs and later workers are held, too."""
    tool = HeldTool("look", Effect.read)
    script = by_turn(lambda turn: calls(("look", {})) if turn == 0 else FINISH)
    async with world(script, tool.tool) as it, AsyncExitStack() as stack:
        run = await it.start()
        await it.until(lambda: bool(tool.calls))
        stop = await pause(it)
        later = await it.start()
        await until_held(it, later)
        in_flight = [call async for call in find_in_flight(it.client, it.queue, stop)]
        assert [(call.run_id, call.activity, call.queue) for call in in_flight] == [
            (ids.run_id_of_workflow(run.id), in_flight[0].activity, None)
        ]
        asked = len(it.model.requests)
        tool.go_on.set()
        await until_held(it, run, later)
        await stack.enter_async_context(it.worker(await it.another_client()))
        third = await it.start()
        await until_held(it, third)
        assert len(it.model.requests) == asked
        held = [each async for each in find_held(it.client, it.queue)]
        assert all(each.why.startswith("all runs paused by maria at ") for each in held)
        assert await read_pauses(it.client, it.queue) == (stop,)
        await unpause(it, stop)
        tool.go_on.set()
        for each in (run, later, third):
            await each.result()
        await until_over(it)
        assert await read_pauses(it.client, it.queue) == ()


async def test_a_call_that_may_happen_once_is_held_before_its_effect_and_made_once(world: MakeWorld) -> None:
    tool = ScriptedTool("charge", lambda *_: "receipt 7", effect=Effect.once, approval=Approval.always)
    async with world([CHARGE, FINISH], tool) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        stop = await pause(it)
        await it.answer(run, decision="approve")  # answers are taken while it is held
        await until_held(it, run)
        assert tool.calls == []
        await unpause(it, stop)
        await run.result()
        assert (await it.results(run))[0][1] == "receipt 7"
        assert len(tool.calls) == 1


async def test_a_held_run_can_be_cancelled_and_then_nothing_is_left(world: MakeWorld) -> None:
    async with world([FINISH]) as it:
        stop = await pause(it)
        run = await it.start()
        await until_held(it, run)
        await run.signal("cancel", {"reason": "no more"})
        await expect_cancelled(run)
        assert it.model.requests == []
        await unpause(it, stop)
        await until_over(it)


async def test_a_pause_of_an_agent_holds_its_runs_alone(world: MakeWorld) -> None:
    clerk = Agent(name="clerk", tools=())
    async with world(lambda _: FINISH, agents=[clerk]) as it:
        stop = await pause(it, agent="clerk")
        held, free = await it.start(agent="clerk"), await it.start()
        await free.result()
        await until_held(it, held)
        both = await pause(it)  # held by a second one, too
        await unpause(it, stop)
        await asyncio.sleep(pauses.KNOWN_AFTER)
        await until_held(it, held)
        assert {each.by async for each in find_held(it.client, it.queue)} == {both.name}
        await unpause(it, both)
        await held.result()


async def test_a_pause_of_a_query_holds_the_runs_that_it_found_and_their_subtasks(world: MakeWorld) -> None:
    tool = HeldTool("look", Effect.read)
    async with world(by_turn(lambda turn: calls(("look", {})) if turn == 0 else FINISH), tool.tool) as it:
        one, other = await it.start(), await it.start()
        await it.until(lambda: len(tool.calls) == 2)

        async def found() -> tuple[str, ...]:
            return await find_runs(it.client, it.queue, f"WorkflowId = '{one.id}'")

        await it.until(lambda: _succeeds(found()))
        stop = await pause(it, query=f"WorkflowId = '{one.id}'", runs=await found())
        tool.go_on.set()
        await other.result()
        await until_held(it, one)
        await unpause(it, stop)
        await one.result()
        for query, reason in (("nonsense =", "not valid"), ("WorkflowId = 'nobody'", "no open run")):
            with pytest.raises(RejectedError, match=reason):
                await find_runs(it.client, it.queue, query)


async def _succeeds(claim: Any) -> bool:
    try:
        await claim
    except RejectedError:
        return False
    return True


async def test_a_run_that_a_schedule_started_is_known_as_its(world: MakeWorld) -> None:
    async with world(lambda _: FINISH) as it:
        stop = await pause(it, schedule="nightly")
        name = f"{ids.run_schedule_id('nightly')}"
        action = ScheduleActionStartWorkflow(
            "AgentRun",
            {"type": "agentic.start", "payload": {"goal": "look"}},
            id=ids.run_workflow_id(f"nightly-{it.queue}"),
            task_queue=it.queue,
        )
        schedule = await it.client.create_schedule(name, Schedule(action=action, spec=ScheduleSpec()))
        try:
            await schedule.trigger()

            held: list[str] = []

            async def is_held() -> bool:
                held[:] = [each.workflow_id async for each in find_held(it.client, it.queue)]
                return bool(held)

            await it.until(is_held)
            (workflow_id,) = held
            assert (await find_traits(it.client, workflow_id)).schedule == "nightly"
            await unpause(it, stop)
            await it.client.get_workflow_handle(workflow_id).result()
        finally:
            await schedule.delete()


async def test_what_an_ended_pause_still_holds_is_released_by_the_next_end(world: MakeWorld) -> None:
    """A worker that heard of the end too late may hold a run when the release is over."""
    async with world([FINISH]) as it:
        stop = await pause(it)
        run = await it.start()
        await until_held(it, run)
        await it.client.get_workflow_handle(pauses_id(it.queue)).terminate()
        await asyncio.sleep(pauses.KNOWN_AFTER)
        assert (await run.describe()).status is WorkflowExecutionStatus.RUNNING
        await unpause(it, stop)
        await run.result()
        assert count_replies(it.model.requests[-1]) == 0


async def test_it_is_not_released_by_somebody_elses_end(world: MakeWorld) -> None:
    async with world([FINISH]) as it:
        stop = await pause(it)
        run = await it.start()
        await until_held(it, run)
        assert await release_held(it.client, it.queue, "pause:agent:clerk") == 0
        await unpause(it, stop)
        await run.result()


async def test_a_deadline_that_passes_while_a_run_is_held_begins_anew(world: MakeWorld) -> None:
    soon = timedelta(seconds=3)
    tool = ScriptedTool(
        "charge", lambda *_: "receipt 7", effect=Effect.once, approval=Approval.always, approval_timeout=soon
    )
    async with world([CHARGE, FINISH], tool) as it:
        stop = await pause(it, agent="default")
        await unpause(it, stop)
        await until_over(it)
        run = await it.start()
        first = (await it.until_state(run, question=True))["question"]
        stop = await pause(it, agent="default")

        async def is_postponed() -> bool:
            question = (await it.state(run))["question"]
            return bool(question) and question["expires_at"] > first["expires_at"]

        await it.until(is_postponed)
        await it.answer(run, decision="approve")
        await until_held(it, run)
        assert tool.calls == []
        await unpause(it, stop)
        await run.result()
        assert len(tool.calls) == 1


async def test_a_deadline_that_passes_otherwise_is_as_it_was(world: MakeWorld) -> None:
    tool = ScriptedTool(
        "charge", lambda *_: "", effect=Effect.once, approval=Approval.always, approval_timeout=timedelta(seconds=1)
    )
    async with world([CHARGE, FINISH], tool) as it:
        run = await it.run_to_end()
        assert tool.calls == []
        assert "the approval expired" in str((await it.results(run))[0][1])


async def test_a_paused_agent_sends_nothing_in_batches(world: MakeWorld) -> None:
    """A pool is of many agents: a call is held before it joins one."""
    async with world([FINISH], pooling=BatchSettings(size=1)) as it:
        stop = await pause(it, agent="default")
        run = await it.start()
        await until_held(it, run)
        assert len(it.model.batches.batches) == 0
        await unpause(it, stop)
        await run.result()
        assert len(it.model.batches.batches) == 1

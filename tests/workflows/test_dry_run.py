"""Dry runs make reads only; a plan makes exactly their calls without approval."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from perdure.activities.run.outcome import end_from_event
from perdure.client.details import RunRecord
from perdure.client.errors import RejectedError
from perdure.client.run_events import RunStarted, event_to_json
from perdure.client.run_list import find_run, iterate_runs
from perdure.client.runs import plan_from_dry_run
from perdure.client.watch import Watch
from perdure.contracts.agent import Agent
from perdure.contracts.tool import Approval, Effect, QueueRoute, ToolKind
from perdure.decisions.run import call_state
from perdure.features.mcp_server.tools import RunTools
from perdure.session import Session
from perdure.settings import load_settings
from perdure.terminal.event_lines import format_end, format_event
from perdure.testkit.model_server import calls, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, World
from tests.workflows.runs import printed_run
from tests.workflows.script import FINISH

OUTSIDE = (ToolKind.queue, ToolKind.signal)  # their reads wait for a result from outside
KINDS = [kind for kind in ToolKind if kind is not ToolKind.builtin]
WAYS = [
    (kind, effect, approval)
    for kind, effect, approval in product(KINDS, Effect, Approval)
    if effect is not Effect.read or (kind not in OUTSIDE and approval is Approval.never)
]


def tool_of(kind: ToolKind, effect: Effect, approval: Approval) -> ScriptedTool:
    queue = QueueRoute(task_queue="elsewhere", activity="act") if kind is ToolKind.queue else None
    return ScriptedTool(f"{kind}_{effect}_{approval}", effect=effect, kind=kind, approval=approval, queue=queue)


@pytest.mark.parametrize("fuses", [False, True])
async def test_a_dry_run_makes_reads_only_whatever_the_tool_is(world: MakeWorld, fuses: bool) -> None:
    tools = [tool_of(*way) for way in WAYS]
    reads = [tool for tool in tools if tool.route.effect is Effect.read]
    changes = [tool for tool in tools if tool.route.effect is not Effect.read]
    task = {"id": "a", "agent": "peer", "goal": "change the world"}
    script = [
        calls(*((tool.route.name, {"nr": number}) for number, tool in enumerate(tools))),
        calls(("delegate", {"tasks": [task]}), ("workflow_create", {"definition": {"summary": "later"}})),
        calls(*((tool.route.name, {"again": 1}) for tool in reads)),
        FINISH,
    ]
    peer = Agent(name="peer", tools=())
    async with world(script, *tools, agents=[peer], follow_ups=(), fuses=fuses, max_steps=100) as it:
        run = await it.start(dry_run=True)
        payload = (await run.result())["payload"]
        listed = [(call["tool"], call["arguments"]) for call in payload["dry_calls"]]
        expected = [(tool.route.name, {"nr": tools.index(tool)}) for tool in changes]
        assert listed[: len(expected)] == expected
        assert {name for name, _ in listed[len(expected) :]} <= {"delegate", "workflow_create"}
        assert [tool.route.name for tool in changes if tool.calls] == []
        assert all(len(tool.calls) == 2 for tool in reads)
        made = [event.event_type async for event in run.fetch_history_events()]
        assert EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED not in made


async def test_the_model_is_shown_the_example_of_a_tool(world: MakeWorld) -> None:
    pay = ScriptedTool("pay", effect=Effect.once)
    pay.route = pay.route.evolve(example='{"receipt": "R-1"}')
    async with world([calls(("pay", {"cents": 5})), FINISH], pay) as it:
        run = await it.start(dry_run=True)
        await run.result()
        ((_, shown),) = (await it.results(run))[:1]
        assert json.loads(shown)["example"] == {"receipt": "R-1"}
        assert "dry run" in json.loads(shown)["dry_run"]


async def test_a_dry_run_says_what_it_listed_however_it_ends(world: MakeWorld) -> None:
    pay = ScriptedTool("pay", effect=Effect.once)
    script = [calls(("pay", {"cents": 5})), calls(("escalate", {"reason": "no"}))]
    async with world(script, pay) as it:
        run = await it.start(dry_run=True)
        payload = (await run.result())["payload"]
        assert [call["tool"] for call in payload["dry_calls"]] == ["pay"]


async def test_a_list_that_is_full_ends_in_an_error_for_the_model(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_state, "MAX_DRY_CALLS", 200)
    pay = ScriptedTool("pay", effect=Effect.once)
    script = [calls(("pay", {"cents": 5})), calls(("pay", {"text": "x" * 100})), FINISH]
    async with world(script, pay) as it:
        run = await it.start(dry_run=True)
        payload = (await run.result())["payload"]
        assert [call["arguments"] for call in payload["dry_calls"]] == [{"cents": 5}]
        assert "the list of this dry run is full" in (await it.results(run))[1][1]
        assert pay.calls == []


def plan_of(payload: dict[str, Any], *steps: int) -> dict[str, Any]:
    kept = [call for call in payload["dry_calls"] if call["step"] in steps]
    return {
        "run_id": payload["run_id"],
        "calls": [{name: call[name] for name in ("step", "tool", "call")} for call in kept],
    }


async def test_the_calls_of_a_plan_need_no_approval_and_each_counts_once(world: MakeWorld) -> None:
    pay, note = ScriptedTool("pay", effect=Effect.once, approval=Approval.always), ScriptedTool("note")
    keep = ScriptedTool("keep", effect=Effect.keyed)
    script = [
        calls(("pay", {"cents": 5}), ("note", {}), ("keep", {"a": 1}), ("keep", {"a": 2})),
        calls(("pay", {"cents": 5})),
        says("done"),
    ]
    async with world(script, pay, note, keep) as it:
        dry = (await (await it.start(dry_run=True)).result())["payload"]
        assert [call["step"] for call in dry["dry_calls"]] == [1, 3, 4, 5]
        run = await it.start(plan=plan_of(dry, 1, 4))
        await it.until_question(run, "q1")
        assert [arguments for arguments, _ in pay.calls] == [{"cents": 5}]  # as planned
        assert keep.calls == []  # the first is left out, and asked about
        await it.answer(run, question_id="q1", decision="approve")
        await it.until_question(run, "q2")  # the same payment again
        assert [arguments for arguments, _ in keep.calls] == [{"a": 1}, {"a": 2}]
        assert len(pay.calls) == 1
        await it.answer(run, question_id="q2", decision="deny")
        plan = (await run.result())["payload"]["plan"]
        assert [(call["step"], call["tool"]) for call in plan["unplanned"]] == [(3, "keep"), (5, "pay")]
        assert plan["missing"] == []
        assert len(pay.calls) == 1


async def test_a_planned_call_with_other_arguments_is_asked_about_and_reported_at_the_end(world: MakeWorld) -> None:
    pay = ScriptedTool("pay", effect=Effect.once)
    dry_script = [calls(("pay", {"cents": 5})), says("done")]
    async with world(dry_script, pay) as it:
        dry = (await (await it.start(dry_run=True)).result())["payload"]
    async with world([calls(("pay", {"cents": 6})), says("done")], pay) as it:
        run = await it.start(plan=plan_of(dry, 1))
        await it.until_question(run, "q1")
        assert pay.calls == []
        await it.answer(run, question_id="q1", decision="deny")
        plan = (await run.result())["payload"]["plan"]
        assert [call["call"] for call in plan["missing"]] == [dry["dry_calls"][0]["call"]]
        assert [call["tool"] for call in plan["unplanned"]] == ["pay"]
        assert pay.calls == []


async def test_each_door_says_dry_run_and_lists_the_calls_that_were_not_made(world: MakeWorld) -> None:
    pay = ScriptedTool("pay", effect=Effect.once)
    script = [calls(("pay", {"cents": 5}), ("ask_human", {"question": "Go on?"})), says("Done three.")]
    listed = ["this dry run would have made:", '1  pay  once  {"cents": 5}']
    async with world(script, pay) as it:
        run = await it.start(dry_run=True)
        await it.until_question(run, "q1")
        open_page = await printed_run(it, run)
        await it.answer(run, text="yes")
        event = await run.result()
        page, found = await printed_run(it, run), await find_run(it.client, run.id)
        events = [event async for event in Watch(it.client, run.id, follow=False).events()]
        rows: list[RunRecord] = []

        async def is_listed() -> bool:
            rows[:] = [RunRecord.of(each) async for each in iterate_runs(it.client) if each.run_id == found.run_id]
            return [row.shown_status for row in rows] == ["dry run, completed"]

        await it.until(is_listed)
        answered = await run_tools(it).run_state(found.run_id)
        real = await it.start()
        await it.until_question(real, "q1")
        assert not (await find_run(it.client, real.id)).is_dry_run
    assert all(line in open_page and line in page for line in listed)
    assert page.splitlines()[0].startswith(f"{found.run_id}  dry run, completed")
    assert rows[0].dry_run
    assert (event["payload"]["dry_run"], answered.dry_run) == (True, True)
    assert [call["tool"] for call in answered.dry_calls] == ["pay"]
    first = next(each for each in events if isinstance(each, RunStarted))
    end = list(map(str, format_end(end_from_event(event), "", "", 100)))
    assert str(next(format_event(first, 100))).startswith("dry run")
    assert json.loads(event_to_json(first))["dry_run"] is True
    assert end[0].startswith("■ dry run, completed")
    assert [line.strip() for line in end[-3:-1]] == listed
    assert end[-1].endswith(f"perdure run --plan {found.run_id}")


def run_tools(it: World) -> RunTools:
    return RunTools(Session(it.client, load_settings({}, Path("/")), None), may_approve=False)


async def test_a_plan_without_steps_of_the_dry_run_is_reported_in_one_line(world: MakeWorld) -> None:
    pay = ScriptedTool("pay", effect=Effect.once)
    async with world([calls(("pay", {"cents": 5})), says("done"), says("done")], pay) as it:
        dry, real = await it.run_to_end(dry_run=True), await it.run_to_end()
        planned = await plan_from_dry_run(it.client, dry.id, [])
        assert planned.plan is not None
        assert ([call.tool for call in planned.plan.calls], planned.dry_run) == (["pay"], False)
        assert (await plan_from_dry_run(it.client, dry.id, [1])).plan == planned.plan.evolve(calls=())
        with pytest.raises(RejectedError, match="the plan has no step 7; it has: 1"):
            await plan_from_dry_run(it.client, dry.id, [7])
        with pytest.raises(RejectedError, match="is not a dry run"):
            await plan_from_dry_run(it.client, real.id, [])

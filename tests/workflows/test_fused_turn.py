"""Reads and the model call after them in one activity: the same run in half the events, whatever comes between."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from perdure.activities.providers.prices import Price
from perdure.activities.telemetry.metrics import MetricsInterceptor
from perdure.activities.telemetry.spans import SpanInterceptor
from perdure.activities.tools.interface import TransientToolError
from perdure.client import run_events
from perdure.client.watch import Watch
from perdure.contracts.agent import Agent
from perdure.contracts.bounds import Backoff
from perdure.contracts.tool import Approval, Effect, ToolKind
from perdure.testkit.model_server import calls, fails, says, slow
from perdure.testkit.tools import ScriptedTool
from tests.timeline import timeline
from tests.workflows.conftest import MakeWorld
from tests.workflows.runs import cancel_run, expect_cancelled, id_of, result_of, trace_events
from tests.workflows.script import FINISH, count_replies, is_summary
from tests.workflows.test_export import export_run
from tests.workflows.tools import HeldTool

FUSED, APART = "read_and_reflect", ["call_tool", "reflect"]
PRICES = {"scripted": Price(input=1, output=1, cache_read=0, cache_write=0)}


def look(
    behave: Callable[..., Any] = lambda arguments, _: f"result {arguments.get('n')}", **route: Any
) -> ScriptedTool:
    return ScriptedTool("look", behave, **route)


def inner(names: list[str]) -> list[str]:
    """The activities between the first turn and the end."""
    return names[names.index("plan") + 1 : -1]


def in_order(*answers: Any) -> Callable[[Any], Any]:
    """One after another, whatever the conversation is."""
    left = iter(answers)
    return lambda _: next(left)


def untimed(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without times and ids."""
    return [
        {key: value for key, value in line.items() if key not in ("at", "ms", "run_id", "key", "active_seconds")}
        for line in lines
    ]


async def test_a_run_of_reads_is_the_same_run_in_either_shape(world: MakeWorld, tmp_path: Path) -> None:
    script = [
        calls(("look", {"n": 1}), text="Frame: see.\nPlan: look."),
        calls(("look", {"n": 2}), ("look", {"n": 3}), text="Known: 1."),
        calls(("look", {"n": 4})),
        FINISH,
    ]
    seen = []
    for fuses in (False, True):
        async with world(script, look(), fuses=fuses, prices=PRICES) as it:
            run = await it.start(run_id=f"fused-{fuses}")
            event = await result_of(run)
            state = await it.state(run)
            names = inner(await timeline(run))
            events = [each async for each in Watch(it.client, f"fused-{fuses}", follow=False).events()]
            record = await export_run(it, run)
            seen.append(
                (
                    {**event["payload"], "run_id": ""},
                    it.model.requests,
                    [part["content"] for part in await it.parts(run)],
                    {name: state[name] for name in ("step", "turns", "usage", "cost_usd", "completed_steps")},
                    sorted(untimed(trace_events(tmp_path / f"fused-{fuses}")), key=json.dumps),
                    [type(each) for each in events if not isinstance(each, run_events.WaitStarted)],
                    [(call.tool, call.step, call.shown, len(call.made)) for call in record.calls],
                    [(turn.turn, turn.usage) for turn in record.turns],
                )
            )
        assert names == ([FUSED] * 3 if fuses else ["call_tool", "reflect", "call_tool", *APART, *APART][:7])
    apart, fused = seen
    for one, other in zip(apart, fused, strict=True):
        assert one == other


async def test_an_agent_may_set_it_otherwise_than_its_project(world: MakeWorld) -> None:
    script = [calls(("look", {})), FINISH]
    agents = [Agent(name=name, tools=("look",), fuse_reads=fuses) for name, fuses in (("fast", True), ("plain", False))]
    for project in (False, True):
        async with world(lambda body: script[count_replies(body)], look(), agents=agents, fuses=project) as it:
            runs = {agent: await it.start(agent=agent) for agent in ("fast", "plain", "default")}
            for run in runs.values():
                await result_of(run)
            shapes = {agent: inner(await timeline(run)) for agent, run in runs.items()}
        assert shapes == {"fast": [FUSED], "plain": APART, "default": [FUSED] if project else APART}


@pytest.mark.parametrize(
    "tool",
    [
        ScriptedTool("work", effect=Effect.keyed),
        ScriptedTool("work", effect=Effect.once),
        ScriptedTool("work", timeout=timedelta(seconds=31)),
    ],
    ids=["keyed", "once", "long"],
)
async def test_a_turn_with_another_call_than_a_short_read_is_made_apart(world: MakeWorld, tool: ScriptedTool) -> None:
    async with world([calls(("look", {}), ("work", {})), calls(("look", {})), FINISH], look(), tool, fuses=True) as it:
        run = await it.start()
        await result_of(run)
        assert sorted(inner(await timeline(run))) == sorted(["call_tool", *APART, FUSED])


async def test_a_read_that_a_person_approves_is_made_apart_until_the_tool_is_approved(world: MakeWorld) -> None:
    async with world(
        [calls(("look", {"n": n})) for n in range(2)] + [FINISH], look(approval=Approval.always), fuses=True
    ) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await run.execute_update("answer", {"decision": "approve_tool"})
        await result_of(run)
        assert inner(await timeline(run)) == [*APART, FUSED]


async def test_a_failed_read_is_tried_again_within_the_activity_and_the_trace_has_each_attempt(
    world: MakeWorld, tmp_path: Path
) -> None:
    def flaky(arguments: Any, context: Any) -> str:
        if arguments["n"] == 1 and len([1 for given, _ in tool.calls if given["n"] == 1]) < 3:
            raise TransientToolError("unreachable", "down", 0.05)
        return "up"

    tool = look(flaky)
    async with world([calls(("look", {"n": 1}), ("look", {"n": 2})), FINISH], tool, fuses=True) as it:
        run = await it.start(run_id="flaky")
        await result_of(run)
        assert [text for _, text in await it.results(run)] == ["up", "up", "finished"]
        assert inner(await timeline(run)) == [FUSED]
    keys = {context.idempotency_key for given, context in tool.calls if given["n"] == 1}
    assert (len(tool.calls), len(keys)) == (4, 1)
    retries = trace_events(tmp_path / "flaky", "agent.tool.retry")
    assert [(line["step"], line["attempt"], line["why"]) for line in retries] == [(1, 2, "down"), (1, 3, "down")]


@pytest.mark.parametrize("error", [TransientToolError("unreachable", "down"), ConnectionError("down")])
async def test_a_read_that_never_succeeds_is_an_error_for_the_model(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("perdure.activities.model.fused_turn.RETRY_DELAYS", Backoff(0.01, 0.01, retries=3))
    shown = []

    def fail(arguments: Any, context: Any) -> str:
        raise error

    for fuses in (False, True):
        tool = look(fail)
        async with world([calls(("look", {})), FINISH], tool, fuses=fuses) as it:
            run = await it.start()
            await result_of(run)
            shown.append((len(tool.calls), (await it.results(run))[0][1]))
    assert shown[0] == shown[1]
    assert shown[0][0] == 4


async def test_a_read_that_does_not_end_in_its_time_is_tried_again_and_is_an_error(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.activities.model.fused_turn.RETRY_DELAYS", Backoff(0, 0, retries=0))
    monkeypatch.setattr("perdure.activities.effects.ledger.GRACE", timedelta(0))
    tool = look(lambda *_: asyncio.sleep(30), timeout=timedelta(seconds=0.2))
    async with world([calls(("look", {})), FINISH], tool, fuses=True) as it:
        run = await it.start()
        await result_of(run)
        assert (await it.results(run))[0][1] == "timeout: it did not end within 0.2 s (three retries did not help)"


async def test_a_model_that_fails_is_asked_again_as_usual_and_the_reads_are_not_made_again(world: MakeWorld) -> None:
    tool = look()
    async with world(in_order(calls(("look", {})), fails(529), FINISH), tool, fuses=True) as it:
        run = await it.start()
        await result_of(run)
        assert inner(await timeline(run)) == [FUSED, "reflect"]
        events = [each async for each in Watch(it.client, id_of(run), follow=False).events()]
    assert len(tool.calls) == 1
    assert [each.attempt for each in events if isinstance(each, run_events.ActivityRetrying)] == [2]


async def test_a_message_between_is_heard_by_the_next_model_call_and_the_dropped_reply_is_paid_for(
    world: MakeWorld,
) -> None:
    script = in_order(calls(("look", {"n": 1})), slow(calls(("look", {"n": 2})), 1.0), says("with B"))
    async with world(script, look(), fuses=True, prices=PRICES) as it:
        run = await it.start()
        await it.until(lambda: len(it.model.requests) == 2)
        await run.signal("steer", {"request_id": "m-1", "text": "also do B"})
        payload = (await result_of(run))["payload"]
        assert (payload["outcome"], payload["steps_taken"]) == ("with B", 1)
        state = await it.state(run)
        record = await export_run(it, run)
    assert "also do B" in json.dumps(it.model.requests[2]["messages"][-1])
    assert state["turns"] == 2
    assert state["usage"] == record.usage.model_dump(mode="json")  # of three replies
    assert [call.arguments for call in record.calls] == [{"n": 1}]


@pytest.mark.parametrize("door", ["signal", "native"])
async def test_a_cancel_during_the_reads_ends_them_and_keeps_what_the_others_brought(
    world: MakeWorld, door: str
) -> None:
    held = HeldTool("look", Effect.read, "result 1")
    async with world([calls(("quick", {}), ("look", {})), FINISH], held.tool, ScriptedTool("quick"), fuses=True) as it:
        run = await it.start()
        await held.started.wait()
        await cancel_run(run, door)
        await expect_cancelled(run)
        assert [text for _, text in await it.results(run)] == [
            "ok {}", "interrupted: the run ended before this call had a result"
        ]  # fmt: skip
        assert (len(it.model.requests), await it.failed_tasks(run)) == (1, 0)


async def test_a_cancel_during_the_model_call_keeps_the_results(world: MakeWorld) -> None:
    async with world([calls(("look", {"n": 1})), slow(FINISH, 30)], look(), fuses=True) as it:
        run = await it.start()
        await it.until(lambda: len(it.model.requests) == 2)
        await run.signal("cancel", {})
        await expect_cancelled(run)
        assert [text for _, text in await it.results(run)] == ["result 1"]
        assert await it.failed_tasks(run) == 0


@pytest.mark.parametrize("in_reads", [True, False], ids=["reads", "model"])
async def test_a_worker_that_stops_in_between_leaves_nothing_out_and_its_successor_asks_about_a_new_definition(
    world: MakeWorld, in_reads: bool
) -> None:
    held, asked = HeldTool("look", Effect.read, "result 1"), []

    def script(body: dict[str, Any]) -> Any:
        asked.append(1)
        done = count_replies(body)
        return calls(("look", {"n": 1})) if done == 0 else FINISH if in_reads or len(asked) > 2 else slow(FINISH, 30)

    if not in_reads:
        held.go_on.set()
    async with world(script, held.tool, works=False, fuses=True, grace=timedelta(seconds=0.1)) as it:
        async with it.worker():
            run = await it.start()
            await held.started.wait()
            if not in_reads:
                await it.until(lambda: len(asked) == 2)
        held.go_on.set()
        agent = it.project.agents["default"].evolve(prompt="Be brief.")
        it.project = replace(it.project, agents={"default": agent})
        async with it.worker():
            state = await it.until_state(run, question=True)
            assert state["question"]["kind"] == "definition_changed"
            await run.execute_update("answer", {"decision": "use_new"})
            await result_of(run)
            assert [text for _, text in await it.results(run)] == ["result 1", "finished"]
            assert await it.failed_tasks(run) == 0
    assert len(held.tool.calls) == (2 if in_reads else 1)


async def test_a_conversation_that_outgrows_the_window_is_compacted_as_in_the_other_shape(world: MakeWorld) -> None:
    shown = []
    for fuses in (False, True):
        made = iter(range(1, 17))

        def script(body: dict[str, Any], made: Any = made) -> Any:
            if is_summary(body):
                return says("So far: lorem.")
            number = next(made, None)
            return FINISH if number is None else calls(("look", {"n": number}))

        tool = look(lambda arguments, _: f"{arguments['n']}:" + "lorem ipsum " * 333)
        async with world(script, tool, window=20_000, max_steps=50, fuses=fuses) as it:
            run = await it.start()
            await result_of(run)
            state = await it.state(run)
            names = await timeline(run)
            shown.append(([request["messages"] for request in it.model.requests], state["usage"]))
        assert "summarize" in names
        assert (FUSED in names) is fuses
    assert shown[0] == shown[1]


async def test_an_agent_that_goes_in_circles_gets_the_same_hints_and_no_reply_is_thrown_away(world: MakeWorld) -> None:
    seen = []
    for fuses in (False, True):
        async with world(lambda _: calls(("look", {})), look(lambda *_: "same"), fuses=fuses, max_steps=9) as it:
            run = await it.start()
            state = await it.until_state(run, question=True)
            seen.append(([request["messages"] for request in it.model.requests], state["usage"], state["turns"]))
            await run.signal("cancel", {})
    assert seen[0] == seen[1]


async def test_reads_that_use_up_the_time_leave_the_last_turn_to_the_usual_call(world: MakeWorld) -> None:
    tool = look(lambda *_: asyncio.sleep(0.3, "late"))
    async with world([calls(("look", {})), says("half")], tool, fuses=True, soft_limit="200ms") as it:
        run = await it.start()
        assert (await result_of(run))["payload"]["partial"] is True
        assert inner(await timeline(run)) == [FUSED, "reflect"]
    assert len(it.model.requests) == 2


async def test_the_spans_and_durations_of_the_calls_and_the_turn_are_those_of_the_other_shape(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[tuple[str, bool]] = []
    record = MetricsInterceptor.observe

    async def noted(self: Any, activity_type: str, request: Any, work: Any, run: str = "") -> Any:
        recorded.append((activity_type, request is not None))
        return await record(self, activity_type, request, work, run)

    monkeypatch.setattr(MetricsInterceptor, "observe", noted)
    script, names = [calls(("look", {"n": 1}), ("look", {"n": 2})), FINISH], []
    for fuses in (False, True):
        exporter = InMemorySpanExporter()
        async with world(script, look(), works=False, fuses=fuses) as it:
            spans = SpanInterceptor(exporter, it.client, it.project.secrets)
            async with it.worker(observers=[MetricsInterceptor(), spans]):
                await result_of(await it.start())
            await spans.close()
        found = exporter.get_finished_spans()
        names.append(sorted(span.name for span in found if span.name != FUSED))
        reflect = next(span for span in found if span.name == "reflect")
        assert (reflect.attributes or {})["gen_ai.usage.output_tokens"]
    assert names[0] == names[1]
    assert recorded.count(("call_tool", True)) == 2


async def test_a_result_from_outside_is_waited_for_apart(world: MakeWorld) -> None:
    async with world([calls(("vote", {})), FINISH], ScriptedTool("vote", kind=ToolKind.signal), fuses=True) as it:
        run = await it.start()
        await it.until_pending(run, 1)
        await it.send_result(run, 1, "vote")
        await result_of(run)
        assert inner(await timeline(run)) == APART

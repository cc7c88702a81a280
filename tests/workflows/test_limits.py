"""Time limits of a run: of active time, which activities report, and no waiting counts as (B6)."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure.activities.telemetry.attributes import AGENT_STATUS
from perdure.client.run_list import find_run
from perdure.client.runs import wait_for_run_end
from perdure.contracts.run.limits import LimitOverrides
from perdure.contracts.run.state import RunStatus
from perdure.contracts.tool import Effect, ToolKind
from perdure.decisions.run.loop import LAST_TURN
from perdure.testkit.model_server import Reply, ScriptedAnswer, calls, fails, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.runs import failure_of, result_of, trace_events
from tests.workflows.script import FINISH, is_summary

ASK = calls(("ask_human", {"question": "Which?"}))
LOOK = calls(("look", {}), text="On it.")


class SteppingClock:
    """Stands for `perf_counter`: whatever is measured by it takes so many minutes."""

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes
        self._now = 0.0

    def __call__(self) -> float:
        self._now += self.minutes * 60
        return self._now


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SteppingClock]:
    """`takes("tool", 16)`: from now on tool calls report 16 minutes; "turn" and "summary" do the same for theirs."""
    modules = {"tool": "tools.call", "turn": "model.turn", "summary": "model.summarize"}

    def let(kind: str, minutes: float) -> SteppingClock:
        clock = SteppingClock(minutes)
        monkeypatch.setattr(f"perdure.activities.{modules[kind]}.perf_counter", clock)
        return clock

    return let


def looks(last: ScriptedAnswer) -> Callable[[dict[str, Any]], ScriptedAnswer]:
    """Looks again and again; `last` is said where no tool may be called."""
    return lambda body: last if is_last(body) else LOOK


def is_last(body: dict[str, Any]) -> bool:
    return body.get("tool_choice") == {"type": "none"}


def looking() -> ScriptedTool:
    """Each look brings something else, so that the run does not seem to go in circles."""
    views = itertools.count()
    return ScriptedTool("look", lambda *_: f"view {next(views)}")


async def unanswered(it: World, run: Run) -> list[str]:
    """Tool uses of the conversation that have no result."""
    parts = await it.parts(run)
    blocks = [block for part in parts for block in part["content"]]
    results = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
    return [block["id"] for block in blocks if block["type"] == "tool_use" and block["id"] not in results]


@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        (says("I saw one half."), "I saw one half."),
        (calls(("finish", {"outcome": "Saw it all.", "artifacts": ["a.md"]})), "Saw it all."),
        (calls(("finish", {"outcome": " "}), text="Saw some."), "Saw some."),
        (calls(("look", {}), ("ask_human", {"question": "More?"}), text="Half."), "Half."),
        (calls(("look", {})), "The wall is white."),
        (says(""), "The wall is white."),
    ],
    ids=["text", "finish", "finish-without-outcome", "other-tools", "other-tools-in-silence", "empty"],
)
async def test_after_the_soft_limit_one_last_turn_delivers_a_partial_outcome(
    world: MakeWorld, skipping: WorkflowEnvironment, takes: Any, tmp_path: Path, last: Reply, outcome: str
) -> None:
    takes("tool", 8)
    says_first = calls(("update_run_journal", {"current_state": "The wall is white."}), ("look", {}))
    look = looking()

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        return last if is_last(body) else says_first if len(body["messages"]) == 1 else calls(("look", {}))

    async with world(script, look, server=skipping.client) as it:
        run = await it.start()
        event = await result_of(run)
        requests = it.model.requests
        assert await unanswered(it, run) == []
        state = await it.state(run)
        results = dict(await it.results(run))
    payload = event["payload"]
    assert (event["type"], payload["partial"], payload["outcome"]) == ("agent.completed", True, outcome)
    assert payload["artifacts"] == (["a.md"] if outcome == "Saw it all." else [])
    assert [is_last(request) for request in requests] == [False, False, True]
    assert LAST_TURN in json.dumps(requests[-1]["messages"][-1])
    assert requests[-1]["tools"] == requests[0]["tools"], "the provider's cache has them"
    assert len(look.calls) == payload["steps_taken"] == 2
    assert state["active_seconds"] == pytest.approx(16 * 60, abs=10)
    (limit_event,) = trace_events(tmp_path / run.id.removeprefix("run:"), "agent.exhaustion.soft_limit")
    assert (limit_event["turns"], limit_event["steps"], limit_event["active_seconds"] >= 900) == (2, 2, True)
    if last.calls:
        assert results["toolu_2_0"] == (
            "finished" if last.calls[0][0] == "finish" else "budget: the time of this run is used up"
        )


async def test_a_run_that_ends_in_time_is_not_partial(
    world: MakeWorld, skipping: WorkflowEnvironment, takes: Any, tmp_path: Path
) -> None:
    takes("tool", 14)
    async with world([LOOK, FINISH], looking(), server=skipping.client) as it:
        run = await it.start(run_id="in-time")
        assert "partial" not in (await result_of(run))["payload"]
    assert trace_events(tmp_path / "in-time", "agent.exhaustion.soft_limit") == []


async def test_an_outcome_that_comes_after_the_limits_is_whole(
    world: MakeWorld, skipping: WorkflowEnvironment, takes: Any
) -> None:
    """Nothing is taken from an agent that has finished, however long its last turn was."""
    takes("turn", 30)
    async with world([FINISH], server=skipping.client) as it:
        event = await result_of(await it.start())
    assert (event["type"], event["payload"]["outcome"], event["payload"].get("partial")) == (
        "agent.completed",
        "done",
        None,
    )


async def test_model_turns_are_active_time_too_and_the_last_one_may_pass_the_hard_limit(
    world: MakeWorld, skipping: WorkflowEnvironment, takes: Any
) -> None:
    takes("turn", 8)
    async with world(looks(says("half")), looking(), server=skipping.client) as it:
        event = await result_of(await it.start())
        assert (event["payload"]["partial"], len(it.model.requests)) == (True, 3)


async def test_at_the_hard_limit_the_run_fails_with_every_tool_use_answered_and_can_be_resumed(
    world: MakeWorld, skipping: WorkflowEnvironment, takes: Any
) -> None:
    clock = takes("tool", 21)
    both = calls(("save", {"n": 1}), ("save", {"n": 2}), ("update_run_journal", {"current_state": "never written"}))
    save = ScriptedTool("save", effect=Effect.keyed)

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        return FINISH if "the run ended before this call" in json.dumps(body["messages"]) else both

    async with world(script, save, server=skipping.client) as it:
        run = await it.start("save both", run_id="out-of-time")
        error = await failure_of(run)
        assert await unanswered(it, run) == []
        results = [text for _, text in await it.results(run)]
        found, end = await find_run(it.client, "out-of-time"), await wait_for_run_end(it.client, "out-of-time")
        state = await it.state(run)
        said = found.execution.typed_search_attributes.get(AGENT_STATUS)
        clock.minutes = 1
        again = await it.resume(run)
        event = await result_of(again)
        fresh = await it.state(again)
        requests = it.model.requests
    assert (error.type, error.non_retryable) == ("HardLimit", True)
    assert "Objective: save both" in error.details[0]["handoff"]
    assert "Blocker: 1260 s of active time are used" in error.details[0]["handoff"]
    assert found.execution.status is not None
    assert found.execution.status.name == "FAILED"
    assert [said, found.status, end.status, state["status"]] == [RunStatus.timed_out] * 4
    assert results[0].startswith("ok")
    assert [text.partition(":")[0] for text in results[1:]] == ["interrupted", "interrupted"]
    assert [arguments["n"] for arguments, _ in save.calls] == [1], "what was not begun is not made behind the model"
    assert (event["type"], event["payload"].get("partial")) == ("agent.completed", None)
    assert (state["active_seconds"] > 1200, fresh["active_seconds"] < 60) == (True, True)
    assert not any(is_last(request) for request in requests), "a hard limit leaves no time for a last turn"


@pytest.mark.parametrize("waits_for", ["a person", "a result from outside"])
async def test_days_of_waiting_are_no_active_time(
    world: MakeWorld, skipping: WorkflowEnvironment, waits_for: str
) -> None:
    vote = ScriptedTool("vote", kind=ToolKind.signal, timeout=timedelta(days=30))
    asks = waits_for == "a person"
    with _manually(skipping):
        async with world([ASK if asks else calls(("vote", {})), FINISH], vote, server=skipping.client) as it:
            run = await it.start()
            await (it.until_state(run, question=True) if asks else it.until_pending(run, 1))
            before = await it.state(run)
            await skipping.fast_forward(run, timedelta(days=3))
            await (run.signal("human_input", {"text": "the left one"}) if asks else it.send_result(run, 1, "vote"))
            await was_idle(it, run, before, days=3)


async def was_idle(it: World, run: Run, before: dict[str, Any], *, days: int) -> None:
    """The run ends whole, after so many days, with little active time."""
    assert "partial" not in (await result_of(run))["payload"]
    state = await it.state(run)
    assert days_between(before["updated_at"], state["updated_at"]) >= days
    assert state["active_seconds"] < 60


async def test_a_day_without_a_worker_is_no_active_time(world: MakeWorld, skipping: WorkflowEnvironment) -> None:
    with _manually(skipping):
        async with world([ASK, FINISH], works=False, server=skipping.client) as it:
            async with it.worker():
                run = await it.start()
                before = await it.until_state(run, question=True)
            await skipping.fast_forward(run, timedelta(days=1))
            await run.signal("human_input", {"text": "the left one"})
            async with it.worker():
                await was_idle(it, run, before, days=1)
            await it.replay()


async def test_waiting_for_an_overloaded_model_is_no_active_time(
    world: MakeWorld, skipping: WorkflowEnvironment
) -> None:
    """The limits are shorter than the pauses between the attempts, which are skipped here."""
    script = [fails(529, times=5, then=FINISH)]
    async with world(script, server=skipping.client, soft_limit="30s", hard_limit="60s") as it:
        run = await it.start()
        event = await result_of(run)
        state = await it.state(run)
        assert len(it.model.requests) == 6
    assert "partial" not in event["payload"]
    assert days_between(state["created_at"], state["updated_at"]) * 86400 >= 100
    assert state["active_seconds"] < 50  # of the hundred: the rest is no work


@pytest.mark.parametrize(
    ("file", "agent", "start", "steps"),
    [
        ({"soft_limit": "2m"}, {}, {}, 2),
        ({"soft_limit": "2m"}, {"soft_limit": "3m"}, {}, 3),
        ({"soft_limit": "3m"}, {"soft_limit": "2m"}, {}, 2),
        ({}, {"soft_limit": "3m"}, {"context": {"soft_limit": "1m"}}, 1),
        ({"soft_limit": "1m"}, {}, {"context": {"soft_limit": 240}}, 4),
        ({}, {"soft_limit": "3m"}, {"limits": {"soft_limit": "1m"}}, 1),
        (
            {"soft_limit": "3m"},
            {"soft_limit": "4m"},
            {"context": {"soft_limit": "1m"}, "limits": {"soft_limit": "2m"}},
            2,
        ),
    ],
)
async def test_the_nearest_setting_of_a_limit_wins(
    world: MakeWorld, skipping: WorkflowEnvironment, takes: Any, file: Any, agent: Any, start: Any, steps: int
) -> None:
    takes("tool", 1)
    async with world(looks(says("so far")), looking(), server=skipping.client, agent_limits=agent, **file) as it:
        event = await result_of(await it.start(**start))
    assert (event["payload"]["partial"], event["payload"]["steps_taken"]) == (True, steps)


async def test_a_hard_limit_below_the_soft_one_is_a_backstop_all_the_same(
    world: MakeWorld, skipping: WorkflowEnvironment, takes: Any
) -> None:
    takes("tool", 1)
    async with world(looks(says("so far")), looking(), server=skipping.client, hard_limit="2m") as it:
        run = await it.start()
        assert (await failure_of(run)).type == "HardLimit"
        assert (await it.state(run))["step"] == 2


async def test_time_that_summaries_take_counts_before_the_model_is_asked_again(
    world: MakeWorld, skipping: WorkflowEnvironment, takes: Any
) -> None:
    takes("summary", 16)
    made = iter(range(1, 100))

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if is_summary(body):
            return says("Read much.")
        return says("so far") if is_last(body) else calls(("read", {"n": next(made)}))

    read = ScriptedTool("read", lambda arguments, _: f"{arguments['n']}:" + "lorem ipsum " * 330)
    async with world(script, read, server=skipping.client, window=20_000, max_steps=50) as it:
        event = await result_of(await it.start())
        kinds = ["summary" if is_summary(body) else is_last(body) for body in it.model.requests]
    assert (event["payload"]["partial"], event["payload"]["outcome"]) == (True, "so far")
    assert kinds[-2:] == ["summary", True]
    assert kinds.count("summary") == 1


async def test_the_last_turn_comes_also_after_a_rotation(
    world: MakeWorld, short_history_client: Client, takes: Any
) -> None:
    """Active time and the mark of the last turn are carried over continue-as-new."""
    takes("tool", 0.4)
    async with world(looks(says("so far")), looking(), server=short_history_client, max_steps=99) as it:
        run = await it.start()
        event = await result_of(run)
        rotations = await it.executions(run)
        assert sum(is_last(request) for request in it.model.requests) == 1
    assert len(rotations) >= 2
    assert (event["payload"]["partial"], event["payload"]["steps_taken"]) == (True, 38)


def _manually(skipping: WorkflowEnvironment) -> Any:
    """Runs started in here skip time only where the test says so."""
    return skipping.with_time_skipping_disabled()


def days_between(before: str, after: str) -> float:
    """On the run's own clock."""
    return (datetime.fromisoformat(after) - datetime.fromisoformat(before)) / timedelta(days=1)


@pytest.mark.parametrize(
    ("asked", "steps"), [({"limits": {"max_steps": 500}}, 3), ({"context": {"max_steps": 500}}, 3), ({}, 3)]
)
async def test_no_start_goes_above_the_ceiling(world: MakeWorld, asked: dict[str, Any], steps: int) -> None:
    """Not even one that any Temporal client sends: the worker bounds it, and the run says so once."""
    event = {"type": "agentic.start", "payload": {"goal": "look", **asked}}
    async with world(looks(says("so far")), looking(), ceiling={"max_steps": 3, "budget_tokens": 10**6}) as it:
        run = await it.start_raw(event)
        assert (await result_of(run))["type"] == "agent.escalated"
        state, snapshot = await it.state(run), await run.query("snapshot")
    assert (state["step"], state["max_steps"]) == (steps, steps)
    assert snapshot["state"]["limits"]["budget_tokens"] == 10**6
    notice = "limits: max_steps 500 is above the project's ceiling of 3"
    assert state["ignored"] == ([notice] if asked else [])


async def test_a_run_that_goes_on_from_another_is_bounded_by_the_ceiling_of_now(world: MakeWorld) -> None:
    """Whatever its origin was allowed."""
    async with world(looks(says("so far")), looking(), works=False, max_steps=9) as it:
        async with it.worker():
            tall = await it.run_to_end(run_id="tall")
        it.project = replace(it.project, ceiling=LimitOverrides(max_steps=4))
        async with it.worker():
            heir = await it.fork(tall, 2)
            event = await result_of(heir)
            state = await it.state(heir)
    assert event["payload"]["steps_taken"] == state["max_steps"] == 4
    assert state["ignored"] == ["limits: max_steps 9 is above the project's ceiling of 4"]

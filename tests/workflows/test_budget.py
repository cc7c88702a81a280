"""Budgets of a run, in tokens and in money: one model call at most goes beyond them (B14)."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from perdure.activities.providers.prices import Price, call_cost
from perdure.contracts.failures import Escalation
from perdure.contracts.run.events import StartEvent
from perdure.contracts.run.state import RunState
from perdure.contracts.run.turn import Usage
from perdure.decisions.text.formatting import run_details
from perdure.settings import ProjectError, load_settings
from perdure.testkit.model_server import Reply, ScriptedAnswer, calls, fails, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.runs import failure_of, printed_run, result_of
from tests.workflows.script import FINISH, count_replies, is_summary

PRICE = Price(input=1.0, output=5.0, cache_read=0.1, cache_write=1.25)
WINDOW = 20_000


def reads(size: int = 100) -> ScriptedTool:
    return ScriptedTool("read", lambda arguments, _: f"{arguments['n']}:" + "lorem ipsum " * (size // 12))


def reading(summary: ScriptedAnswer | None = None) -> Callable[[dict[str, Any]], ScriptedAnswer]:
    """Reads for ever, or until a summary was asked for."""
    numbers = itertools.count()
    summaries: list[ScriptedAnswer] = []

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if summary is not None and is_summary(body):
            summaries.append(summary)
            return summary
        return FINISH if summaries else calls(("read", {"n": next(numbers)}))

    return script


async def spent(it: World, run: Run) -> list[Usage]:
    """By each model call whose reply or summary is in the conversation."""
    parts = await it.parts(run)
    return [Usage(**part["about"]["usage"]) for part in parts if part["kind"] in ("reply", "summary")]


@pytest.mark.parametrize("budget", [1, 3_000, 10_000])
async def test_one_call_at_most_goes_beyond_a_budget_of_tokens(world: MakeWorld, budget: int) -> None:
    async with world(reading(), reads(), budget_tokens=budget, max_steps=99) as it:
        run = await it.start()
        event = await result_of(run)
        each = [usage.total for usage in await spent(it, run)]
        total = Usage(**(await it.state(run))["usage"]).total
        assert len(it.model.requests) == len(each)
    assert (event["type"], event["payload"]["reason"]) == ("agent.escalated", Escalation.token_budget)
    assert sum(each[:-1]) < budget <= sum(each) == total
    assert event["payload"]["detail"] == f"{total:,} tokens are used, and the budget was {budget:,}"
    assert event["payload"]["steps_taken"] == len(each), "the calls that were asked for are made: they cost no tokens"


@pytest.mark.parametrize("budget", [0.000001, 0.003, 0.01])
async def test_one_call_at_most_goes_beyond_a_budget_of_money(world: MakeWorld, budget: float) -> None:
    async with world(reading(), reads(), prices={"scripted": PRICE}, budget_usd=budget, max_steps=99) as it:
        run = await it.start()
        event = await result_of(run)
        each = [call_cost(usage, PRICE) or 0 for usage in await spent(it, run)]
        state = await it.state(run)
        assert len(it.model.requests) == len(each)
    assert (event["type"], event["payload"]["reason"]) == ("agent.escalated", Escalation.money_budget)
    assert sum(each[:-1]) < budget <= sum(each)
    assert state["cost_usd"] == pytest.approx(sum(each))


async def test_an_outcome_that_used_the_budget_up_is_delivered(world: MakeWorld) -> None:
    async with world([FINISH], budget_tokens=1) as it:
        event = await result_of(await it.start())
    assert (event["type"], event["payload"]["outcome"]) == ("agent.completed", "done")


async def test_without_a_price_only_tokens_are_limited_and_the_page_says_so(world: MakeWorld) -> None:
    script = [calls(("read", {"n": 1})), FINISH]
    async with world(script, reads(), budget_usd=0.000001) as it:
        run = await it.start()
        event = await result_of(run)
        snapshot = await run.query("snapshot")
        screen = await printed_run(it, run)
        assert (await it.state(run))["cost_usd"] is None
    assert event["type"] == "agent.completed"
    details = run_details(RunState.model_validate(snapshot["state"]))
    assert "USD unknown, scripted without a price in" in details
    assert "which budget" in details
    assert "USD unknown, scripted without a price in [prices]" in screen


async def test_without_a_price_a_budget_of_tokens_holds(world: MakeWorld) -> None:
    async with world(reading(), reads(), budget_usd=0.000001, budget_tokens=3_000, max_steps=99) as it:
        event = await result_of(await it.start())
    assert event["payload"]["reason"] == Escalation.token_budget


@pytest.mark.parametrize("summary", [says("Read much."), says("")], ids=["of use", "of none"])
async def test_a_summary_counts_and_the_model_is_not_asked_again_beyond_the_budget(
    world: MakeWorld, summary: Reply
) -> None:
    """The budget is used up by the summary: learnt from a run without one, which does the same."""
    async with world(reading(summary), reads(4_000), window=WINDOW, max_steps=99) as it:
        run = await it.start()
        await result_of(run)
        first = next(i for i, request in enumerate(it.model.requests) if is_summary(request))
        before = sum(usage.total for usage in (await spent(it, run))[:first])
        summarised = (await spent(it, run))[first]
    assert summarised.total > 0
    prices = {"scripted": PRICE}
    limits: dict[str, Any] = {"budget_tokens": before + 1, "max_steps": 99}
    async with world(reading(summary), reads(4_000), window=WINDOW, prices=prices, **limits) as it:
        run = await it.start()
        event = await result_of(run)
        kinds = [is_summary(request) for request in it.model.requests]
        state = await it.state(run)
    assert event["payload"]["reason"] == Escalation.token_budget
    assert kinds == [False] * first + [True]
    assert Usage(**state["usage"]).total == before + summarised.total
    assert state["cost_usd"] > 0


async def test_a_fork_has_its_own_budget_and_a_resumed_run_the_remaining_one(world: MakeWorld) -> None:
    """What is forked is a new piece of work; what is resumed is the same one."""

    broken = [True]

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        turn = count_replies(body)
        if turn >= 2 and broken:
            return fails(401, type="authentication_error")
        return FINISH if "fork of run" in json.dumps(body["messages"]) else calls(("read", {"n": turn}))

    async with world(script, reads(), max_steps=99) as it:
        run = await it.start(limits={"budget_tokens": 8_000})
        await failure_of(run)
        used = Usage(**(await it.state(run))["usage"]).total
        broken.clear()
        resumed, forked = await it.resume(run), await it.fork(run, 1)
        assert (await result_of(resumed))["payload"]["reason"] == Escalation.token_budget
        assert Usage(**(await it.state(resumed))["usage"]).total >= 8_000 > used
        assert (await result_of(forked))["type"] == "agent.completed"
        assert Usage(**(await it.state(forked))["usage"]).total < 8_000


NOTHING = [
    ("budget_tokens", 0),
    ("budget_tokens", -5),
    ("budget_usd", 0),
    ("budget_usd", -0.5),
    ("budget_usd", float("nan")),
    ("budget_usd", float("inf")),
    ("soft_limit", 0),
    ("hard_limit", "-5m"),
]


@pytest.mark.parametrize(
    ("file", "text", "place"),
    [
        ("perdure.toml", "[limits]\nmax_steps = 5\n{} = {}\n", "perdure.toml, line 3"),
        ("agents/thrifty.md", "---\nlimits: {{{}: {}}}\n---\nSave.\n", "thrifty.md, line 2"),
    ],
    ids=["settings", "agent file"],
)
@pytest.mark.parametrize(("name", "value"), NOTHING)
def test_a_budget_of_nothing_is_refused_with_its_line(
    tmp_path: Path, name: str, value: Any, file: str, text: str, place: str
) -> None:
    dot = "" if file == "perdure.toml" else "."
    written = json.dumps(value).replace("NaN", f"{dot}nan").replace("Infinity", f"{dot}inf")
    (tmp_path / "agents").mkdir()
    (tmp_path / file).write_text(text.format(name, written))
    with pytest.raises(ProjectError, match=f"{place}: limits.{name}: ") as refused:
        load_settings({}, tmp_path).agent("thrifty")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("where", ["context", "limits"])
@pytest.mark.parametrize(("name", "value"), NOTHING)
def test_a_budget_of_nothing_is_refused_in_a_start_event(where: str, name: str, value: Any) -> None:
    start = {"type": "agentic.start", "payload": {"goal": "go", where: {name: value}}}
    with pytest.raises(ValidationError, match=name):
        StartEvent.model_validate(start)


@pytest.mark.parametrize("where", ["context", "limits"])
async def test_a_start_with_a_budget_of_nothing_ends_typed_and_in_one_line(world: MakeWorld, where: str) -> None:
    async with world([FINISH]) as it:
        run = await it.start_raw({"type": "agentic.start", "payload": {"goal": "go", where: {"budget_tokens": 0}}})
        cause = await failure_of(run)
        assert await it.failed_tasks(run) == 0
    assert cause.type == "InvalidInput"
    assert "budget_tokens" in cause.message
    assert "\n" not in cause.message

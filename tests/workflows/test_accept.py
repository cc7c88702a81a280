"""Agents with `accept`: an outcome counts only if their check accepts it, and what becomes of one that it rejects."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure.activities.model.accept import MAX_ACCEPT_ATTEMPTS, load_check
from perdure.activities.providers.prices import Price
from perdure.activities.storage.store import LocalStores
from perdure.activities.tools.files import WriteFile
from perdure.activities.tools.python import BadTargetError
from perdure.client.records.export import Exporter
from perdure.contracts.agent import Agent
from perdure.contracts.policy import Rubric
from perdure.decisions.run.outcome import MAX_REJECTIONS
from perdure.testkit.model_server import ScriptedAnswer, calls, says
from tests.workflows import checks
from tests.workflows.conftest import MakeWorld
from tests.workflows.runs import expect_cancelled, id_of, result_of, trace_events
from tests.workflows.script import by_turn, forced_tool, texts, tool_results

CHECK = "tests.workflows.checks:has_good_outcome"
BAD, GOOD = (calls(("finish", {"outcome": text})) for text in ("a bad one", "a good one"))
MODEL = "claude-judge"


def agent(accept: Rubric | str, **fields: Any) -> Agent:
    return Agent(name="default", accept=accept, **{"tools": (), **fields})


@pytest.fixture(autouse=True)
def forget_seen() -> Iterator[None]:
    checks.seen.clear()
    yield
    checks.seen.clear()


@pytest.mark.parametrize("reply", [GOOD, says("a good one")], ids=["finish", "text"])
async def test_an_accepted_outcome_says_by_what(world: MakeWorld, reply: ScriptedAnswer, tmp_path: Path) -> None:
    async with world([reply], agents=[agent(CHECK)]) as it:
        run = await it.start("find one")
        event = await result_of(run)
        await it.replay()
    assert (event["type"], event["payload"]["accepted_by"]) == ("agent.completed", CHECK)
    assert checks.seen == [{"goal": "find one", "outcome": "a good one", "result": None, "artifacts": []}]
    (line,) = trace_events(tmp_path / id_of(run), "accept")
    assert line["accepted"]


async def test_a_rejected_outcome_goes_back_with_the_reason(world: MakeWorld) -> None:
    async with world([BAD, says("bad again"), GOOD], agents=[agent(CHECK)]) as it:
        event = await result_of(await it.start())
        second, third = it.model.requests[1:]
        await it.replay()
    assert event["payload"]["outcome"] == "a good one"
    assert tool_results(second) == ["to be checked"]
    assert "not accepted: the outcome is not good" in texts(second)[-1]
    assert sum("not accepted" in text for text in texts(third)) == 2


async def test_too_many_rejections_escalate(world: MakeWorld) -> None:
    async with world(by_turn(lambda _: BAD), agents=[agent(CHECK)]) as it:
        event = await result_of(await it.start())
        assert len(it.model.requests) == MAX_REJECTIONS + 1
        await it.replay()
    assert (event["type"], event["payload"]["reason"]) == ("agent.escalated", "not_accepted")
    assert event["payload"]["detail"] == f"{CHECK} rejected the outcome: the outcome is not good"


async def test_an_exception_of_the_check_is_its_reason(world: MakeWorld) -> None:
    async with world([BAD, GOOD], agents=[agent("tests.workflows.checks:fails_an_assertion")]) as it:
        event = await result_of(await it.start())
        assert "AssertionError: no good in it" in texts(it.model.requests[1])[-1]
    assert event["type"] == "agent.completed"


async def test_the_check_gets_the_files_that_there_are(world: MakeWorld) -> None:
    writes = calls(("write_file", {"path": "artifacts/a.md", "content": "hello"}))
    claims = calls(("finish", {"outcome": "done", "artifacts": ["artifacts/none.md", "../../x"]}))
    writer = agent("tests.workflows.checks:has_files", tools=("write_file",))
    async with world([claims, writes, claims], WriteFile(), agents=[writer]) as it:
        event = await result_of(await it.start())
        assert "no reason was given" in texts(it.model.requests[1])[-1]
    assert event["type"] == "agent.completed"


async def test_a_result_must_match_its_schema_before_it_is_checked(world: MakeWorld) -> None:
    results = [{"total": "x"}, {"total": -1}, {"total": 0}, {"total": 2}]
    script = [calls(("finish", {"outcome": "done", "result": result})) for result in results]
    clerk = agent("tests.workflows.checks:has_total", output_schema={"properties": {"total": {"type": "integer"}}})
    async with world(script, agents=[clerk]) as it:
        run = await it.start()
        event = await result_of(run)
        said = [json.dumps(body["messages"][-1]) for body in it.model.requests[1:]]
    assert event["payload"]["result"] == {"total": 2}
    assert "does not match its schema" in said[0]
    assert "a total is not negative" in said[1]
    assert "no reason was given" in said[2]


def judge(*verdicts: Any) -> Any:
    """A script: the agent finishes in each turn, and the model of the rubric gives these verdicts."""
    left = list(verdicts)

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        return left.pop(0) if body["model"] == MODEL else GOOD

    return script


def verdict(accepted: bool, reason: str = "") -> Any:
    return calls(("verdict", {"accepted": accepted, "reason": reason}))


async def test_a_model_judges_by_the_rubric_and_its_cost_counts(world: MakeWorld) -> None:
    price = {name: Price(input=1, output=1, cache_read=0, cache_write=0) for name in (MODEL, "scripted")}
    clerk = agent(Rubric(rubric="names its source", model=MODEL))
    async with world(judge(verdict(False, "no source"), verdict(True)), agents=[clerk], prices=price) as it:
        run = await it.start("find <one>")
        event = await result_of(run)
        stores = LocalStores(it.project.workspaces)
        record = await Exporter(it.client, stores, stores, asks=True).export(run.id.removeprefix("run:"))
        asked = [body for body in it.model.requests if body["model"] == MODEL]
        again = next(body for body in it.model.requests if len(body["messages"]) > 1)
        await it.replay()
    assert event["payload"]["accepted_by"] == f"rubric by {MODEL}"
    assert [forced_tool(body) for body in asked] == ["verdict", "verdict"]
    assert all(text in texts(asked[0])[0] for text in ("names its source", "find <one>", "a good one"))
    assert "no source" in texts(again)[-1]
    judged = [turn for turn in record.turns if turn.activity == "accept_outcome"]
    assert [turn.verdict for turn in judged] == ["no source", "accepted"]
    assert record.state is not None
    assert record.usage == record.state.usage
    assert record.cost_usd == pytest.approx(record.state.cost_usd)
    assert record.cost_usd
    assert all(turn.model == MODEL and turn.usage.total for turn in judged)


async def test_without_a_verdict_the_run_escalates(world: MakeWorld) -> None:
    clerk = agent(Rubric(rubric="is good", model=MODEL))
    async with world(judge(*[says("well")] * MAX_ACCEPT_ATTEMPTS), agents=[clerk]) as it:
        event = await result_of(await it.start())
        await it.replay()
    assert (event["type"], event["payload"]["reason"]) == ("agent.escalated", "not_accepted")
    assert event["payload"]["detail"] == f"rubric by {MODEL} could not check the outcome: the model gave no verdict"


async def test_a_used_up_budget_buys_no_verdict(world: MakeWorld) -> None:
    clerk = agent(Rubric(rubric="is good", model=MODEL))
    async with world(judge(), agents=[clerk], budget_tokens=1) as it:
        event = await result_of(await it.start())
    assert (event["type"], event["payload"]["reason"]) == ("agent.escalated", "token_budget")


async def test_a_run_that_is_cancelled_while_its_outcome_is_checked_is_cancelled(world: MakeWorld) -> None:
    async with world([GOOD], agents=[agent("tests.workflows.checks:hangs_once")]) as it:
        run = await it.start()
        await it.until(lambda: bool(checks.seen))
        await run.signal("cancel")
        await expect_cancelled(run)
        await it.replay()


async def test_a_check_that_does_not_end_escalates(world: MakeWorld) -> None:
    async with world([GOOD], agents=[agent("tests.workflows.checks:hangs_once")], turn_timeout="1s") as it:
        event = await result_of(await it.start())
    assert event["payload"]["reason"] == "not_accepted"
    assert "it did not end within 0:00:01" in event["payload"]["detail"]


async def test_a_check_whose_worker_goes_is_repeated_by_the_next_one(world: MakeWorld) -> None:
    clerk = agent("tests.workflows.checks:hangs_once")
    async with world([GOOD], agents=[clerk], works=False, grace=timedelta(seconds=0.1)) as it:
        async with it.worker():
            run = await it.start()
            await it.until(lambda: bool(checks.seen))
        async with it.worker():
            event = await result_of(run)
    assert (event["type"], len(checks.seen)) == ("agent.completed", 2)


def test_a_function_that_cannot_be_a_check_is_refused() -> None:
    with pytest.raises(BadTargetError, match="no colour to give it; its parameters can be artifacts, goal"):
        load_check("tests.workflows.checks:takes_too_much")
    with pytest.raises(BadTargetError, match="no_such"):
        load_check("tests.workflows.checks:no_such")

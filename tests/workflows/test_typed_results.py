"""Runs with an output schema: the result that they end with, and what becomes of one that does not match."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.testing import WorkflowEnvironment

from contracts.agent import Agent
from contracts.failures import RunFailure
from decisions.run.loop import LAST_TYPED_TURN
from decisions.run.outcome import MAX_INVALID_RESULTS
from decisions.run.reply import NO_RESULT
from perdure.client.errors import RejectedError
from perdure.testkit.model_server import Reply, ScriptedAnswer, calls, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld
from tests.workflows.runs import failure_of, result_of
from tests.workflows.script import FINISH, agent_of, by_turn, count_replies, forced_tool, tool_results


class Item(BaseModel):
    sku: str
    cents: int


class Order(BaseModel):
    number: str
    items: list[Item]


ORDER = Order.model_json_schema()  # with a definition and a reference to it
GOOD = {"number": "A-1", "items": [{"sku": "mug", "cents": 1200}]}
WRONG = {"number": 1, "items": [{"sku": "mug"}]}
CLERK = Agent(name="default", tools=(), output_schema=ORDER)


def finishes(result: Any) -> Reply:
    return calls(("finish", {"outcome": "Found it.", "result": result}))


async def test_a_completed_run_carries_the_result(world: MakeWorld) -> None:
    async with world([finishes(GOOD)], agents=[CLERK]) as it:
        run = await it.start()
        event = await result_of(run)
        (request,) = it.model.requests
        view = await it.state(run)
        await it.replay()
    assert event["payload"]["result"] == GOOD == view["result"]
    (finish,) = [tool for tool in request["tools"] if tool["name"] == "finish"]
    schema = finish["input_schema"]
    assert "result" in schema["required"]
    assert schema["properties"]["result"]["properties"]["items"]["items"] == {"$ref": "#/$defs/Item"}
    assert schema["$defs"]["Item"]["required"] == ["sku", "cents"]


async def test_a_run_without_a_schema_has_no_result(world: MakeWorld) -> None:
    async with world([finishes(GOOD)], agents=[Agent(name="default", tools=())]) as it:
        event = await result_of(await it.start())
    assert (event["type"], "result" in event["payload"]) == ("agent.completed", False)


async def test_the_start_event_gives_a_schema_of_its_own(world: MakeWorld) -> None:
    async with world([finishes({"total": 3})], agents=[CLERK]) as it:
        event = await result_of(await it.start(output_schema={"type": "object", "required": ["total"]}))
    assert event["payload"]["result"] == {"total": 3}


async def test_a_wrong_result_goes_back_with_the_path_of_each_error(world: MakeWorld) -> None:
    async with world([finishes(WRONG), finishes(GOOD)], agents=[CLERK]) as it:
        event = await result_of(await it.start())
        _, second = it.model.requests
        await it.replay()
    assert event["payload"]["result"] == GOOD
    (error,) = tool_results(second)
    assert "number: 1 is not of type 'string'" in error
    assert "items/0: 'cents' is a required property" in error


async def test_results_written_as_json_text_are_read(world: MakeWorld) -> None:
    async with world([finishes(json.dumps(GOOD))], agents=[CLERK]) as it:
        event = await result_of(await it.start())
    assert event["payload"]["result"] == GOOD


@pytest.mark.parametrize(
    ("reply", "error"),
    [(finishes(WRONG), "items/0"), (FINISH, "`result` is required"), (says("All done."), "there was only text")],
    ids=["wrong", "missing", "text"],
)
async def test_a_run_that_gives_no_valid_result_escalates(world: MakeWorld, reply: ScriptedAnswer, error: str) -> None:
    async with world(by_turn(lambda _: reply), agents=[CLERK]) as it:
        event = await result_of(await it.start())
        assert len(it.model.requests) == MAX_INVALID_RESULTS
        await it.replay()
    assert (event["type"], event["payload"]["reason"]) == ("agent.escalated", "result_invalid")
    assert error in event["payload"]["detail"]
    assert "result" not in event["payload"]


async def test_text_in_place_of_a_result_is_answered_with_a_forced_finish(world: MakeWorld) -> None:
    async with world([says("It is A-1."), finishes(GOOD)], agents=[CLERK]) as it:
        event = await result_of(await it.start())
        first, second = it.model.requests
    assert event["payload"]["result"] == GOOD
    assert (forced_tool(first), forced_tool(second)) == (None, "finish")
    assert NO_RESULT in json.dumps(second["messages"][-1])


@pytest.mark.parametrize("result", [GOOD, WRONG], ids=["valid", "invalid"])
async def test_the_last_turn_of_a_run_out_of_time_may_give_the_result(
    world: MakeWorld, skipping: WorkflowEnvironment, result: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000_000, 500))
    monkeypatch.setattr("activities.tools.call.perf_counter", lambda: next(clock))

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        return finishes(result) if forced_tool(body) == "finish" else calls(("look", {"at": count_replies(body)}))

    look = ScriptedTool("look", lambda *_: "something")
    clerk = CLERK.model_copy(update={"tools": ("look",)})
    async with world(script, look, server=skipping.client, agents=[clerk]) as it:
        event = await result_of(await it.start(limits={"soft_limit": "5m"}))
        last = it.model.requests[-1]
    assert LAST_TYPED_TURN in json.dumps(last["messages"][-1])
    if result is GOOD:
        assert (event["payload"]["partial"], event["payload"]["result"]) == (True, GOOD)
    else:
        assert event["payload"]["reason"] == "result_invalid"


async def test_the_context_of_a_start_is_checked_before_the_model_is_called(world: MakeWorld) -> None:
    schema = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
    agent = Agent(name="default", tools=(), input_schema=schema | {"additionalProperties": False})
    async with world([says("done")], agents=[agent]) as it:
        failure = await failure_of(await it.start(context={"order": 7}))
        missing = await failure_of(await it.start())
        assert it.model.requests == []
        event = await result_of(await it.start(context={"order": "A-1", "max_steps": 3}))
    assert failure.type == missing.type == RunFailure.invalid_input
    assert "order: 7 is not of type 'string'" in failure.message
    assert "'order' is a required property" in missing.message
    assert event["type"] == "agent.completed"


async def test_an_output_schema_that_is_none_is_rejected(world: MakeWorld) -> None:
    bad = {"type": "sentence"}
    async with world([says("done")]) as it:
        with pytest.raises(RejectedError, match="output_schema: not a JSON Schema: 'sentence' is not valid"):
            await it.start(output_schema=bad)
        payload = {"goal": "do it", "output_schema": bad}
        failure = await failure_of(await it.start_raw({"type": "agentic.start", "payload": payload}))
        assert it.model.requests == []
    assert (failure.type, "not a JSON Schema" in failure.message) == (RunFailure.invalid_input, True)


async def test_a_resumed_run_keeps_the_schema_of_its_start(world: MakeWorld) -> None:
    answers = {"model": says("")}
    async with world(lambda _: answers["model"]) as it:
        run = await it.start(output_schema={"type": "object", "required": ["total"]})
        assert (await failure_of(run)).type == RunFailure.model_unusable
        answers["model"] = finishes({"total": 3})
        event = await result_of(await it.resume(run))
        await it.replay()
    assert event["payload"]["result"] == {"total": 3}


def delegates_for(schema: dict[str, Any]) -> Callable[[dict[str, Any]], ScriptedAnswer]:
    task = {"id": "find", "agent": "finder", "instructions": "Find it.", "output_schema": schema}
    lead = [calls(("delegate", {"subtasks": [task]})), FINISH]
    return lambda body: lead[count_replies(body)] if agent_of(body) == "lead" else finishes(GOOD)


async def test_a_subtask_with_a_schema_gives_its_parent_json(world: MakeWorld) -> None:
    agents = [
        Agent(name="lead", prompt="I am lead.", tools=(), peers=("finder",)),
        Agent(name="finder", prompt="I am finder.", description="finds", tools=()),
    ]
    async with world(delegates_for(ORDER), agents=agents) as it:
        event = await result_of(await it.start(agent="lead"))
        (result,) = tool_results(it.model.requests[-1])
        await it.replay()
    assert event["type"] == "agent.completed"
    assert json.loads(result)["subtasks"][0]["result"] == GOOD

"""Runs with an output schema: the result that they end with, and what becomes of one that does not match."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure.activities.security import collect_secrets
from perdure.client.errors import RejectedError
from perdure.contracts.agent import Agent
from perdure.contracts.failures import RunFailure
from perdure.converter import data_converter
from perdure.decisions.run.loop import LAST_TYPED_TURN
from perdure.decisions.run.outcome import MAX_INVALID_RESULTS
from perdure.decisions.run.reply import RESULT_MISSING
from perdure.stubs import AgentRun, CompletedEvent, StartEvent, StartPayload
from perdure.testkit.model_server import Reply, ScriptedAnswer, calls, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld
from tests.workflows.runs import failure_of, result_of
from tests.workflows.script import FINISH, agent_of, by_turn, count_replies, forced_tool, is_summary, tool_results


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


async def test_an_empty_schema_of_a_start_accepts_any_result(world: MakeWorld) -> None:
    async with world([finishes("three")], agents=[CLERK]) as it:
        event = await result_of(await it.start(output_schema={}))
    assert event["payload"]["result"] == "three"


async def test_null_is_a_result_like_others(world: MakeWorld) -> None:
    clerk = CLERK.evolve(output_schema={"type": ["object", "null"]})
    async with world([finishes(None)], agents=[clerk]) as it:
        run = await it.start()
        event = await result_of(run)
        view = await it.state(run)
        await it.replay()
    assert (event["type"], event["payload"]["result"], view["result"]) == ("agent.completed", None, None)


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
    assert RESULT_MISSING in json.dumps(second["messages"][-1])


async def test_text_in_place_of_a_question_to_a_person_leaves_the_question_to_the_runtime(world: MakeWorld) -> None:
    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if forced_tool(body) == "ask_human":
            return says("I am stuck.")
        if "look in the attic" in json.dumps(body["messages"][-1]):
            return finishes(GOOD)
        return calls(("reframe", {"frame": "x"})) if forced_tool(body) == "reframe" else calls(("look", {"q": "x"}))

    look = ScriptedTool("look", lambda *_: "nothing")
    async with world(script, look, agents=[CLERK.evolve(tools=("look",))]) as it:
        run = await it.start()
        state = await it.until_state(run, question=True)
        assert state["question"]["kind"] == "thrash"
        await run.execute_update("answer", {"text": "look in the attic"})
        event = await result_of(run)
        assert forced_tool(it.model.requests[-1]) is None
        await it.replay()
    assert event["payload"]["result"] == GOOD


SILENT = calls(("finish", {"result": GOOD}))


@pytest.mark.parametrize("last_reply", [finishes(GOOD), SILENT, finishes(WRONG)], ids=["valid", "no text", "invalid"])
async def test_the_last_turn_of_a_run_out_of_time_may_give_the_result(
    world: MakeWorld, skipping: WorkflowEnvironment, last_reply: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000_000, 500))
    monkeypatch.setattr("perdure.activities.tools.call.perf_counter", lambda: next(clock))

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        return last_reply if forced_tool(body) == "finish" else calls(("look", {"at": count_replies(body)}))

    look = ScriptedTool("look", lambda *_: "something")
    clerk = CLERK.evolve(tools=("look",))
    async with world(script, look, server=skipping.client, agents=[clerk]) as it:
        event = await result_of(await it.start(limits={"soft_limit": "5m"}))
        last = it.model.requests[-1]
    assert LAST_TYPED_TURN in json.dumps(last["messages"][-1])
    if "result" in event["payload"]:
        assert (event["payload"]["partial"], event["payload"]["result"]) == (True, GOOD)
        assert event["payload"]["outcome"]
    else:
        assert last_reply == finishes(WRONG)
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


OUTSIDE = {"properties": {"a": {"$ref": "file:///etc/hostname"}}}
LEADS_OUT = "'properties/a/$ref' refers to 'file:///etc/hostname', which is not in the schema"


async def test_an_output_schema_that_leads_out_of_itself_is_rejected(world: MakeWorld) -> None:
    async with world([says("done")]) as it:
        with pytest.raises(RejectedError, match=re.escape(f"payload.output_schema: {LEADS_OUT}")):
            await it.start(output_schema=OUTSIDE)
        payload = {"goal": "do it", "output_schema": OUTSIDE}
        failure = await failure_of(await it.start_raw({"type": "agentic.start", "payload": payload}))
        assert it.model.requests == []
    assert (failure.type, LEADS_OUT in failure.message) == (RunFailure.invalid_input, True)


async def test_a_subtask_whose_schema_leads_out_of_itself_is_not_begun(world: MakeWorld) -> None:
    agents = [
        Agent(name="lead", prompt="I am lead.", tools=(), peers=("finder",)),
        Agent(name="finder", prompt="I am finder.", description="finds", tools=()),
    ]
    async with world(delegates_for(OUTSIDE, GOOD), agents=agents) as it:
        event = await result_of(await it.start(agent="lead"))
        (result,) = tool_results(it.model.requests[-1])
        assert [agent_of(request) for request in it.model.requests] == ["lead", "lead"]
        await it.replay()
    assert event["type"] == "agent.completed"
    assert f"find: output_schema: {LEADS_OUT}" in result


async def test_a_resumed_run_keeps_the_schema_of_its_start(world: MakeWorld) -> None:
    answers = {"model": says("")}
    async with world(lambda _: answers["model"]) as it:
        run = await it.start(output_schema={"type": "object", "required": ["total"]})
        assert (await failure_of(run)).type == RunFailure.model_unusable
        answers["model"] = finishes({"total": 3})
        event = await result_of(await it.resume(run))
        await it.replay()
    assert event["payload"]["result"] == {"total": 3}


def delegates_for(schema: dict[str, Any], given: Any) -> Callable[[dict[str, Any]], ScriptedAnswer]:
    task = {"id": "find", "agent": "finder", "instructions": "Find it.", "output_schema": schema}
    lead = [calls(("delegate", {"subtasks": [task]})), FINISH]
    return lambda body: lead[count_replies(body)] if agent_of(body) == "lead" else finishes(given)


@pytest.mark.parametrize("given", [GOOD, None, False, []], ids=["object", "null", "false", "empty"])
async def test_a_subtask_with_a_schema_gives_its_parent_json(world: MakeWorld, given: Any) -> None:
    agents = [
        Agent(name="lead", prompt="I am lead.", tools=(), peers=("finder",)),
        Agent(name="finder", prompt="I am finder.", description="finds", tools=()),
    ]
    schema = ORDER if given == GOOD else {}
    async with world(delegates_for(schema, given), agents=agents) as it:
        event = await result_of(await it.start(agent="lead"))
        (result,) = tool_results(it.model.requests[-1])
        await it.replay()
    assert event["type"] == "agent.completed"
    assert json.loads(result)["subtasks"][0]["result"] == given


async def test_a_result_that_is_too_long_for_its_parent_fails_the_subtask(world: MakeWorld) -> None:
    agents = [
        Agent(name="lead", prompt="I am lead.", tools=(), peers=("finder",)),
        Agent(name="finder", prompt="I am finder.", description="finds", tools=()),
    ]
    delegate = calls(
        ("delegate", {"subtasks": [{"id": "a", "agent": "finder", "instructions": "Find.", "output_schema": {}}]})
    )

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if agent_of(body) == "finder":
            return finishes("x" * 300_000)
        return FINISH if count_replies(body) else delegate

    async with world(script, agents=agents) as it:
        await result_of(await it.start(agent="lead"))
        (result,) = tool_results(it.model.requests[-1])
    assert "its result has 300,002 bytes; delegate smaller parts" in result
    assert "xxx" not in result


def looks_then(*answers: ScriptedAnswer, most: int) -> Callable[[dict[str, Any]], ScriptedAnswer]:
    """A script that looks `most` times, and then gives these answers."""
    replies = iter([*(calls(("look", {"n": n})) for n in range(most)), *answers])
    return lambda body: says("So far: looked.") if is_summary(body) else next(replies)


def look(size: int = 10) -> ScriptedTool:
    return ScriptedTool("look", lambda arguments, _: f"{arguments['n']}: " + "lorem " * (size // 6))


LOOKING = CLERK.evolve(tools=("look",))


async def test_a_fused_read_brings_an_invalid_result_and_then_a_valid_one(world: MakeWorld) -> None:
    async with world(looks_then(finishes(WRONG), finishes(GOOD), most=1), look(), agents=[LOOKING], fuses=True) as it:
        run = await it.start()
        event = await result_of(run)
        assert b"read_and_reflect" in await it.raw_history(run)
        _, error = tool_results(it.model.requests[-1])
    assert event["payload"]["result"] == GOOD
    assert "items/0: 'cents' is a required property" in error


async def test_a_compacted_run_ends_with_its_result(world: MakeWorld) -> None:
    script = looks_then(finishes(GOOD), most=16)
    async with world(script, look(4_000), agents=[LOOKING], window=20_000, max_steps=50) as it:
        event = await result_of(await it.start())
        assert any(map(is_summary, it.model.requests))
    assert event["payload"]["result"] == GOOD


async def test_invalid_results_are_counted_across_a_continue_as_new(
    world: MakeWorld, short_history_client: Client
) -> None:
    wrong = finishes(WRONG)
    answers = (wrong, *(calls(("look", {"n": n})) for n in range(25)), wrong, wrong)
    script = looks_then(*answers, most=0)
    async with world(script, look(), agents=[LOOKING], server=short_history_client, max_steps=40) as it:
        run = await it.start()
        first = (await run.describe()).raw_description.workflow_execution_info.first_run_id
        event = await result_of(run)
        last = (await it.client.get_workflow_handle(run.id).describe()).run_id
    assert event["payload"]["reason"] == "result_invalid"
    assert last != first


async def test_a_secret_in_a_result_is_redacted(world: MakeWorld) -> None:
    secret = "canary-Xq7vK2mZ9-4711"
    leak = {**GOOD, "number": f"the key is {secret}"}
    wrong = {**GOOD, "number": [secret]}
    secrets = collect_secrets({"SHOP_API_KEY": secret})
    async with world([finishes(wrong), finishes(leak)], agents=[CLERK], secrets=secrets) as it:
        run = await it.start()
        event = await result_of(run)
        raw = await it.raw_history(run)
        assert secret not in json.dumps(it.model.requests)
    assert event["payload"]["result"]["number"].startswith("the key is ")
    assert secret not in json.dumps(event)
    assert secret.encode() not in raw


async def test_a_typed_client_validates_the_result_with_its_own_model(world: MakeWorld) -> None:
    start = StartEvent(type="agentic.start", payload=StartPayload(goal="find order A-1", output_schema=ORDER))
    async with world([finishes(GOOD)]) as it:
        host = it.client.service_client.config.target_host
        client = await Client.connect(host, data_converter=data_converter)
        it.started.append("run:typed-caller")
        end = await client.execute_workflow(AgentRun.run, start, id="run:typed-caller", task_queue=it.queue)
    assert isinstance(end, CompletedEvent)
    order = Order.model_validate(end.payload.result)
    assert [item.sku for item in order.items] == ["mug"]

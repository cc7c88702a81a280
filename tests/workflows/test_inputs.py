"""Whatever is sent, a start ends in a typed failure, a message in a refusal, and no run is wedged or harmed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure.contracts.tool import ToolKind
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.runs import failure_of
from tests.workflows.script import FINISH

GOOD = {"type": "agentic.start", "payload": {"goal": "x"}}


def raw(data: bytes, encoding: bytes = b"json/plain", **metadata: bytes) -> RawValue:
    return RawValue(Payload(metadata={"encoding": encoding, **metadata}, data=data))


START = b'{"type": "agentic.start", "payload": {"goal": "x", "context": {"sums": [{"of": %b}]}}}'
DEEP = raw(b"[" * 10_000 + b"]" * 10_000)
TWICE = raw(b'{"type": "agentic.start", "payload": {"goal": "a", "goal": "b"}, "text": "a", "text": "b"}')
NUMBERS = tuple(raw(START % number) for number in (b"NaN", b"-Infinity", b"1e400", b"9" * 5000))
ODD = raw(b"?", b"json/odd")
REFERENCE = {"encoding": b"json/protobuf", "messageType": b"temporal.api.sdk.v1.ExternalStorageReference"}
NOWHERE = raw(b'{"driverName": "perdure", "claimData": {"key": "no/such"}}', **REFERENCE)
TORN = raw(b'{"driverName', **REFERENCE)
MARKED = RawValue(Payload(metadata={"__temporal_external_storage_reference": b"true"}, data=b"?"))
BIG = {"type": "agentic.start", "payload": {"goal": "x", "context": {"notes": ['"'] * 400_000}}}


def start_with(**payload: Any) -> dict[str, Any]:
    return {"type": "agentic.start", "payload": payload}


async def sound_failure(it: World, run: Run) -> ApplicationError:
    """The typed failure of a run of which no workflow task failed."""
    failure = await failure_of(run)
    assert await it.failed_tasks(run) == 0
    return failure


@asynccontextmanager
async def asking(world: MakeWorld) -> AsyncIterator[tuple[World, Run]]:
    """A run that waits for a person; afterwards it goes on to its end, unharmed."""
    async with world([calls(("ask_human", {"question": "Which?"})), FINISH]) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        yield it, run
        await it.answer(run, text="a")
        assert (await run.result())["type"] == "agent.completed"
        assert await it.failed_tasks(run) == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "one JSON argument expected, got 0"),
        ([GOOD, GOOD], "one JSON argument expected, got 2"),
        ([None], "input"),
        ([5], "input"),
        (["do it"], "input"),
        ([[GOOD]], "input"),
        ([{}], "type"),
        ([{"type": "agentic.stop", "payload": {"goal": "x"}}], "type"),
        ([{"type": "agentic.start"}], "payload"),
        ([start_with()], "payload.goal"),
        ([start_with(goal="")], "payload.goal"),
        ([start_with(goal=" \n ")], "payload.goal: the goal is empty"),
        ([start_with(goal=5)], "payload.goal"),
        ([start_with(goal=None)], "payload.goal"),
        ([start_with(goal="x", colour="red")], "payload.colour"),
        ([{**GOOD, "version": 2}], "version"),
        ([start_with(goal="x", context=[])], "payload.context"),
        ([start_with(goal="x", context={"max_steps": 0})], "max_steps"),
        ([start_with(goal="x", context={"max_steps": "many"})], "max_steps"),
        ([start_with(goal="x", limits={"max_stepz": 5})], "payload.limits.max_stepz"),
        ([start_with(goal="x", limits={"turn_timeout": "soon"})], "payload.limits.turn_timeout"),
        ([start_with(goal="x", agent="")], "payload.agent"),
        ([start_with(goal="x" * 200_001)], "payload.goal"),
        ([DEEP], "not readable as JSON"),
        ([TWICE], "not readable as JSON: payload.goal: it is there twice"),
        *(([number], "not readable as JSON: payload.context.sums.0.of: ") for number in NUMBERS),
        ([ODD], "not readable as JSON"),
        ([NOWHERE], "kept outside of Temporal, and cannot be had"),
        ([TORN], "kept outside of Temporal, and cannot be had"),
        ([MARKED], "kept outside of Temporal, and cannot be had"),
        ([BIG], "the limit is 480,000"),
        ([{"type": "agentic.continue"}], "state"),
        ([{"type": "agentic.continue", "state": {}, "segments": []}], "state"),
    ],
)
async def test_a_bad_start_fails_typed_with_the_wrong_field(world: MakeWorld, args: list[Any], says: str) -> None:
    async with world([FINISH]) as it:
        cause = await sound_failure(it, await it.start_raw(*args))
        assert it.model.requests == []
    assert cause.type == "InvalidInput"
    assert says in cause.message
    assert "\n" not in cause.message


async def test_an_unknown_agent_fails_typed_and_names_the_known_ones(world: MakeWorld) -> None:
    async with world([FINISH]) as it:
        cause = await sound_failure(it, await it.start(agent="nobody"))
    assert cause.type == "UnknownAgent"
    assert "default" in cause.message


async def test_a_workflow_type_that_does_not_exist_fails_typed(world: MakeWorld) -> None:
    async with world([FINISH]) as it:
        run = await it.client.start_workflow("AgentRum", GOOD, id=it.queue, task_queue=it.queue)
        cause = await sound_failure(it, run)
    assert cause.type == "UnknownWorkflowType"
    assert "'AgentRum'" in cause.message


async def test_signals_to_a_start_that_is_refused_change_nothing(world: MakeWorld) -> None:
    async with world([FINISH], works=False) as it:
        run = await it.start_raw({})
        for name in ("tool_result", "human_input", "cancel", "no_such_signal"):
            await run.signal(name, {"text": "x"})
        async with it.worker():
            assert (await sound_failure(it, run)).type == "InvalidInput"


BAD_BODIES: list[list[Any]] = [
    [],
    [{}, {}],
    [None],
    [5],
    ["text"],
    [[]],
    [{"no": "such field"}],
    [{"payload": {"run_id": "x"}}],
    [{"payload": {"run_id": 1, "step": "one", "tool": None, "status": "maybe"}}],
    [{"question_id": 1}],
    [{"decision": "perhaps"}],
    [DEEP],
    [TWICE],
    [ODD],
    [NOWHERE],
    [TORN],
    [MARKED],
]


async def test_no_bad_signal_harms_a_run(world: MakeWorld) -> None:
    vote = ScriptedTool("vote", kind=ToolKind.signal)
    async with world([calls(("vote", {})), calls(("ask_human", {"question": "Which?"})), FINISH], vote) as it:
        run = await it.start()
        await it.until_pending(run, 1)
        before = await it.state(run)
        for body in BAD_BODIES:
            for name in ("tool_result", "human_input", "no_such_signal"):
                await run.signal(name, args=body)
        bad_cancels: list[list[Any]] = [[{}, {}], [5], ["text"], [{"no": "such field"}], [{"reason": 5}]]
        for body in bad_cancels:
            await run.signal("cancel", args=body)
        after = await it.state(run)
        changed = {key for key in before if before[key] != after[key]}
        assert changed <= {"ignored", "updated_at"}
        assert len(after["ignored"]) == 20  # the latest
        assert any(notice.startswith("cancel: no:") for notice in after["ignored"])
        await it.send_result(run, 1, "vote")
        await it.until_state(run, question=True)
        await run.signal("human_input", {"text": "a"})
        assert (await run.result())["type"] == "agent.completed"
        assert await it.failed_tasks(run) == 0


async def test_ignored_signals_are_listed_with_their_reason(world: MakeWorld) -> None:
    async with asking(world) as (it, run):
        await run.signal("tool_result", {"payload": 5})
        await run.signal("no_such_signal", {"a": 1})
        ignored = (await it.state(run))["ignored"]
    assert ignored[0].startswith("tool_result: payload")
    assert ignored[1].startswith("no_such_signal: no such signal")


async def test_no_bad_update_harms_a_run(world: MakeWorld) -> None:
    async with asking(world) as (_, run):
        for body in BAD_BODIES:
            with pytest.raises(WorkflowUpdateFailedError):
                await run.execute_update("answer", args=body)
        with pytest.raises(WorkflowUpdateFailedError):
            await run.execute_update("no_such_update", {"text": "a"})


async def test_a_bad_query_fails_its_caller_alone(world: MakeWorld) -> None:
    async with asking(world) as (it, run):
        bad: list[list[Any]] = [[{"from": -1}], [{"from": "x"}], [{"limit": 0}], [{"no": 1}], [5], [{}, {}]]
        for body in bad:
            with pytest.raises(WorkflowQueryFailedError):
                await run.query("transcript", args=body)
        with pytest.raises(WorkflowQueryFailedError):
            await run.query("no_such_query")
        assert (await run.query("transcript", {"from": 1, "limit": 1}))["start"] == 1
        assert (await run.query("transcript", {"from": 99}))["parts"] == []
        assert await run.query("transcript", args=[None]) == await run.query("transcript")
        assert await run.query("state", args=[{"any": "thing"}]) == await it.state(run)
        assert set(await run.query("journal")) >= {"objective", "current_state", "handoff_next_action"}

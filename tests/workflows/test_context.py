"""A conversation that outgrows the model's window is compacted, pruned, at last brought before a person (B4, B5)."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.activities.providers.anthropic import MessagesModel
from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.contracts.failures import Escalation
from perdure.contracts.run.state import RunState
from perdure.contracts.run.turn import ContextFull, Recoveries
from perdure.decisions.run.compaction import ENTRIES
from perdure.decisions.run.limits import DEFAULTS
from perdure.testkit.model_server import ScriptedAnswer, calls, cut, fails, says, slow
from perdure.testkit.tools import ScriptedTool
from perdure.workflows.agent_run.compaction import free_context
from tests.workflows.conftest import MakeWorld
from tests.workflows.runs import cancel_run, expect_cancelled, result_of, trace_events
from tests.workflows.script import FINISH, is_summary, same_prefix, without_cache_marks

SUMMARY = says("So far: 1 was read, and it says lorem.")
WINDOW = 20_000


def reader(size: int = 4_000) -> ScriptedTool:
    """Each result is another one."""
    return ScriptedTool("read", lambda arguments, _: f"{arguments['n']}:" + "lorem ipsum " * (size // 12))


def reads(most: int) -> Callable[[dict[str, Any]], ScriptedAnswer]:
    """Reads on, `most` times, and counts by what is in its journal or its last message; summarises when asked."""
    made = iter(range(1, most + 1))

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if is_summary(body):
            return SUMMARY
        number = next(made, None)
        return FINISH if number is None else calls(("read", {"n": number}))

    return script


def turns_of(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [request for request in requests if not is_summary(request)]


async def test_at_seventy_percent_the_old_messages_become_a_summary(world: MakeWorld, tmp_path: Path) -> None:
    async with world(reads(16), reader(), window=WINDOW, max_steps=50) as it:
        run = await it.start("read it all", run_id=it.queue)
        assert (await result_of(run))["payload"]["steps_taken"] == 16
        requests = it.model.requests
        parts = await it.parts(run)
        raw = await it.raw_history(run)
        usage = (await it.state(run))["usage"]
    asked = next(i for i, request in enumerate(requests) if is_summary(request))
    before, after = requests[asked - 1], requests[asked + 1]
    whole = [*without_cache_marks(before["messages"]), *without_cache_marks(after["messages"])[-2:]]
    assert without_cache_marks(after["messages"])[-10:] == whole[-10:]
    assert "read it all" in str(after["messages"][0])
    assert "So far: 1 was read" in str(after["messages"][0])
    assert "## read, step" in str(after["messages"][0])
    assert "# Run journal" in str(after["messages"][1])
    assert "Your run journal, in short" in str(after["system"])
    assert [part["kind"] for part in parts].count("summary") == len(trace_events(tmp_path / it.queue, "compact")) >= 1
    assert raw.count(b"So far: 1 was read") == raw.count(b'"text":"So far'), "once for each compaction"
    (first, *_) = trace_events(tmp_path / it.queue, "agent.compaction.run")
    assert first["before_tokens"] > 0.7 * WINDOW > first["after_tokens"]
    assert first["before_messages"] > first["after_messages"]
    assert usage["input"] > 0


async def test_a_run_goes_on_without_a_summary_that_fails(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("perdure.activities.model.summarize.MAX_SUMMARY_ATTEMPTS", 1)
    answers = reads(16)

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        return cut(says("half")) if is_summary(body) else answers(body)

    async with world(script, reader(), window=WINDOW, max_steps=50) as it:
        run = await it.start(run_id=it.queue)
        assert (await result_of(run))["type"] == "agent.completed"
        after = turns_of(it.model.requests)[-1]
    front = after["messages"][0]["content"][0]["text"]
    assert '{"from": "agent", "calls": "read", "arguments": ' in front
    assert ENTRIES in front
    assert trace_events(tmp_path / it.queue, "agent.compaction.run")[0]["model"] is None


async def test_too_long_for_the_provider_is_no_failure(world: MakeWorld) -> None:
    """Its window is smaller than was thought: the ladder is the same, and it is remembered."""
    answers = reads(28)

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        tokens = len(json.dumps(body)) // 4
        if not is_summary(body) and tokens > 12_000:
            return fails(400, message=f"prompt is too long: {tokens} tokens > 12000 maximum")
        return answers(body)

    async with world(script, reader(2_000), window=100_000, max_steps=50) as it:
        run = await it.start()
        assert (await result_of(run))["type"] == "agent.completed"
        refused = [r for r in turns_of(it.model.requests) if len(json.dumps(r)) // 4 > 12_000]
    assert len(refused) == 1, "once refused, its limit is known"


async def test_the_ladder_of_recoveries_ends_at_a_person(world: MakeWorld, tmp_path: Path) -> None:
    """Results so large that neither a compaction nor a deep prune holds for long."""
    made = iter(range(1, 100))

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if is_summary(body):
            return says("So far: read a lot.")
        if body.get("tool_choice", {}).get("name") == "ask_human":
            return calls(("ask_human", {"question": "I have read half."}))
        if "stop reading" in json.dumps(body["messages"]):
            return FINISH
        return calls(("read", {"n": next(made)}))

    async with world(script, reader(20_000), window=WINDOW, max_steps=50) as it:
        run = await it.start(run_id=it.queue)
        state = await it.until_state(run, question=True)
        assert state["question"]["kind"] == "recovery"
        assert state["question"]["text"].startswith("I've made progress but I'm losing context")
        assert state["question"]["text"].endswith("I have read half.")
        await run.execute_update("answer", {"text": "stop reading"})
        assert (await result_of(run))["type"] == "agent.completed"
    fired = trace_events(tmp_path / it.queue, "agent.compaction.run", "agent.recovery.fired")
    assert [(e["event"], e.get("stage")) for e in fired][:3] == [
        ("agent.compaction.run", None),
        ("agent.recovery.fired", "prune"),
        ("agent.recovery.fired", "ask"),
    ]


async def test_where_nothing_fits_the_run_escalates_after_four_recoveries(world: MakeWorld, tmp_path: Path) -> None:
    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if is_summary(body):
            return says("Nothing.")
        if len(body["messages"]) == 1 and "So far" not in str(body):
            return calls(("read", {"n": 1}))
        return fails(400, message="prompt is too long: 30000 tokens > 20000 maximum")

    async with world(script, reader(), window=WINDOW) as it:
        run = await it.start(run_id=it.queue)
        await it.answer(run, decision="continue")
        event = await result_of(run)
        assert (event["type"], event["payload"]["reason"]) == ("agent.escalated", Escalation.context)
        assert "Blocker: about" in event["payload"]["handoff"]


async def test_each_request_extends_the_one_before_it(world: MakeWorld) -> None:
    """Between compactions 95 % of a request are the beginning of the next one, which the provider's cache then has."""
    async with world(reads(14), reader(2_000), window=1_000_000, max_steps=50) as it:
        run = await it.start()
        await result_of(run)
        marked = it.model.requests[-1]
    assert min(same_prefix(before, after) for before, after in pairwise(it.model.requests)) >= 0.95
    assert marked["system"][-1]["cache_control"] == {"type": "ephemeral"}
    assert marked["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}


@pytest.mark.parametrize("way", ["signal", "native"])
async def test_a_cancel_during_a_summary_ends_the_run_as_any_cancel_does(
    world: MakeWorld, way: str, tmp_path: Path
) -> None:
    answers = reads(16)

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        return slow(SUMMARY, 20) if is_summary(body) else answers(body)

    async with world(script, reader(), window=WINDOW, max_steps=50) as it:
        run = await it.start(run_id=it.queue)
        await it.until(lambda: any(is_summary(request) for request in it.model.requests))
        await cancel_run(run, way)
        await expect_cancelled(run)
        assert (await it.state(run))["status"] == "cancelled"
    assert trace_events(tmp_path / it.queue, "agent_run.cancelled")


async def test_a_summary_has_all_the_time_of_a_turn(world: MakeWorld) -> None:
    """Were it cut off before it has given its model up, it would be tried, and cut off, for ever."""
    async with world(reads(16), reader(), window=WINDOW, max_steps=50, turn_timeout="30m") as it:
        run = await it.start()
        await result_of(run)
        given = [
            event.activity_task_scheduled_event_attributes
            async for event in run.fetch_history_events()
            if event.HasField("activity_task_scheduled_event_attributes")
        ]
    (summary, *_) = [each for each in given if each.activity_type.name == "summarize"]
    assert summary.start_to_close_timeout.ToTimedelta() > timedelta(minutes=30)


async def test_any_error_of_a_summary_leaves_the_run_going(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even what nobody thought of."""
    monkeypatch.setattr("perdure.activities.model.summarize.MAX_SUMMARY_ATTEMPTS", 1)
    reply = MessagesModel.reply

    async def odd(self: MessagesModel, call: ModelCall) -> ModelReply:
        if not call.definition.tools:
            raise IndexError("a stream that makes no sense")
        return await reply(self, call)

    monkeypatch.setattr(MessagesModel, "reply", odd)
    async with world(reads(16), reader(), window=WINDOW, max_steps=50) as it:
        assert (await result_of(await it.start()))["type"] == "agent.completed"


async def test_a_last_turn_that_does_not_fit_still_leaves_a_partial_outcome() -> None:
    now = datetime.now(UTC)
    state = RunState(
        run_id="r",
        goal="read",
        agent="a",
        context={},
        conversation_id=None,
        created_at=now,
        updated_at=now,
        limits=DEFAULTS,
        is_closing=True,
        recoveries=Recoveries(used=4),
        last_finding="half is read",
    )
    run: Any = SimpleNamespace(state=state)
    await free_context(run, ContextFull(tokens=9000, window=8000, messages=9))
    assert (run.state.ending.is_partial, run.state.ending.text) == (True, "half is read")

"""A model that cannot answer, and a provider that takes no more calls: what a run makes of it, and what it shows."""

import asyncio
import json
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from activities.model.anthropic import MessagesModel
from activities.model.fallback import FallbackModel, Provider
from activities.model.port import Model, ModelCall, ModelReply
from activities.model.prices import Price
from activities.model.rate_limit import RateLimitedError, RateLimiter
from contracts.failures import RunFailure
from perdure.client.run_events import PartialText
from perdure.client.watch import Watch
from perdure.testkit.model_server import ScriptedAnswer, ScriptedModel, calls, cut, fails, says, slow
from perdure.testkit.tools import ScriptedTool

FINISH = calls(("finish", {"outcome": "done"}))
LOOK = calls(("look", {}), text="Plan: look.")
PRICES = {"scripted": Price(1, 1, 1, 1), "near:small": Price(1000, 1000, 0, 0)}


async def details_of(it: Any, run: Any) -> str:
    return str((await run.query("__temporal_workflow_metadata")).current_details)


def lines(folder: Path, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]
    return [line for line in found if line["event"] == event]


@pytest.mark.parametrize(
    "fault",
    [
        fails(529, message="Overloaded"),
        fails(503),
        cut(says("half of an")),
        cut(says("x"), error="overloaded_error"),
        fails(429, retry_after=50),
    ],
)
async def test_where_the_model_cannot_answer_the_next_does_within_the_same_attempt_and_all_can_see_it(
    world: Any, tmp_path: Path, fault: ScriptedAnswer
) -> None:
    near = ScriptedModel([LOOK, FINISH])
    with near:
        client = AsyncAnthropic(api_key="none", base_url=near.base_url, max_retries=0)
        async with client, world([fault, fault], ScriptedTool("look"), works=False, prices=PRICES) as it:
            other = Provider(MessagesModel(client), RateLimiter("near"))
            it.within = lambda model: FallbackModel(
                {"anthropic": Provider(model, RateLimiter("anthropic")), "near": other}
            )
            it.project = replace(it.project, fallbacks=("near:small",), providers=("near",))
            async with it.worker():
                run = await it.start(run_id=(name := f"fallback-{id(fault)}"))
                assert (await run.result())["type"] == "agent.completed"
                state = await it.state(run)
                shown = await details_of(it, run)
            await it.replay()
    assert (state["model"], state["turns"]) == ("near:small", 2)
    assert (len(it.model.requests), len(near.requests)) == (1, 2)  # the first one rests
    assert state["cost_usd"] == pytest.approx(1e-3 * (state["usage"]["input"] + state["usage"]["output"]))
    assert "**Fallback** near:small answered in place of scripted (" in shown
    first, second = lines(tmp_path / name, "agent.model.fallback")
    assert (first["model"], first["run_id"], first["key"]) == ("near:small", name, "fallback:1")
    assert first["why"].startswith("scripted: ")
    assert second["why"].startswith("scripted: ")


async def test_a_model_that_says_nothing_leaves_time_for_the_next_one(world: Any) -> None:
    with ScriptedModel([FINISH]) as near:
        client = AsyncAnthropic(api_key="none", base_url=near.base_url, max_retries=0)
        async with client, world([slow(FINISH, 200)], works=False, turn_timeout="10s") as it:
            other = Provider(MessagesModel(client), RateLimiter("near"))
            it.within = lambda model: FallbackModel(
                {"anthropic": Provider(model, RateLimiter("anthropic")), "near": other}
            )
            it.project = replace(it.project, fallbacks=("near:small",), providers=("near",))
            async with it.worker():
                run = await it.start()
                assert (await run.result())["type"] == "agent.completed"
                assert (await it.state(run))["model"] == "near:small"
    assert (len(it.model.requests), len(near.requests)) == (1, 1)


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_what_a_provider_refuses_is_for_a_person_to_mend(world: Any, status: int) -> None:
    with ScriptedModel([FINISH]) as near:
        client = AsyncAnthropic(api_key="none", base_url=near.base_url, max_retries=0)
        async with client, world([fails(status)], works=False) as it:
            other = Provider(MessagesModel(client), RateLimiter("near"))
            it.within = lambda model: FallbackModel(
                {"anthropic": Provider(model, RateLimiter("anthropic")), "near": other}
            )
            it.project = replace(it.project, fallbacks=("near:small",), providers=("near",))
            async with it.worker():
                with pytest.raises(WorkflowFailureError) as failure:
                    await (await it.start()).result()
    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.type == "ModelRefused"
    assert near.requests == []


class Reluctant:
    """Holds back so many calls, as a pace does, before it lets them through."""

    def __init__(self, model: Model, holds: int) -> None:
        self.model, self.holds, self.asked = model, holds, 0

    async def reply(self, call: ModelCall) -> ModelReply:
        self.asked += 1
        if self.asked <= self.holds:
            raise RateLimitedError(
                "held back by the rate limit of p, 9 s",
                type=RunFailure.rate_limited,
                next_retry_delay=timedelta(milliseconds=10),
            )
        return await self.model.reply(call)


@pytest.mark.parametrize("faults", [0, 5])
async def test_to_be_held_back_uses_up_none_of_a_turns_tries(
    world: Any, faults: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.model.turn.PAUSES", (0.01,) * 5)
    script = [fails(500, times=faults, then=FINISH) if faults else FINISH]
    async with world(script, works=False) as it:
        it.within = lambda model: Reluctant(model, 20)
        async with it.worker():
            assert (await (await it.start()).result())["type"] == "agent.completed"
    assert len(it.model.requests) == 1 + faults


async def test_held_back_or_not_a_turn_has_six_tries(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.model.turn.PAUSES", (0.01,) * 5)
    async with world([fails(500)], works=False) as it:
        it.within = lambda model: Reluctant(model, 3)
        async with it.worker():
            with pytest.raises(WorkflowFailureError) as failure:
                await (await it.start()).result()
    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.type == "ModelUnavailable"
    assert len(it.model.requests) == 6


async def test_who_is_held_back_can_be_seen_and_cancelled(world: Any) -> None:
    async with world([FINISH], works=False) as it:
        pace = RateLimiter("anthropic")
        pace.record_refusal(time.monotonic(), "somebody", timedelta(seconds=50))
        it.within = lambda model: FallbackModel({"anthropic": Provider(model, pace)})
        async with it.worker():
            run = await it.start()

            async def waits() -> bool:
                pending = (await run.describe()).raw_description.pending_activities
                return bool(pending) and "held back by the rate limit of anthropic" in pending[0].last_failure.message

            await it.until(waits)
            await run.signal("cancel", {"reason": "no more"})
            with pytest.raises(WorkflowFailureError):
                await asyncio.wait_for(run.result(), 20)
    assert it.model.requests == []


async def test_a_short_hold_is_told_live_to_who_watches_the_run(world: Any) -> None:
    async with world([FINISH], works=False) as it:
        pace = RateLimiter(
            "anthropic", 20, clock=lambda: 0.0
        )  # time that stands still, so that any next call waits for 3 s
        await pace.await_slot("somebody", lambda _: None)
        it.within = lambda model: FallbackModel({"anthropic": Provider(model, pace)})
        async with it.worker():
            run = await it.start()
            seen = [each.text async for each in Watch(it.client, run.id).events() if isinstance(each, PartialText)]
            assert seen[0] == "held back by the rate limit of anthropic, 3.0 s"
            assert (await run.result())["type"] == "agent.completed"
            assert (await it.state(run))["active_seconds"] < 3  # a wait is no work


class Limited:
    """Takes so many calls a second, and refuses the others with a word on when to come back."""

    def __init__(self, per_second: float, turns: int) -> None:
        self.per_second, self.turns = per_second, turns
        self.taken = self.refused = 0
        self._left, self._at = per_second, time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, body: Any) -> ScriptedAnswer:
        with self._lock:
            now = time.monotonic()
            self._left = min(self.per_second, self._left + (now - self._at) * self.per_second)
            self._at = now
            if self._left < 1:
                self.refused += 1
                return fails(429, retry_after=1)
            self._left -= 1
            self.taken += 1
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        return calls(("look", {"n": turn})) if turn < self.turns - 1 else FINISH


async def test_a_storm_of_runs_keeps_to_the_providers_limit_and_all_end(world: Any) -> None:
    """R14. Without a pace in common each run learns of the limit for itself, and those with less luck fail."""
    limited = Limited(per_second=20, turns=4)
    async with world(limited, ScriptedTool("look"), works=False) as it:
        it.within = lambda model: FallbackModel({"anthropic": Provider(model, RateLimiter("anthropic"))})
        async with it.worker():
            runs = [await it.start() for _ in range(40)]
            ends = await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 120)
    assert [end["type"] for end in ends] == ["agent.completed"] * 40
    assert limited.taken == 160
    assert limited.refused <= 16

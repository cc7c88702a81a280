"""A model that cannot answer, and a provider that takes no more calls: what a run makes of it, and what it shows."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from perdure.activities.providers.anthropic import MessagesModel
from perdure.activities.providers.fallback import FallbackModel, Provider
from perdure.activities.providers.port import Model, ModelCall, ModelReply
from perdure.activities.providers.prices import Price
from perdure.activities.providers.rate_limit import RateLimitedError, RateLimiter
from perdure.client.run_events import PartialText
from perdure.client.watch import Watch
from perdure.contracts.bounds import Backoff
from perdure.contracts.failures import RunFailure
from perdure.process.models import create_http_client
from perdure.testkit.model_server import Script, ScriptedAnswer, ScriptedModel, calls, cut, fails, says, slow
from perdure.testkit.tools import ScriptedTool
from tests.shared_model import SharedModel
from tests.workflows.conftest import MakeWorld, World
from tests.workflows.runs import expect_cancelled, failure_of, trace_events
from tests.workflows.script import FINISH, count_replies

LOOK = calls(("look", {}), text="Plan: look.")
PRICES = {"scripted": Price(1, 1, 1, 1), "near:small": Price(1000, 1000, 0, 0)}


@asynccontextmanager
async def with_fallback(
    world: MakeWorld, script: Script, near_script: Script, *tools: ScriptedTool, **options: Any
) -> AsyncIterator[tuple[World, ScriptedModel]]:
    """A world whose model has a fallback at a provider of its own, and that provider."""
    with SharedModel(near_script) as near:
        client = AsyncAnthropic(api_key="none", base_url=near.base_url, max_retries=0, http_client=create_http_client())
        async with client, world(script, *tools, works=False, **options) as it:
            other = Provider(MessagesModel(client), RateLimiter("near"))
            it.within = lambda model: FallbackModel(
                {"anthropic": Provider(model, RateLimiter("anthropic")), "near": other}
            )
            it.project = replace(it.project, fallbacks=("near:small",), providers=("near",))
            async with it.worker():
                yield it, near
            await it.replay()


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
    world: MakeWorld, tmp_path: Path, fault: ScriptedAnswer
) -> None:
    options = {"prices": PRICES}
    async with with_fallback(world, [fault, fault], [LOOK, FINISH], ScriptedTool("look"), **options) as (it, near):
        run = await it.start(run_id=(name := f"fallback-{id(fault)}"))
        assert (await run.result())["type"] == "agent.completed"
        state = await it.state(run)
        shown = str((await run.query("__temporal_workflow_metadata")).current_details)
    assert (state["model"], state["turns"]) == ("near:small", 2)
    assert (len(it.model.requests), len(near.requests)) == (1, 2)  # the first one rests
    assert state["cost_usd"] == pytest.approx(1e-3 * (state["usage"]["input"] + state["usage"]["output"]))
    assert "**Fallback** near:small answered in place of scripted (" in shown
    first, second = trace_events(tmp_path / name, "agent.model.fallback")
    assert (first["model"], first["run_id"], first["key"]) == ("near:small", name, "fallback:1")
    assert first["why"].startswith("scripted: ")
    assert second["why"].startswith("scripted: ")


async def test_a_silent_model_leaves_time_for_the_next_one(world: MakeWorld) -> None:
    async with with_fallback(world, [slow(FINISH, 200)], [FINISH], turn_timeout="3s") as (it, near):
        run = await it.start()
        assert (await run.result())["type"] == "agent.completed"
        assert (await it.state(run))["model"] == "near:small"
    assert (len(it.model.requests), len(near.requests)) == (1, 1)


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_a_refusal_by_a_provider_fails_the_run_without_a_fallback(world: MakeWorld, status: int) -> None:
    async with with_fallback(world, [fails(status)], [FINISH]) as (it, near):
        assert (await failure_of(await it.start())).type == "ModelRefused"
    assert near.requests == []


class HoldsBack:
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
async def test_a_rate_limit_wait_counts_as_no_attempt_of_a_turn(
    world: MakeWorld, faults: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.activities.model.turn.PAUSES", Backoff(0.01, 0.01, retries=5))
    script = [fails(500, times=faults, then=FINISH) if faults else FINISH]
    async with world(script, works=False) as it:
        it.within = lambda model: HoldsBack(model, 20)
        async with it.worker():
            assert (await (await it.start()).result())["type"] == "agent.completed"
    assert len(it.model.requests) == 1 + faults


async def test_held_back_or_not_a_turn_has_six_attempts(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.activities.model.turn.PAUSES", Backoff(0.01, 0.01, retries=5))
    async with world([fails(500)], works=False) as it:
        it.within = lambda model: HoldsBack(model, 3)
        async with it.worker():
            failure = await failure_of(await it.start())
    assert failure.type == "ModelUnavailable"
    assert len(it.model.requests) == 6


async def test_a_run_held_back_by_a_rate_limit_can_be_seen_and_cancelled(world: MakeWorld) -> None:
    async with world([FINISH], works=False) as it:
        pace = RateLimiter("anthropic")
        pace.record_refusal(time.monotonic(), "somebody", timedelta(seconds=50))
        it.within = lambda model: FallbackModel({"anthropic": Provider(model, pace)})
        async with it.worker():
            run = await it.start()
            held_back = "held back by the rate limit of anthropic"
            await it.until_activity(run, lambda each: held_back in each.last_failure.message)
            await run.signal("cancel", {"reason": "no more"})
            await expect_cancelled(run)
    assert it.model.requests == []


async def test_a_short_rate_limit_wait_is_shown_live(world: MakeWorld) -> None:
    async with world([FINISH], works=False) as it:
        pace = RateLimiter(
            "anthropic", 20, clock=lambda: 0.0
        )  # time that stands still, so that any next call waits for 3 s
        await pace.await_slot("somebody", lambda _: None)
        it.within = lambda model: FallbackModel({"anthropic": Provider(model, pace)})
        async with it.worker():
            run = await it.start()
            watch = Watch(it.client, run.id, workspaces=it.project.workspaces)
            seen = [each.text async for each in watch.events() if isinstance(each, PartialText)]
            assert seen[0] == "held back by the rate limit of anthropic, 3.0 s"
            assert (await run.result())["type"] == "agent.completed"
            state = await it.state(run)
        began, ended = (datetime.fromisoformat(state[name]) for name in ("created_at", "updated_at"))
        assert state["active_seconds"] <= (ended - began).total_seconds() - 3  # a wait is no work


class LimitedProvider:
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
        turn = count_replies(body)
        return calls(("look", {"n": turn})) if turn < self.turns - 1 else FINISH


async def test_a_storm_of_runs_keeps_to_the_providers_limit_and_all_end(world: MakeWorld) -> None:
    """R14. Without a pace in common each run learns of the limit for itself, and those with less luck fail."""
    limited = LimitedProvider(per_second=20, turns=4)
    async with world(limited, ScriptedTool("look"), works=False) as it:
        it.within = lambda model: FallbackModel({"anthropic": Provider(model, RateLimiter("anthropic"))})
        async with it.worker():
            runs = [await it.start() for _ in range(40)]
            ends = await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 120)
    assert [end["type"] for end in ends] == ["agent.completed"] * 40
    assert limited.taken == 160
    assert limited.refused <= 16

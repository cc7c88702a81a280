"""Heartbeats: none that nobody needs, enough to be alive, and fast ones only for a run that is watched."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError
from temporalio.worker import ActivityInboundInterceptor, ActivityOutboundInterceptor, Interceptor

from perdure.activities.effects.attempts import Pulse, beat_interval
from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.client.run_events import PartialText
from perdure.client.watch import Watch
from perdure.contracts.run.turn import Usage
from perdure.contracts.tool import QueueRoute, ToolKind
from perdure.testkit.model_server import calls, says, slow
from perdure.testkit.tools import ScriptedTool
from perdure.workflows.execution import HEARTBEAT

FINISH = calls(("finish", {"outcome": "done"}))


class Beats(Interceptor):
    """Counts the heartbeats of a worker's activities by type."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's
        sent = self.sent

        class Outbound(ActivityOutboundInterceptor):
            def heartbeat(self, *details: Any) -> None:
                sent[activity.info().activity_type] += 1
                super().heartbeat(*details)

        class Inbound(ActivityInboundInterceptor):
            def init(self, outbound: ActivityOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

        return Inbound(next)


@asynccontextmanager
async def counted(world: Any, *given: Any, **options: Any) -> AsyncIterator[tuple[Any, Counter[str]]]:
    beats = Beats()
    async with world(*given, works=False, **options) as it:
        async with it.worker(observers=[beats]):
            yield it, beats.sent
        await it.replay()


@pytest.mark.parametrize(("timeout", "every"), [(1, 0.25), (2, 0.5), (5, 2), (10, 7), (15, 12), (60, 48), (600, 480)])
def test_a_beat_leaves_three_seconds_to_arrive_where_the_timeout_has_them(timeout: float, every: float) -> None:
    assert beat_interval(timedelta(seconds=timeout)) == timedelta(seconds=every)


@pytest.mark.parametrize("timeout", [1, 2, 5, 15, 600])
def test_a_lease_ends_after_the_next_beat_and_before_the_server_gives_the_worker_up(timeout: float) -> None:
    limit, before = timedelta(seconds=timeout), datetime.now(UTC)
    lease = Pulse(limit).lease_end - before
    assert beat_interval(limit) < lease < limit


async def test_a_call_shorter_than_the_interval_never_beats(world: Any) -> None:
    look = ScriptedTool("look", lambda *_: asyncio.sleep(1, "seen"))
    async with counted(world, [slow(calls(("look", {}), text="word " * 50), 2), FINISH], look) as (it, beats):
        run = await it.start()
        await run.result()
        assert beats == {}
        assert await heartbeat_timeouts(run) == {HEARTBEAT}


async def test_a_longer_one_beats_at_the_interval_of_the_workers_own_timeout(world: Any) -> None:
    """And the run replays where no such timeout is set."""
    limit = timedelta(seconds=4)  # every second
    async with counted(world, [slow(says("word " * 50), 2.6)], heartbeat=limit) as (it, beats):
        run = await it.start()
        await run.result()
        assert await heartbeat_timeouts(run) == {limit}
    assert beats == {"plan": 2}


async def heartbeat_timeouts(run: Any) -> set[timedelta]:
    events = [event.activity_task_scheduled_event_attributes async for event in run.fetch_history_events()]
    return {event.heartbeat_timeout.ToTimedelta() for event in events if event.activity_type.name}


async def test_a_queue_tool_keeps_its_own_timeout(world: Any) -> None:
    queue = QueueRoute(task_queue="no-worker", activity="weigh", heartbeat=HEARTBEAT + timedelta())
    weigh = ScriptedTool("weigh", kind=ToolKind.queue, queue=queue)
    async with world([calls(("weigh", {})), FINISH], weigh, heartbeat=timedelta(seconds=4)) as it:
        run = await it.start()

        async def both() -> bool:
            return await heartbeat_timeouts(run) == {it.heartbeat, HEARTBEAT}

        await it.until(both)


class Clocked:
    """Writes the time for so many seconds, and says when it is done."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.is_done = False

    async def reply(self, call: ModelCall) -> ModelReply:
        end = time.monotonic() + self.seconds
        while (now := time.monotonic()) < end:
            call.on_text(f"{now:.3f}")
            await asyncio.sleep(0.02)
        self.is_done = True
        text = [{"type": "text", "text": "done"}]
        return ModelReply(content=text, stop_reason="end_turn", model="m", usage=Usage(input=1, output=1))


async def test_who_watches_sees_what_the_model_writes_at_once_and_costs_nothing_once_gone(world: Any) -> None:
    beats, model, pieces = Beats(), Clocked(8), 0
    async with world([], works=False) as it:
        it.within = lambda _: model
        async with it.worker(observers=[beats]):
            run = await it.start()
            watch = Watch(it.client, run.id, workspaces=it.project.workspaces)
            async with aclosing(watch.positioned_events()) as events:
                async for _, event in events:
                    pieces += isinstance(event, PartialText)
                    if pieces == 8:  # without a watcher, none comes before the reply is done
                        break
            assert not model.is_done
            seen = beats.sent["plan"]
            await run.result()
    assert 8 <= seen <= beats.sent["plan"] <= seen + 5  # until the worker looks again


@pytest.mark.parametrize("commands", [True, False])
async def test_a_cancel_ends_a_run_whether_or_not_its_read_hears_of_it(
    world: Any, no_commands_client: Client, client: Client, commands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.workflows.agent_run.agent_run.READ_STOP_TIME", timedelta(seconds=1))
    begun, ended = asyncio.Event(), asyncio.Event()

    async def look(*_: Any) -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "seen"

    limit = timedelta(seconds=8)  # a heartbeat every 5 s
    script, server = [calls(("look", {})), FINISH], client if commands else no_commands_client
    async with counted(world, script, ScriptedTool("look", look), server=server, heartbeat=limit) as (it, beats):
        run = await it.start()
        await begun.wait()
        await run.cancel()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        if not commands:
            assert not ended.is_set(), "the run has not waited for it"
        await it.until(ended.is_set)
    assert beats == ({} if commands else {"read_and_reflect" if it.project.fuse_reads else "call_tool": 1})

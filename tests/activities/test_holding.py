"""Activities that pause themselves on a real server, and begin anew when they are released."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, get_args, get_type_hints
from uuid import uuid4

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from perdure.activities.effects import holding
from perdure.activities.effects.attempts import this_attempt, was_lost
from perdure.activities.effects.held import find_held, held_query, release_held
from perdure.activities.effects.holding import HeldError, HoldInterceptor, must_not_be_held
from perdure.contracts.failures import HELD
from perdure.contracts.tool import Holdable
from perdure.process.guard import ACTING
from perdure.workflows.activities import Activities
from tests.waiting import until


@workflow.defn(sandboxed=False)
class Calling:
    @workflow.run
    async def run(self, attempts: int) -> Any:
        return await workflow.execute_activity(
            "act",
            start_to_close_timeout=timedelta(seconds=30),
            heartbeat_timeout=timedelta(seconds=20),
            retry_policy=RetryPolicy(maximum_attempts=attempts, initial_interval=timedelta(milliseconds=50)),
        )


@dataclass
class Place:
    """A worker with one activity, and what holds it."""

    client: Client
    queue: str = field(default_factory=lambda: f"holding-{uuid4()}")
    by: str | None = "test:a"
    in_the_middle: bool = False
    began: list[tuple[int, int, bool]] = field(default_factory=list)  # Temporal's attempt, ours, and if one was lost

    async def guard(self) -> None:
        if self.by and not self.in_the_middle:
            raise HeldError(self.by, "for a reason")

    @asynccontextmanager
    async def working(self, throttle: timedelta = timedelta(seconds=30)) -> AsyncIterator[None]:
        @activity.defn(name="act")
        async def act() -> str:
            self.began.append((activity.info().attempt, this_attempt().number, await was_lost(self.client)))
            if self.in_the_middle:
                self.in_the_middle, self.by = False, self.by
                raise HeldError(self.by or "", "in the middle")
            await must_not_be_held()
            return "done"

        async with Worker(
            self.client,
            task_queue=self.queue,
            workflows=[Calling],
            activities=[act],
            interceptors=[HoldInterceptor(self.client, [self.guard], ["act"])],
            max_heartbeat_throttle_interval=throttle,
            default_heartbeat_throttle_interval=throttle,
        ):
            yield

    async def start(self, attempts: int) -> WorkflowHandle[Any, Any]:
        return await self.client.start_workflow("Calling", attempts, id=f"w-{uuid4()}", task_queue=self.queue)

    async def held(self) -> list[tuple[str, str]]:
        return [(held.by, held.why) async for held in find_held(self.client, self.queue)]

    async def is_held(self) -> bool:
        return bool(await self.held())


@pytest.mark.parametrize("attempts", [1, 3, 0])
async def test_a_held_activity_waits_paused_and_ends_well_once_released(client: Client, attempts: int) -> None:
    """Also one that may have a single attempt, and another worker's: nothing of it ran, and nothing was lost."""
    place = Place(client)
    async with place.working():
        run = await place.start(attempts)
        await until(place.is_held)
    assert await place.held() == [("test:a", "for a reason")]
    pending = (await run.describe()).raw_description.pending_activities[0]
    assert pending.attempt == 2
    async with place.working():  # a worker that begins later takes none of it
        place.by = None
        assert await release_held(client, place.queue, "test:b") == 0
        assert await release_held(client, place.queue, "test:a") == 1
        assert await run.result() == "done"
    assert place.began == [(2, 1, False)]
    assert await place.held() == []


async def test_a_hold_in_the_middle_of_an_attempt_uses_up_none(client: Client) -> None:
    place = Place(client, in_the_middle=True)
    async with place.working():
        run = await place.start(1)
        await until(place.is_held)
        place.by = None
        await until(lambda: release_held(client, place.queue, "test:a"))
        assert await run.result() == "done"
    assert place.began == [(1, 1, False), (2, 1, False)]


async def test_one_that_is_released_before_it_has_failed_tells_its_workflow(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The single attempt is used up then; `execute_activity` of the workflows runs it again."""
    place = Place(client)

    async def pause(*_: Any) -> None:
        place.by = None

    monkeypatch.setattr("perdure.activities.effects.holding._pause_own", pause)
    async with place.working():
        run = await place.start(1)
        with pytest.raises(WorkflowFailureError) as failed:
            await run.result()
    cause = failed.value.cause.__cause__
    assert isinstance(cause, ApplicationError)
    assert cause.type == HELD


async def test_a_heartbeat_that_is_answered_with_the_pause_changes_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK cancels the activity then; its attempt would end as another failure than a hold."""
    place, pause = Place(client, in_the_middle=True), holding._pause_own

    async def beat_on(*given: Any) -> None:
        await pause(*given)
        for _ in range(40):
            activity.heartbeat("still here")
            await asyncio.sleep(0.05)

    monkeypatch.setattr(holding, "_pause_own", beat_on)
    async with place.working(throttle=timedelta(milliseconds=20)):
        run = await place.start(1)
        await until(place.is_held)

        async def has_failed() -> bool:
            (pending,) = (await run.describe()).raw_description.pending_activities
            return pending.attempt == 2

        await until(has_failed)
        (pending,) = (await run.describe()).raw_description.pending_activities
        assert pending.last_failure.application_failure_info.type == HELD
        place.by = None
        await until(lambda: release_held(client, place.queue, "test:a"))
        assert await run.result() == "done"
    assert place.began == [(1, 1, False), (2, 1, False)]


async def test_a_cancelled_one_ends_without_release(client: Client) -> None:
    place = Place(client)
    async with place.working():
        run = await place.start(0)
        await until(place.is_held)
        await run.cancel()
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(run.result(), 10)
    assert place.began == []


async def test_a_query_finds_those_of_one_task_queue(client: Client) -> None:
    place, other = Place(client), Place(client)
    async with place.working(), other.working():
        run, _ = await place.start(0), await other.start(0)
        await until(place.is_held)
        await until(other.is_held)
        found = [row.id async for row in client.list_workflows(held_query(place.queue))]
        assert found == [run.id]
        place.by = other.by = None
        assert await release_held(client, place.queue, "test:a") == 1
        assert await other.is_held()
        assert await release_held(client, other.queue, "test:a") == 1


@pytest.mark.parametrize("kind", [*ACTING, "open_run"])
def test_each_activity_that_may_be_held_tells_it_in_its_result(kind: str) -> None:
    """`open_run` is held by a budget of runs."""
    result = get_type_hints(getattr(Activities, kind))["return"]
    assert all(issubclass(each, Holdable) for each in get_args(result) or (result,))

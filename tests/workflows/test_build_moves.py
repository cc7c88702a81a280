"""Workflows that never end move to the current build by themselves, and a run stays on its own: an old build drains."""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

from perdure.contracts.run.signals import WAKE_SIGNAL
from perdure.doctor import _check_deployment
from perdure.features.reconciler.activities import Reconciler
from perdure.settings import Deployment
from perdure.testkit.model_server import calls, says
from tests.replaying import replay_history
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.following import FollowUpWorld
from tests.workflows.lane import lane_of, new_id, run_of, say, until_idle, wait_for_run
from tests.workflows.script import FINISH
from tests.workflows.test_versioning import are_left, builds, make_current, move

ASK = calls(("ask_human", {"question": "Go on?"}))


def build(it: World, number: int) -> Deployment:
    return Deployment(it.queue, str(number))


async def look(it: World, *, days: int = 0, repairs: bool = True) -> int:
    """The workflows that a look of the reconciler finds on builds that are not current, and wakes."""
    now = datetime.now(UTC) + timedelta(days=days)
    reconciler = Reconciler(it.client, it.project.stores, it.queue, now=lambda: now)
    return (await reconciler.run_pass(repairs=repairs)).outdated


async def doctor(it: World, number: int) -> str:
    return (await _check_deployment(it.client, build(it, number))).found


async def replay(it: World, *moved: Run) -> None:
    """Every execution replays, also those that ended with the move, and no task of theirs has failed."""
    for each in moved:
        for execution in await it.executions(each):
            assert await it.failed_tasks(execution) == 0
            await replay_history(await execution.fetch_history(), it.client.data_converter)


async def signals(handle: Run, name: str) -> int:
    attributes = [event.workflow_execution_signaled_event_attributes async for event in handle.fetch_history_events()]
    return sum(each.signal_name == name for each in attributes)


async def test_each_turn_of_a_lane_begins_on_the_current_build_and_so_does_the_lane(world: MakeWorld) -> None:
    async with world(lambda _: says("hi"), works=False) as it, AsyncExitStack() as old:
        await old.enter_async_context(it.worker(deployment=build(it, 1)))
        await make_current(it, build(it, 1))
        chat = new_id()
        turns = [await say(it, chat, "one")]
        await until_idle(it, chat, 1)
        async with it.worker(await it.another_client(), deployment=build(it, 2)):
            await make_current(it, build(it, 2))
            turns.append(await say(it, chat, "two"))
            assert turns[1].position == 1  # its run does not exist yet: the lane moves first
            await until_idle(it, chat, 2)
            assert await builds(it, lane_of(it, chat)) == [{"2"}, {"1"}]
            await it.until(lambda: are_left(it, build(it, 1)))
            await old.aclose()
            turns.append(await say(it, chat, "three"))
            assert turns[2].position == 0
            await until_idle(it, chat, 3)
            assert [await builds(it, run_of(it, turn)) for turn in turns] == [[{"1"}], [{"2"}], [{"2"}]]
            assert len(await it.executions(lane_of(it, chat))) == 2
            await replay(it, lane_of(it, chat))


async def test_a_lane_moves_between_turns_and_does_not_leave_an_open_one_behind(world: MakeWorld) -> None:
    """Its next execution would have to poll for the end of a run that keeps the build anyway."""
    async with world([ASK, FINISH, FINISH], works=False) as it, it.worker(deployment=build(it, 1)):
        await make_current(it, build(it, 1))
        chat = new_id()
        first = await say(it, chat, "one")
        run, lane = await wait_for_run(it, first), lane_of(it, chat)
        await it.until_state(run, question=True)
        async with it.worker(await it.another_client(), deployment=build(it, 2)):
            await make_current(it, build(it, 2))
            await it.until(lambda: are_left(it, build(it, 1), run, lane))
            assert [await look(it), await look(it)] == [1, 1]
            second = await say(it, chat, "two")
            assert (second.position, len(await it.executions(lane))) == (1, 1)
            assert await signals(lane, WAKE_SIGNAL) == 1  # however many looks there are in a day
            await look(it, days=1)
            assert await signals(lane, WAKE_SIGNAL) == 2
            await run.signal("human_input", {"text": "yes"})
            await until_idle(it, chat, 2)
            assert await builds(it, lane) == [{"2"}, {"1"}]
            assert await builds(it, run_of(it, second)) == [{"2"}]
            scheduled = [
                event.activity_task_scheduled_event_attributes.activity_type.name
                for execution in await it.executions(lane)
                async for event in execution.fetch_history_events()
            ]
            assert "watch_run" not in scheduled
            await replay(it, lane)


async def test_a_lane_moves_back_with_a_rollback_and_a_pinned_override_keeps_it(world: MakeWorld) -> None:
    async with world(lambda _: says("hi"), works=False) as it, it.worker(deployment=build(it, 1)):
        await make_current(it, build(it, 1))
        chat = new_id()
        lane = lane_of(it, chat)
        await say(it, chat, "one")
        await until_idle(it, chat, 1)
        async with it.worker(await it.another_client(), deployment=build(it, 2)):
            for turn, current, expected in ((2, 2, ["2", "1"]), (3, 1, ["1", "2", "1"])):
                await make_current(it, build(it, current))
                submitted = await say(it, chat, f"turn {turn}")
                await until_idle(it, chat, turn)
                assert await builds(it, lane) == [{number} for number in expected]
                assert await builds(it, run_of(it, submitted)) == [{str(current)}]
            await move(it, lane, build(it, 1), "pinned")
            await make_current(it, build(it, 2))
            submitted = await say(it, chat, "four")
            await until_idle(it, chat, 4)
            assert (len(await it.executions(lane)), await builds(it, run_of(it, submitted))) == (3, [{"1"}])
            await replay(it, lane)


@dataclass
class Sleepers:
    """One of each workflow that never ends, in a build, with nothing to do."""

    it: World
    chat: str
    followed: FollowUpWorld
    follow_up: Run
    topic: Run

    @classmethod
    async def begin(cls, it: World) -> "Sleepers":
        followed = FollowUpWorld(it)
        follow_up = await followed.create("all")
        await followed.wait_for_reply(follow_up, "t1")
        await followed.until_task(follow_up, "t1", "blocked")
        topic = await followed.publish(followed.reply(userId="C", userName="Cy"))
        sleepers = cls(it, new_id(), followed, follow_up, topic)
        await sleepers.use(1)
        return sleepers

    @property
    def handles(self) -> list[Run]:
        return [lane_of(self.it, self.chat), self.follow_up, self.topic]

    async def use(self, time: int) -> None:
        """Each has something to do, and does it: on whichever build."""
        await say(self.it, self.chat, f"turn {time}")
        await until_idle(self.it, self.chat, time)
        await self.followed.add(self.follow_up, "wait", f"w{time}", delayMs=5)
        await self.followed.until_task(self.follow_up, f"w{time}", "resolved")
        await self.followed.publish(self.followed.reply(userId="C", userName="Cy"))

    async def end(self) -> None:
        """The event for which the follow-up waits passes through the topic, and resumes the lane of its session."""
        await self.followed.publish(self.followed.reply("Friday"))
        assert (await self.follow_up.result())["type"] == "evt.workflow.resolved"

    async def are_on(self, number: int) -> bool:
        return all([(await builds(self.it, each))[0] == {str(number)} for each in self.handles])

    async def until_on(self, number: int) -> None:
        await self.it.until(lambda: self.are_on(number))


async def test_what_never_ends_moves_with_the_next_thing_that_comes_for_it(world: MakeWorld) -> None:
    async with world(lambda _: says("hi"), works=False) as it, AsyncExitStack() as old:
        await old.enter_async_context(it.worker(deployment=build(it, 1)))
        await make_current(it, build(it, 1))
        sleepers = await Sleepers.begin(it)
        async with it.worker(await it.another_client(), deployment=build(it, 2)):
            await make_current(it, build(it, 2))
            await sleepers.use(2)
            await sleepers.until_on(2)
            await it.until(lambda: are_left(it, build(it, 1)))
            await old.aclose()
            await sleepers.use(3)
            await sleepers.end()
            assert [len(await it.executions(each)) for each in sleepers.handles] == [2, 2, 2]
            await replay(it, *sleepers.handles)


async def test_the_reconciler_wakes_what_sleeps_on_an_old_build(world: MakeWorld) -> None:
    async with world(lambda _: says("hi"), works=False) as it, AsyncExitStack() as old:
        await old.enter_async_context(it.worker(deployment=build(it, 1)))
        await make_current(it, build(it, 1))
        sleepers = await Sleepers.begin(it)
        assert await look(it) == 0
        async with it.worker(await it.another_client(), deployment=build(it, 2)):
            await make_current(it, build(it, 2))
            assert await look(it, repairs=False) == 3
            assert "it is current, new runs use it; other builds hold 3: temporal workflow list" in await doctor(it, 2)
            assert await sleepers.are_on(1)
            assert await look(it) == 3
            await sleepers.until_on(2)
            await it.until(lambda: are_left(it, build(it, 1)))
            assert (await doctor(it, 2)).endswith("it is current, new runs use it")
            await old.aclose()
            assert await look(it) == 0
            await sleepers.use(2)
            await sleepers.end()
            assert not (await sleepers.handles[0].query("lane"))["notices"]  # a wake is none
            await replay(it, *sleepers.handles)


async def test_what_older_code_kept_on_its_build_replays_after_a_command_moved_it(
    world: MakeWorld,
) -> None:
    """Older code did not look at the build: its histories have tasks that could have moved, and did not."""
    async with world(lambda _: says("hi"), works=False) as it, AsyncExitStack() as old:
        with patch("perdure.workflows.rotation._has_new_build", lambda: False):
            await old.enter_async_context(it.worker(deployment=build(it, 1)))
            await make_current(it, build(it, 1))
            sleepers = await Sleepers.begin(it)
            async with it.worker(await it.another_client(), deployment=build(it, 2)):
                await make_current(it, build(it, 2))
                await sleepers.use(2)
            assert await sleepers.are_on(1)
            await old.aclose()
        async with it.worker(await it.another_client(), deployment=build(it, 2)):
            for each in sleepers.handles:
                await move(it, each, build(it, 2))
            await sleepers.use(3)
            assert [len(await it.executions(each)) for each in sleepers.handles] == [1, 1, 1]
            async with it.worker(await it.another_client(), deployment=build(it, 3)):
                await make_current(it, build(it, 3))
                assert await look(it) == 3
                await sleepers.until_on(3)
                await replay(it, *sleepers.handles)

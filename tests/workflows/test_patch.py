"""The worked example of docs/upgrading.md: a timer is added at the start of every run, release by release."""

import pytest
from temporalio.workflow import NondeterminismError

from perdure.converter import data_converter
from perdure.testkit.model_server import calls
from perdure.workflows.agent_run.agent_run import AgentRun
from perdure.workflows.handlers import UnknownWorkflow
from tests.replay.altered import Deprecated, Patched, Unguarded
from tests.replaying import replay_history
from tests.workflows.conftest import MakeWorld, Run
from tests.workflows.script import FINISH

ASK = calls(("ask_human", {"question": "Which one?"}))
RELEASES = (AgentRun, Patched, Deprecated, Unguarded)  # before, and the three; in the last one the patch is gone


async def fits(run: Run, code: type) -> bool:
    """Whether the run's history replays on this code."""
    try:
        await replay_history(await run.fetch_history(), data_converter, [code])
    except NondeterminismError:
        return False
    return True


async def pauses(run: Run) -> int:
    """Timers of the new path; the wait for a person has one of its own."""
    events = [event async for event in run.fetch_history_events()]
    started = [
        event.timer_started_event_attributes for event in events if event.HasField("timer_started_event_attributes")
    ]
    return sum(timer.start_to_fire_timeout.ToMilliseconds() == 50 for timer in started)


async def test_a_run_that_began_before_the_patch_goes_on_along_the_old_path(world: MakeWorld) -> None:
    async with world([ASK, FINISH], works=False) as it:
        async with it.worker():
            run = await it.start()
            await it.until_state(run, question=True)
        async with it.worker(workflows=(Patched, UnknownWorkflow)):
            await run.signal("human_input", {"text": "b"})
            assert (await run.result())["type"] == "agent.completed"
        assert (await pauses(run), await it.failed_tasks(run)) == (0, 0)
        assert [await fits(run, code) for code in RELEASES] == [True, True, False, False]


@pytest.mark.parametrize(
    ("release", "fitting"),
    [
        (Patched, [False, True, True, False]),  # so the third release must wait until these runs have ended
        (Deprecated, [False, True, True, True]),
        (Unguarded, [False, False, True, True]),
    ],
)
async def test_a_new_run_takes_the_new_path_and_fits_the_next_release(
    world: MakeWorld, release: type, fitting: list[bool]
) -> None:
    async with world([FINISH], works=False) as it, it.worker(workflows=(release, UnknownWorkflow)):
        run = await it.start()
        assert (await run.result())["type"] == "agent.completed"
        assert (await pauses(run), await it.failed_tasks(run)) == (1, 0)
        assert [await fits(run, code) for code in RELEASES] == fitting

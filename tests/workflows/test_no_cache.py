"""A worker that remembers nothing of its runs, and so replays each from its first event, does the very same."""

from collections import Counter

from perdure.contracts.tool import Effect
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from tests.timeline import timeline
from tests.workflows.conftest import MakeWorld
from tests.workflows.script import FINISH

TURNS = 5


async def test_without_a_sticky_cache_every_activity_is_still_made_exactly_once(world: MakeWorld) -> None:
    look, charge = ScriptedTool("look"), ScriptedTool("charge", effect=Effect.once)
    script = [calls(("look", {"n": n}), ("charge", {"n": n}), text=f"turn {n}") for n in range(TURNS)]
    counted = []
    for caches in (True, False):
        async with world([*script, FINISH], look, charge, caches=caches) as it:
            run = await it.start()
            event = await run.result()
            assert (event["type"], event["payload"]["steps_taken"]) == ("agent.completed", 2 * TURNS)
            assert await it.failed_tasks(run) == 0
            counted.append(Counter(await timeline(run)))
    assert counted[0] == counted[1] == Counter(open_run=1, plan=1, reflect=TURNS, call_tool=2 * TURNS, close_segment=1)
    assert [arguments["n"] for arguments, _ in charge.calls] == [*range(TURNS), *range(TURNS)]
    assert len(look.calls) == 2 * TURNS

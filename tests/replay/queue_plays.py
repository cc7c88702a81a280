"""What a worker elsewhere does with calls in the scenarios."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from perdure.contracts.tool import Effect, QueueRoute, ToolKind
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import Run, World

WEIGH = calls(("weigh", {"what": "salt"}))


def _tool(queue: str, effect: Effect, seconds: float = 20) -> ScriptedTool:
    """Each scenario has a queue of its own: they share a server."""
    route = QueueRoute(task_queue=queue, activity="weigh")
    return ScriptedTool("weigh", kind=ToolKind.queue, effect=effect, timeout=timedelta(seconds=seconds), queue=route)


weighs = partial(_tool, "scales", Effect.read)
weighs_much = partial(_tool, "large scales", Effect.read)
weighs_once = partial(_tool, "single scales", Effect.once)
unattended = partial(_tool, "nobody's scales", Effect.read, 0.3)


def elsewhere(
    queue: str, behaviour: Callable[[dict[str, Any]], Any], *answers: dict[str, Any]
) -> Callable[[World, Run], Awaitable[None]]:
    """A worker takes the calls, and a person answers each question."""

    @activity.defn(name="weigh")
    async def weigh(request: dict[str, Any]) -> Any:
        return behaviour(request)

    async def play(it: World, run: Run) -> None:
        async with Worker(it.client, task_queue=queue, activities=[weigh]):
            for answer in answers:
                await it.until_state(run, question=True)
                await run.execute_update("answer", answer)
            await run.result()

    return play


def lost_at_first(request: dict[str, Any]) -> Any:
    if request["dedupe_key"].endswith(":request"):
        raise ApplicationError("worker is shutting down", type="WorkerShutdown")
    return 12

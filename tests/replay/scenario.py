"""A way that a run can go: what makes its world, what happens to it, and how it must end."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.testkit.model_server import Script
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import Run, World

Play = Callable[[World, Run], Awaitable[None]]
Tool = Callable[[], ScriptedTool]

GOAL = {"type": "agentic.start", "payload": {"goal": "do it"}}


async def nothing(it: World, run: Run) -> None:
    """The run needs nobody."""


@dataclass(frozen=True)
class Scenario:
    """`script` and `tools` make the world, `play` is what people and tools outside do, `ends` how it must end.

    `begins` starts a run that needs more than `args`: one that goes on from another run.
    """

    name: str
    ends: str
    script: Script
    tools: tuple[Tool, ...] = ()
    play: Play = nothing
    args: tuple[Any, ...] = (GOAL,)
    options: Mapping[str, Any] = field(default_factory=dict)  # of the start
    limits: Mapping[str, Any] = field(default_factory=dict)
    type: str = "AgentRun"
    begins: Callable[[World], Awaitable[Run]] | None = None
    rotates: bool = False  # on the server where a history is soon long

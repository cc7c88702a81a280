"""Places under kills: never more runs of an agent and calls of a tool at once, and none waits for ever."""

import threading
from dataclasses import dataclass, field

from perdure.features.places.contract import PlacesState
from perdure.features.places.keeper import read_places
from perdure.testkit.model_server import ScriptedAnswer
from perdure.testkit.rehearsal.sse import Json
from tests.chaos.auditor import audit
from tests.chaos.context import Row, ScenarioContext, row
from tests.chaos.environment import Environment, until
from tests.chaos.task import mixed, script, task_in
from tests.waiting import until as until_true

QUEUE = "r33"


@dataclass
class Watched:
    """A model that counts the runs between their first and their last call."""

    at_work: set[str] = field(default_factory=set)
    most: int = 0
    calls: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: Json) -> ScriptedAnswer:
        task, turn = task_in(request)
        with self._lock:
            self.calls += 1
            self.at_work.add(task["run"])
            self.most = max(self.most, len(self.at_work))
            if turn >= len(task["turns"]):
                self.at_work.discard(task["run"])
        return script(request)


async def placed(context: ScenarioContext, *, runs: int, size: int, kills: int, agents: int, tools: int) -> Row:
    """R33: so many `agents` and calls of `tools` at once, while workers die."""
    model = Watched()
    async with context.environment(says=model) as it, it.person():
        limit_places(it, agents, tools)
        workers = it.start_workers(QUEUE, size)
        for number in range(runs):
            await it.start(mixed(f"{QUEUE}-{number}", it.random, 6, pause=0.2), QUEUE)
        for number in range(kills):
            await until(lambda number=number: model.calls > 2 * runs * (number + 1) / kills)  # type: ignore[misc]
            await workers.fault("kill")
        it.fault(counts=False)
        late = await it.all_ended()
        found = await audit(it, late=late)
        most_calls = it.tools.most_at_work["charge"]
        resting = len(it.doubts)  # runs that have left their place while they waited for a person
        if model.most > agents + resting:
            found.violations.append(f"{model.most} runs were at work at once, of {agents}; {resting} had left theirs")
        if most_calls > tools:
            found.violations.append(f"{most_calls} calls of charge were under way at once, of {tools}")
        await until_true(lambda: all_free(it))
        return row(it, found, f"at most {model.most} of {agents} runs and {most_calls} of {tools} calls at once")


def limit_places(it: Environment, agents: int, tools: int) -> None:
    """Write the limits into the project, before its workers start."""
    agent = it.project.folder / "agents" / "default.md"
    agent.write_text(agent.read_text().replace("---\n", f"---\nlimits: {{max_running: {agents}}}\n", 1))
    settings = it.project.folder / "perdure.toml"
    settings.write_text(settings.read_text().replace("[tools.charge]\n", f"[tools.charge]\nmax_running = {tools}\n"))


async def all_free(it: Environment) -> bool:
    return await read_places(it.client, QUEUE) == PlacesState()

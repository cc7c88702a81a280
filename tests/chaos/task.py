"""What a run of the chaos suite is to do. Its goal says all of it, so that the model can be a pure function."""

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from perdure.testkit.model_server import ScriptedAnswer, calls, slow
from perdure.testkit.rehearsal.sse import Json

Use = tuple[str, dict[str, Any]]
MIX = ("charge", "charge", "reserve", "reserve", "look")  # once, keyed, read
READS = ("look", "look", "look", "charge", "reserve")  # whole turns of reads are frequent


@dataclass(frozen=True)
class Task:
    """The calls of each turn, and how many seconds the model takes to say each of them."""

    run: str
    turns: tuple[tuple[Use, ...], ...]
    pause: float = 0.0

    @property
    def goal(self) -> str:
        return "chaos " + json.dumps({"run": self.run, "turns": self.turns, "pause": self.pause})

    @property
    def tools(self) -> dict[int, str]:
        """The tool of each step."""
        return dict(enumerate((tool for turn in self.turns for tool, _ in turn), start=1))


def mixed(run: str, random: Random, steps: int, *, pause: float = 0.0, tools: tuple[str, ...] = MIX) -> Task:
    """Steps of several effects, some turns with several of them."""
    turns: list[tuple[Use, ...]] = []
    while (left := steps - sum(map(len, turns))) > 0:
        size = min(random.choice((1, 1, 1, 2, 3)), left)
        turns.append(tuple((random.choice(tools), {"note": random.randrange(10**6)}) for _ in range(size)))
    return Task(run, tuple(turns), pause)


def task_in(request: Json) -> tuple[dict[str, Any], int]:
    """The task of a conversation, and the number of its turn."""
    goal = request["messages"][0]["content"][0]["text"]
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    return json.loads(goal.removeprefix("chaos ")), turn


def script(request: Json) -> ScriptedAnswer:
    """What the model says next: a function of the conversation alone."""
    task, turn = task_in(request)
    if turn < len(task["turns"]):
        uses = [(tool, arguments) for tool, arguments in task["turns"][turn]]
        reply = calls(*uses, text=f"Turn {turn + 1} of {task['run']}.")
    else:
        reply = calls(("finish", {"outcome": task["run"]}), text="All is done.")
    return slow(reply, task["pause"]) if task["pause"] else reply

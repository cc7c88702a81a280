"""Runs that a page takes for granted: one that asks, one that wants approval, one that failed."""

import json
import secrets
from collections.abc import Callable
from typing import Any

from perdure.testkit.model_server import ScriptedAnswer, calls, fails, says, slow
from tests.docs.stage import Stage

CLERK = "---\ndescription: looks after orders\ntools: [charge]\n---\nYou look after orders.\n"
CHARGE = """
[tools.charge]
kind = "http"
url = "http://127.0.0.1:9/charge"
effect = "once"
approval = "always"
description = "Charge a customer's card."
input_schema = { type = "object", properties = { cents = { type = "number" } }, required = ["cents"] }
"""


def script(body: dict[str, Any]) -> ScriptedAnswer:
    """A model that does what the first words of the goal say, and ends with "Done."."""
    text = json.dumps(body["messages"])
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    for words, does in ACTS.items():
        if words in text:
            return does[turn] if turn < len(does) else says("Done.")
    return says("Done.")


LOOK = calls(("list_files", {}))
ACTS: dict[str, list[ScriptedAnswer]] = {
    "Ask me": [calls(("ask_human", {"question": "Which shop?"}))],
    "Charge": [calls(("charge", {"cents": 1250}))],
    "Fail": [fails(status=400, times=1, then=says("Done."))],
    "Think": [slow(says("Done."), 100)],
    "Look around": [LOOK, calls(("list_files", {"path": "artifacts"})), calls(("list_files", {"path": "inputs"}))],
}


def start_run(goal: str, until: str, agent: str = "default") -> Callable[[Stage], str]:
    """A new run with this goal, as soon as its status is `until`; its id stands for a word of the page."""

    def begin(stage: Stage) -> str:
        start = {"type": "agentic.start", "payload": {"goal": goal, "agent": agent}}
        run_id = f"261122-{secrets.token_hex(4)}"
        ours = ("--workflow-id", f"run:{run_id}")
        stage.temporal(
            "workflow", "start", *ours, "--type", "AgentRun", "--task-queue", "perdure", "--input", json.dumps(start)
        )
        stage.until(lambda: f'"{until}"' in stage.temporal("workflow", "query", *ours, "--name", "state"), until)
        return run_id

    return begin


ASKING = start_run("Ask me.", "waiting_on_human")
CHARGING = start_run("Charge the card.", "waiting_on_human")
FAILED = start_run("Fail once.", "failed")
ENDED = start_run("Look around.", "completed")
AT_WORK = start_run("Think hard.", "running")

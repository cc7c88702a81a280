"""What the model of a scenario replies."""

from collections.abc import Callable
from itertools import count
from typing import Any

from perdure.testkit.model_server import Reply, ScriptedAnswer, calls, fails, says
from tests.workflows.script import forced_tool, is_summary

RESULT = calls(("finish", {"outcome": "counted", "result": {"total": 3}}))
FINISH = calls(("finish", {"outcome": "done", "artifacts": ["artifacts/a.md"]}))
LOOK = calls(("look", {"at": "x"}), text="Frame: see.\nPlan: look.")
VOTE = calls(("vote", {}))
ASK = calls(("ask_human", {"question": "Which one?", "options": ["a", "b"]}))
CHARGE = calls(("charge", {"eur": 5}))
WORK = calls(("work", {}), ("work", {}))
RATE_LIMIT, OUTAGE = fails(429, retry_after=0.02), fails(529, retry_after=0.02)
TOO_LONG = fails(400, message="prompt is too long: 250000 tokens > 200000 maximum")
CUT_OFF = says("half", stop_reason="max_tokens")
REFRAME = calls(("reframe", {"frame": "another view"}))
JOURNAL = calls(("update_run_journal", {"current_state": "begun"}), ("get_run_journal", {}))
ATTIC = "look in the attic"


def circling(body: dict[str, Any]) -> ScriptedAnswer:
    """Searches the same for ever, until it gets another instruction."""
    if forced_tool(body) == "reframe":
        return REFRAME
    if forced_tool(body) == "ask_human":
        return ASK
    return FINISH if ATTIC in str(body["messages"]) else calls(("search", {"q": "x"}))


def unforced(body: dict[str, Any]) -> ScriptedAnswer:
    """Of a provider that forces nothing."""
    return FINISH if "keep going" in str(body["messages"]) else calls(("search", {"q": "x"}))


def reading(summary: Reply) -> Callable[[dict[str, Any]], ScriptedAnswer]:
    """Reads sixteen pages, or until it gets another instruction."""

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if is_summary(body):
            return summary
        if forced_tool(body) == "ask_human":
            return ASK
        number = next(numbers)
        return FINISH if number > 16 or ATTIC in str(body["messages"]) else calls(("look", {"n": number}))

    numbers = count(1)
    return script

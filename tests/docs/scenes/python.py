"""docs/python.md"""

from typing import Any

from perdure.testkit.model_server import Reply, calls, says
from tests.docs.stage import Scene, Step


def finder(body: dict[str, Any]) -> Reply:
    """Finds the order, asks first where the goal says so, and returns a greeting."""
    asked = str(body["messages"][0]["content"])
    if "Hello" in asked:
        return says("Good day.")
    if "ask me" in asked:
        is_answered = any("the open one" in str(message) for message in body["messages"])
        return says("The open one is A-17.") if is_answered else calls(("ask_human", {"question": "Which order?"}))
    return calls(("finish", {"outcome": "Found.", "result": {"number": "A-17", "cents": 1200}}))


SCENE = Scene("docs/python.md", steps={"python choose.py": Step(shows="asks: Which order?")}, dev=False, model=finder)

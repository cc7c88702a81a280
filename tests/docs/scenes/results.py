"""docs/results.md"""

import json
from typing import Any

from perdure.testkit.model_server import Reply, calls
from tests.docs.stage import Scene, Stage, Step

ORDER = {"number": "A-17", "cents": 1200}


def finder(body: dict[str, Any]) -> Reply:
    """Gives the result that the schema of its `finish` asks for."""
    (finish,) = [tool for tool in body["tools"] if tool["name"] == "finish"]
    schema = finish["input_schema"]["properties"]["result"]
    result: Any = 3 if schema["type"] == "integer" else ORDER if "number" in schema["properties"] else {"total": 3}
    return calls(("finish", {"outcome": "Found.", "result": result}))


def at_work(stage: Stage) -> None:
    """Only now, with the page's files there: a worker has the project that it was started with."""
    assert json.loads((stage.folder / "open.json").read_text(encoding="utf-8")) == {"total": 3}
    stage.run("perdure dev", until="Ctrl-C stops")
    at = json.loads((stage.folder / ".perdure" / "server.json").read_text(encoding="utf-8"))
    stage.ok(f"export TEMPORAL_ADDRESS={at['address']}")


SCENE = Scene(
    "docs/results.md",
    steps={
        "perdure run": Step(shows="■ completed"),
        "temporal workflow start": Step(before=at_work),
        "temporal workflow result": Step(shows='"result":3'),
    },
    dev=False,
    model=finder,
)

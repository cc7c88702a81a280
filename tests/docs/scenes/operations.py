"""docs/operations.md"""

import json

from tests.docs.stage import Scene, Stage, Step

RETRY = {"event": "agent.tool.retry", "tool": "fetch", "run": "run:r1", "at": "2999-01-01T00:00:00Z"}


def there_is_a_log(stage: Stage) -> None:
    """Of a worker that has done a run, and that had to try a call again."""
    stage.ok(f"perdure run 'fetch {stage.site} and write a report'")
    log = (stage.folder / ".perdure/worker.log").read_text(encoding="utf-8")
    stage.write("worker.log", f"{json.dumps(RETRY)}\nno JSON\n{log}")


def temporal_is_named(stage: Stage) -> None:
    """That of `perdure dev`: a worker by itself needs the address."""
    server = json.loads((stage.folder / ".perdure/server.json").read_text(encoding="utf-8"))
    stage.ok(f"export TEMPORAL_ADDRESS={server['address']}")


SCENE = Scene(
    "docs/operations.md",
    prepare=there_is_a_log,
    not_run={"pip install": "the environment of the tests has it"},
    steps={
        "OTEL_": Step(until="worker ready", before=temporal_is_named),
        "perdure worker": Step(until="worker ready"),
        "jq": (Step(shows='{"tool":"fetch","retries":1,"runs":1}'), Step(shows='"tool":"fetch","calls":1,"errors":0')),
    },
)

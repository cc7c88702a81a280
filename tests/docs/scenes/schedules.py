"""docs/schedules.md"""

import json

from tests.docs.stage import Scene, Stage, Step


def has_run(stage: Stage) -> None:
    """What was triggered has begun, and what was removed is gone."""
    (row,) = map(json.loads, stage.ok("perdure schedule list --json").splitlines())
    assert row["name"] == "briefing"
    assert "sweep-" in stage.ok("perdure list")


SCENE = Scene(
    "docs/schedules.md",
    steps={
        "perdure schedule list": Step(shows="sweep"),
        "perdure schedule trigger": Step(shows="sweep-"),
    },
    claim=has_run,
)

"""docs/a2a.md."""

from tests.docs.scenes.web_front_ends import follow_the_gateway
from tests.docs.stage import Scene, Step

SCENE = Scene(
    "docs/a2a.md",
    dev=False,
    steps={
        "perdure gateway": Step(until="Ctrl-C", swap={"gateway": "gateway --port 0"}),
        "python elsewhere.py": Step(
            before=follow_the_gateway, typed="https://example.com\n", shows="TASK_STATE_COMPLETED"
        ),
    },
)

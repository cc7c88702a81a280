"""docs/mcp-server.md."""

from tests.docs.stage import Scene, Stage, Step


def follow_the_gateway(stage: Stage) -> None:
    stage.ok(f"export GATEWAY={stage.outputs['perdure gateway'].split()[1]} NO_PROXY=127.0.0.1")


SCENE = Scene(
    "docs/mcp-server.md",
    dev=False,
    steps={
        "perdure gateway": Step(until="Ctrl-C", swap={"gateway": "gateway --port 0"}),
        "python task.py": Step(before=follow_the_gateway, typed="https://example.com\n", shows="completed"),
    },
)

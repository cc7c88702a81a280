"""docs/queue-tools.md: `examples/queue`, with the worker in Python."""

from perdure.testkit.model_server import calls, says
from tests.docs.pages import ROOT
from tests.docs.stage import Scene, Stage, Step
from tests.ports import free_port

EXAMPLE = ROOT / "examples" / "queue"
PORTS: list[int] = []


def port(_: Stage) -> str:
    """A free one, the same throughout."""
    if not PORTS:
        PORTS.append(free_port())
    return str(PORTS[0])


def the_example_is_there(stage: Stage) -> None:
    for name in ("perdure.toml", "warehouse.py", "agents/storekeeper.md"):
        stage.write(name, (EXAMPLE / name).read_text(encoding="utf-8"))
    stage.ok(f"export TEMPORAL_ADDRESS=localhost:{port(stage)}")  # where the warehouse looks


SCENE = Scene(
    "docs/queue-tools.md",
    dev=False,
    model=[calls(("look_up_stock", {"item": "milk"})), says("There are 12 left.")],
    prepare=the_example_is_there,
    swap={"7233": port, "perdure dev": "env -u TEMPORAL_ADDRESS perdure dev"},
    steps={
        "perdure dev": Step(until="Ctrl-C"),
        "python warehouse.py": Step(until="is open"),
        "TEMPORAL_ADDRESS": Step(shows="✓ look_up_stock milk"),
    },
)

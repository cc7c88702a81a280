"""docs/chaos.md"""

from tests.docs.stage import Scene

OURS = "tests of Perdure itself, in its checkout"
SCENE = Scene(
    "docs/chaos.md",
    not_run=dict.fromkeys(("make", "PERDURE_CHAOS_SEED", "PERDURE_PLAY_SEED", ".venv/bin/python -m"), OURS),
    dev=False,
)

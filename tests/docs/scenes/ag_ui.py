"""docs/ag-ui.md."""

import shutil

import pytest

from tests.ag_ui.test_client import MODULES
from tests.docs.scenes.web_front_ends import follow_the_gateway
from tests.docs.stage import Scene, Stage, Step


def install(stage: Stage) -> None:
    """What `npm ci --prefix tests/ag_ui` has installed."""
    if shutil.which("node") is None or not MODULES.exists():
        pytest.skip("node or a package is not installed: npm ci --prefix tests/ag_ui")
    (stage.here / "node_modules").symlink_to(MODULES)


SCENE = Scene(
    "docs/ag-ui.md",
    dev=False,
    not_run={"npm install": "the tests have a lock file of their own: tests/ag_ui"},
    steps={
        "perdure gateway": Step(until="Ctrl-C", swap={"gateway": "gateway --port 0"}),
        "node chat.mjs": Step(before=follow_the_gateway, typed="https://example.com\n", shows="messages"),
    },
    prepare=install,
)

"""docs/mcp.md"""

from perdure.testkit.model_server import calls, says
from tests.docs.stage import Scene, Step

SCENE = Scene(
    "docs/mcp.md",
    dev=False,
    model=[calls(("git__git_status", {"repo_path": "."})), says("Nothing is committed yet.")],
    not_run={"pip install": "the environment of the tests has it"},
    steps={
        "perdure tools  ": Step(shows="git__git_status"),
        "perdure tools --accept": Step(shows="git__git_status"),
        "perdure run": Step(shows="✓ git__git_status"),
    },
)

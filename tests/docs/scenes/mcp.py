"""docs/mcp.md"""

from perdure.testkit.model_server import calls, says
from tests.docs.stage import Scene, Stage, Step

# The browser of a person who agrees: it follows the link that the command prints.
BROWSER = 'while read -r line; do echo "$line"; case "$line" in http*) curl -sL "$line" > seen.txt & ;; esac; done'


def serve_tickets(stage: Stage) -> None:
    stage.ok("touch tickets.log; python tickets.py > tickets.log 2>&1 & echo $! > tickets.pid")
    stage.until(lambda: "running on" in stage.ok("cat tickets.log").lower(), "the server")


def end_tickets(stage: Stage) -> None:
    assert "You can close this page." in stage.ok("cat seen.txt")
    stage.ok("kill $(cat tickets.pid)")


SCENE = Scene(
    "docs/mcp.md",
    dev=False,
    model=[calls(("git__git_status", {"repo_path": "."})), says("Nothing is committed yet.")],
    not_run={"pip install": "the environment of the tests has it"},
    steps={
        "perdure tools  ": Step(shows="git__git_status"),
        "perdure tools --accept": (Step(shows="git__git_status"), Step(shows="tickets__open_tickets")),
        "perdure mcp login": Step(
            shows="logged in to tickets", before=serve_tickets, swap={"tickets": f"tickets --no-browser | {BROWSER}"}
        ),
        "perdure mcp logins": Step(shows="renewed by itself"),
        "perdure run": Step(shows="✓ git__git_status"),
    },
    claim=end_tickets,
)

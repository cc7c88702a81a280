"""docs/budgets.md"""

from getpass import getuser

from tests.docs.stage import Scene, Stage, Step


def is_known(stage: Stage) -> None:
    """The worker has begun anew with the page's file."""
    stage.until(lambda: "support" in stage.ok("perdure budget list"), "the budgets of the page")


SCENE = Scene(
    "docs/budgets.md",
    steps={
        "perdure budget list": Step(before=is_known, shows="support"),
        "perdure budget raise support": Step(shows="70"),
        "perdure budget raise customers": Step(shows="anna"),
        "perdure budget reset support": Step(shows="support"),
    },
    swap={'"ben"': f'"{getuser()}"'},  # who raises it is in the group
    files={"agents/clerk.md": "---\ntools: []\n---\nYou are a clerk.\n"},
)

"""docs/terminal.md"""

from tests.docs.cast import AT_WORK, CHARGE, CLERK, script, start_run
from tests.docs.stage import Scene, Stage


def four_runs(stage: Stage) -> None:
    for goal, until in (("Charge.", "waiting_on_human"), ("Ask me.", "waiting_on_human"), ("Say so.", "completed")):
        start_run(goal, until, agent="clerk")(stage)
    AT_WORK(stage)


SCENE = Scene(
    "docs/terminal.md",
    files={"agents/clerk.md": CLERK, "perdure.toml": CHARGE},
    model=script,
    prepare=four_runs,
)

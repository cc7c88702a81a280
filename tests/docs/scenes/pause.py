"""docs/pause.md"""

from tests.docs.stage import Scene, Step

SCENE = Scene(
    "docs/pause.md",
    steps={
        "perdure pause --all": Step(shows="all runs paused by "),
        "perdure pause          #": Step(shows="wrong prices"),
        "perdure unpause --all": Step(shows="unpaused: all"),
    },
)

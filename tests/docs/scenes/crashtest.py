"""docs/crashtest.md"""

from tests.docs.stage import Scene, Step

SCENE = Scene(
    "docs/crashtest.md",
    steps={"perdure crashtest": Step(code=1, shows="add_points is declared keyed, was repeated")},
    dev=False,
)

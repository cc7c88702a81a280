"""docs/testing.md"""

from tests.docs.stage import Scene, Step

SCENE = Scene(
    "docs/testing.md",
    steps={"pytest test_files.py": Step(shows="1 passed")},
    dev=False,
)

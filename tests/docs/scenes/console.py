"""docs/console.md"""

from tests.docs.stage import Scene

SCENE = Scene("docs/console.md", dev=False)

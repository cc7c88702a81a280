"""docs/policies.md"""

from tests.docs.stage import Scene

SCENE = Scene(
    "docs/policies.md",
    not_run={"perdure replay": "needs runs of the reader's own, and a new policy"},
    dev=False,
)

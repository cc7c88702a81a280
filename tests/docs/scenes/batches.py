"""docs/batches.md"""

from tests.docs.stage import Scene

SCENE = Scene(
    "docs/batches.md",
    not_run={
        "perdure run --pace batch": "needs the provider's batches; tests/workflows/test_batches.py plays them",
        "perdure schedule add": "needs the provider's batches",
    },
    dev=False,
)

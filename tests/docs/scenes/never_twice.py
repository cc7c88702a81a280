"""docs/never-twice.md"""

from tests.docs.stage import Scene

OURS = "a benchmark of Perdure's own checkout, beside frameworks that the suite does not install"
SCENE = Scene("docs/never-twice.md", not_run={".venv/bin/python -m bench.crash": OURS}, dev=False)

"""docs/gateway.md"""

import json

from tests.docs.stage import Scene, Stage, Step
from tests.media_files import pdf_bytes


def said(stage: Stage, start: str) -> str:
    return next(out for command, out in stage.outputs.items() if command.startswith(start))


def address(stage: Stage) -> str:
    """Without its scheme."""
    return said(stage, "perdure gateway").split()[1].rpartition("/")[2]


SCENE = Scene(
    "docs/gateway.md",
    dev=False,
    swap={
        "localhost:8080": address,
        "pdr_…": lambda stage: said(stage, "perdure token create me").split()[0],
        "RUN": lambda stage: str(json.loads(said(stage, "curl -s "))["run_id"]),
    },
    steps={
        "perdure gateway": Step(until="Ctrl-C", swap={"gateway": "gateway --port 0"}),
        "curl -s ": Step(shows="run_id"),
        'curl "localhost': Step(shows='"media_type":"application/pdf"'),
        "curl -sN": Step(shows='"status": "completed"'),
        "curl -s -c": Step(shows='"credential":"cookie"'),
        "curl -s -b cookies localhost": Step(shows='"name":"me"'),
        "curl -s -b cookies -X": Step(shows="204"),
        "perdure token list": Step(shows="runs:start"),
    },
    prepare=lambda stage: (stage.here / "invoice.pdf").write_bytes(pdf_bytes()),
    not_run={"perdure gateway --host": "it listens beyond this machine"},
    claim=lambda stage: stage.ok("perdure token list | grep me && ! perdure token list | grep -w ci"),
)

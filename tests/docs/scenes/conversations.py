"""docs/conversations.md"""

import json

from perdure.testkit.model_server import Reply, says
from tests.docs.stage import Scene, Stage, Step


def echo(body: dict[str, object]) -> Reply:
    return says(f"So far you spoke of: {'parcels' if 'parcels' in json.dumps(body['messages']) else 'nothing'}.")


def is_remembered(stage: Stage) -> None:
    """Coming back goes on where it was, and another name is another conversation."""
    assert "of: parcels" in stage.ok('perdure chat -m "what was it about?"')


SCENE = Scene(
    "docs/conversations.md",
    steps={
        "perdure chat  ": Step(typed="it is about parcels\n", shows="of: parcels"),
        "perdure chat support-4711": Step(shows="of: nothing"),
    },
    model=echo,
    claim=is_remembered,
)

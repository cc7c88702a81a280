"""docs/deploy.md: most of it is about machines that are not here."""

from tests.docs.pages import ROOT
from tests.docs.stage import Scene, Stage

ENGINE, CLUSTER = "it needs a Docker engine", "it needs a Temporal server on another machine"


def the_checkout_is_there(stage: Stage) -> None:
    stage.write(".env.example", (ROOT / ".env.example").read_text(encoding="utf-8"))


SCENE = Scene(
    "docs/deploy.md",
    dev=False,
    prepare=the_checkout_is_there,
    not_run={
        "docker compose": ENGINE,
        "export TEMPORAL_": CLUSTER,
        "perdure worker": CLUSTER,
        "perdure doctor": CLUSTER,
        "pip install": "the environment of the tests has it",
        "export PERDURE_": "it needs an object store",
    },
    claim=lambda stage: stage.ok("grep PERDURE_PROJECT .env"),
)

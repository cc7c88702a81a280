"""docs/upgrading.md"""

import json

from tests.docs.cast import ASKING, script
from tests.docs.stage import Scene, Stage, Step

OURS = "of Perdure's own checkout"
BUILD = "TEMPORAL_DEPLOYMENT_NAME=shop TEMPORAL_WORKER_BUILD_ID"
RUN = "old-run"


def is_known(stage: Stage, build: str) -> None:
    """The server hears of a build with its worker's first poll, a moment late."""
    described = "temporal worker deployment describe --name shop --output json"
    stage.until(lambda: f'"BuildID": "{build}"' in stage.run(described).out, f"build {build}")


def build_1_is_current(stage: Stage) -> None:
    at = json.loads((stage.folder / ".perdure" / "server.json").read_text(encoding="utf-8"))
    stage.ok(f"export TEMPORAL_ADDRESS={at['address']}")
    stage.run(f"{BUILD}=1 perdure worker", until="build 1")
    is_known(stage, "1")
    stage.ok("temporal worker deployment set-current-version --deployment-name shop --build-id 1 --yes")
    stage.outputs[RUN] = ASKING(stage)


def is_listed(stage: Stage) -> None:
    """The server's list has a run's build a moment late."""
    query = "TemporalWorkerDeploymentVersion = 'shop:1'"
    stage.until(lambda: "run:" in stage.ok(f'temporal workflow list --query "{query}"'), "the run at build 1")


def goes_on_with_build_2(stage: Stage) -> None:
    run_id = stage.outputs[RUN]
    stage.ok(f'perdure answer {run_id} "the second one"')
    state = ("workflow", "query", "--workflow-id", f"run:{run_id}", "--name", "state")
    stage.until(lambda: '"completed"' in stage.temporal(*state), "the end of the run")
    query = "TemporalWorkerDeploymentVersion = 'shop:2'"
    stage.until(lambda: run_id in stage.ok(f'temporal workflow list --query "{query}"'), "the run at build 2")


SCENE = Scene(
    "docs/upgrading.md",
    steps={
        BUILD: Step(until="build 2"),
        "temporal worker deployment set-current-version": Step(before=lambda stage: is_known(stage, "2")),
        'temporal workflow list --query "TemporalWorkerDeploymentVersion': Step(before=is_listed, shows="run:"),
    },
    not_run={"make histories": OURS, "PERDURE_TEST_NO_CACHE": OURS},
    swap={"RUN": lambda stage: stage.outputs[RUN]},
    model=script,
    prepare=build_1_is_current,
    claim=goes_on_with_build_2,
)

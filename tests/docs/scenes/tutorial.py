"""docs/tutorial.md"""

from collections.abc import Callable

from tests.docs.stage import Scene, Stage, Step
from tests.ports import free_port


def port(stage: Stage) -> str:
    """Found when the page gets to it, for all places where the page names it: other tests start servers meanwhile."""
    if "port" not in stage.outputs:
        stage.outputs["port"] = str(free_port())
    return stage.outputs["port"]


def no_server_is_left(stage: Stage) -> None:
    """Its supervisor removes the file when the last user and the server are gone."""
    at = stage.here / ".perdure" / "server.json"
    stage.until(lambda: not at.exists(), "the end of the server")


def when(command: str, says: str) -> Callable[[Stage], None]:
    return lambda stage: stage.until(lambda: says in stage.run(command).out, f"{says!r} from {command}")


def at_once(pause: str, before: Callable[[Stage], None]) -> Step:
    """What the reader waits for, and no longer."""
    return Step(before=before, swap={pause: "true"})


def both_are_paid_once(stage: Stage) -> None:
    assert stage.ok("cat ledger.txt").split() == ["A-1002", "1250", "A-1001", "1250"]


INSTALLED = "perdure is there, from the environment of the tests"
SCENE = Scene(
    "docs/tutorial.md",
    dev=False,
    not_run={"python3 -m venv": INSTALLED, "pip install": INSTALLED},
    steps={
        "perdure dev": (Step(), Step(before=no_server_is_left), Step(), Step()),
        "sleep 5; cat dev.log": at_once("sleep 5", when("cat dev.log", "Ctrl-C stops")),
        "sleep 5; perdure list": at_once("sleep 5", when("cat dev.log", "Ctrl-C stops")),
        "sleep 5; perdure show refund-1": at_once("sleep 5", when("perdure show refund-1", "perdure approve")),
        "sleep 5; perdure approve refund-2": at_once("sleep 5", when("perdure show refund-2", "perdure approve")),
        "sleep 2; cat ledger.txt": at_once("sleep 2", when("cat ledger.txt", "A-1001")),
        "sleep 20; perdure show refund-2": at_once("sleep 20", when("perdure show refund-2", "may have happened")),
    },
    swap={"8099": port},
    claim=both_are_paid_once,
)

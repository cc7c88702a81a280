"""docs/dry-run.md"""

from perdure.testkit.model_server import calls, says
from tests.docs.stage import Scene

SCENE = Scene(
    "docs/dry-run.md",
    model=[
        calls(("order_status", {"order_id": "A-1002"}), text="Plan: look it up, then cancel it."),
        calls(("cancel_order", {"order_id": "A-1002"})),
        says("It is cancelled."),
    ],
    dev=False,
)

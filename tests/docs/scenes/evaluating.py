"""docs/evaluating.md"""

from itertools import count
from typing import Any

from perdure.testkit.model_server import Reply, calls, says
from tests.docs.stage import Scene, Stage, Step

CANCELLED = count()
# Anthropic's own are known; another server's, like the scripted one's, are said.
PRICES = '[prices."claude-sonnet-5-5"]\ninput = 3\noutput = 15\n'


def add_prices(stage: Stage) -> None:
    stage.write("perdure.toml", PRICES, added=True)


def shop(body: dict[str, Any]) -> Reply:
    """Of five cancellations one is made without a look."""
    goal, turn = str(body["messages"][0]), len(body["messages"]) // 2
    looks = calls(("order_status", {"order_id": "A-1001" if "A-1001" in goal else "A-1002"}))
    if "cancel" not in goal:
        return (looks, says("It was shipped on Monday."))[turn]
    cancels = calls(("cancel_order", {"order_id": "A-1002"}))
    if turn == 0 and next(CANCELLED) % 5 == 4:
        return cancels
    has_cancelled = "is cancelled" in str(body["messages"])
    return says("It is cancelled.") if has_cancelled else (looks, cancels)[turn]


SCENE = Scene(
    "docs/evaluating.md",
    model=shop,
    steps={
        "perdure eval cases": Step(
            before=add_prices, code=1, shows="it does not call order_status; it calls: cancel_order"
        )
    },
    dev=False,
)

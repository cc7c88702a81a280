"""docs/replay.md"""

from typing import Any

from perdure.testkit.model_server import ScriptedAnswer, calls, says
from tests.docs.stage import Scene, Stage, Step

PRICES = "".join(
    f'\n[prices."{model}"]\ninput = {usd}\noutput = {5 * usd}\n'
    for model, usd in {"claude-sonnet-5-5": 3, "claude-haiku-4-5": 1}.items()
)
CANCEL = calls(("cancel_order", {"order_id": "A-1002"}))
END = says("A-1002 is cancelled.")


def look(order: str) -> ScriptedAnswer:
    return calls(("order_status", {"order_id": order}))


def reply(body: dict[str, Any]) -> ScriptedAnswer:
    script: list[ScriptedAnswer] = [look("A-1002"), CANCEL, END]
    if "haiku" in body["model"]:
        script = [CANCEL, END]
    elif "the other orders" in str(body["system"]):
        script = [look("A-1002"), look("A-1001"), CANCEL, END]
    turn: int = sum(message["role"] == "assistant" for message in body["messages"])
    return script[turn]


def price(stage: Stage) -> None:
    stage.write("perdure.toml", PRICES, added=True)


SCENE = Scene(
    "docs/replay.md",
    steps={
        "perdure run": Step(before=price, until="approve a call"),
        "perdure replay order-1 --model": Step(code=1),
        "perdure replay order-1 --agent": (Step(code=1), Step()),
    },
    not_run={"perdure replay --": "needs runs of the reader's own"},
    model=reply,
    dev=False,
)

"""README.md"""

import json
import re
from typing import Any
from urllib.request import urlopen

from perdure.testkit.model_server import ScriptedAnswer, calls
from tests.docs.cast import ASKING, ENDED, FAILED, script
from tests.docs.stage import Scene, Stage, Step
from tests.ports import free_port

EVENT = {"platform": "discord", "channelId": "c", "messageId": "m2", "userId": "u", "text": "yes", "ts": 1}
REPLY = {"type": "evt.adapter.message.created", "data": {**EVENT, "raw": {"discord": {"replyToMessageId": "m1"}}}}
OURS = "of Perdure's own checkout: the first is tests/e2e/test_demo.py, the second what runs this"


def model(body: dict[str, Any]) -> ScriptedAnswer:
    """Refunds what it is asked to, and asks where nobody says what to write about."""
    text = json.dumps(body["messages"])
    if "tool_result" not in text:
        if "refund" in text:
            return calls(("refund", {"order_id": "A-7", "cents": 1200}))
        if "critique" in text:
            return calls(("ask_human", {"question": "Of which page?"}))
    return script(body)


def at_work(stage: Stage) -> None:
    """Only now, with the page's files there: a worker has the project that it was started with."""
    stage.run("perdure dev", until="Ctrl-C stops")


def the_refund(stage: Stage) -> str:
    """The run of the page's first command."""
    found = re.search(r"^run +(\S+)", next(out for text, out in stage.outputs.items() if "A-7" in text), re.MULTILINE)
    assert found is not None
    return found[1]


def is_refunded(stage: Stage) -> None:
    stage.until((stage.folder / "refunds.txt").exists, "the refund")
    assert (stage.folder / "refunds.txt").read_text(encoding="utf-8") == "A-7 1200\n"


def one_that_ended(stage: Stage) -> str:
    """The same one for all that only look."""
    is_refunded(stage)
    return stage.outputs.get("ended") or stage.outputs.setdefault("ended", ENDED(stage))


def has_page(stage: Stage) -> None:
    with urlopen(f"http://127.0.0.1:{stage.outputs['port']}/") as page:
        assert b"<html" in page.read().lower()


def port(stage: Stage) -> str:
    stage.outputs["port"] = str(free_port())
    return f"perdure gateway --port {stage.outputs['port']}"


def elsewhere(stage: Stage) -> None:
    at = json.loads((stage.folder / ".perdure" / "server.json").read_text(encoding="utf-8"))
    stage.ok(f"export TEMPORAL_ADDRESS={at['address']}")


def is_answered(stage: Stage) -> None:
    state = ("workflow", "query", "--workflow-id", "run:my-id", "--name", "state")
    stage.until(lambda: '"completed"' in stage.temporal(*state), "the end of the run that was signalled")


SCENE = Scene(
    "README.md",
    steps={
        "perdure run": Step(before=at_work, until="perdure approve"),
        "perdure list": Step(shows="approve refund"),
        "perdure show": Step(swap={"RUN": the_refund}, shows="refund"),
        "perdure approve": Step(swap={"RUN": the_refund}, shows="accepted"),
        "perdure trace": Step(before=is_refunded, swap={"RUN": the_refund}, shows="refund"),
        "perdure chat": Step(typed="hello\n", shows="Done."),
        "perdure answer": Step(swap={"RUN": ASKING}, shows="accepted"),
        "perdure watch": Step(swap={"RUN": the_refund}, shows="■ completed"),
        "perdure resume": Step(swap={"resume RUN": lambda stage: f"resume {FAILED(stage)}", "RUN": one_that_ended}),
        "perdure mail": Step(until="inbox"),
        "perdure event": Step(shows="topic:discord:c:m1"),
        "perdure schedule add": Step(shows="daily"),
        "perdure eval": Step(shows="5 of 5"),
        "perdure gateway": Step(swap={"perdure gateway": port}, until="http://"),
        "perdure mcp": Step(before=has_page),
        "perdure doctor": Step(),
        "temporal workflow start": Step(before=elsewhere),
    },
    not_run={"make": OURS, "source PATH-OF-THE-CHECKOUT": "the environment of the tests is there"},
    files={"reply.json": json.dumps(REPLY), "cases.yaml": "- goal: say so\n  expect: {contains: Done}\n"},
    dev=False,
    model=model,
    claim=is_answered,
)

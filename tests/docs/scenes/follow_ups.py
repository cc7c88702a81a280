"""docs/follow-ups.md"""

import json

from perdure.testkit.model_server import Reply, calls, says
from tests.docs.stage import Scene, Stage, Step


def patient(body: dict[str, object]) -> Reply:
    """Creates a follow-up, waits for the reply to a message, and ends; what came begins another turn."""
    text = json.dumps(body["messages"])
    if "Friday is fine" in text:
        return says("B has time on Friday.")
    if "topic:" in text or "taskId" in text:
        return says("I wrote to B; I'll tell you.")
    if "workflowId" in text:
        wait = {"description": "B's reply", "channelId": "dm-b", "messageId": "m-11"}
        return calls(("workflow_wait_for_reply", wait))
    return calls(("workflow_create", {"definition": {"summary": "Lunch with B."}}))


def asked(stage: Stage) -> None:
    assert "I'll tell you" in stage.ok('perdure chat lunch -m "ask B for lunch"')


def came_back(stage: Stage) -> None:
    stage.until(lambda: "B has time on Friday" in stage.ok("perdure chat lunch", typed="/history\n"), "the next turn")


SCENE = Scene(
    "docs/follow-ups.md",
    files={"agents/default.md": "---\nfollow_ups: {}\n---\n"},
    steps={"perdure event": Step(before=asked)},
    model=patient,
    claim=came_back,
)

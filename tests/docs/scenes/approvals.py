"""docs/approvals.md"""

import json
from typing import Any

from perdure.testkit.model_server import Reply, calls, says
from tests.docs.stage import Scene, Stage, Step


def shop(body: dict[str, Any]) -> Reply:
    said = json.dumps(body["messages"])
    if len(body["messages"]) == 1:
        return calls(("cancel_order", {"order_id": "A-1002" if "A-1002" in said else "A-1001"}))
    return says("It is cancelled." if "is cancelled" in said else "It stays.")


def both_wait(stage: Stage) -> None:
    stage.until(lambda: stage.ok("perdure list --waiting").count("approve cancel_order") == 2, "two questions")


def digest(stage: Stage) -> str:
    return str(json.loads(stage.ok("perdure show cancel-2 --json"))["question"]["call"])


def token(stage: Stage) -> None:
    (said,) = [out for command, out in stage.outputs.items() if command.startswith("perdure token")]
    stage.ok(f"export TOKEN={said.split()[0]}")


def port(stage: Stage) -> str:
    return stage.outputs["perdure gateway"].split()[1].rpartition(":")[2]


def the_record_has_who_decided(stage: Stage) -> None:
    assert "It stays." in stage.ok("perdure watch cancel-2")
    stage.ok("perdure trace cancel-2 --export denied.json")
    for name, decision in (("run.json", "approve"), ("denied.json", "deny")):
        record = json.loads((stage.here / name).read_text(encoding="utf-8"))
        (question,), (call,) = record["questions"], record["calls"]
        (answer,) = question["answers"]
        assert (question["text"], list(call["arguments"])) == ("approve cancel_order", ["order_id"])
        assert (answer["by"], answer["decision"]) == ("ann", decision)
        assert [made["approval"] for made in call["made"]] == ([call["digest"]] if decision == "approve" else [])


SCENE = Scene(
    "docs/approvals.md",
    dev=False,
    not_run={
        "perdure show question:": "no feature of this page asks one: tests/workflows",
        "perdure answer question:": "the same",
    },
    model=shop,
    swap={"8080": port, "8d0c6f2ab41e93575c02aa71": digest},
    steps={
        "perdure gateway": Step(until="Ctrl-C", swap={"gateway": "gateway --port 0"}),
        "perdure list": Step(shows="approve cancel_order", before=both_wait),
        "perdure show": Step(shows="perdure approve cancel-1"),
        "perdure watch": Step(shows="It is cancelled."),
        "curl": (Step(shows="A-1001", before=token), Step(shows="cancel-2")),
    },
    claim=the_record_has_who_decided,
)

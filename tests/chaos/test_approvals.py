"""The judge of decisions finds each way in which one can be broken."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.client.records.run_facts import RunFacts
from perdure.contracts.people import Sender
from perdure.contracts.run.export import ExportedAnswer, ExportedQuestion
from tests.chaos.approvals import Plan, judge_decisions
from tests.chaos.auditor import Audit
from tests.chaos.doors import Sent
from tests.chaos.tool_server import EffectRecord, ToolServer

PLAN = Plan(1, "pay", {"n": 1}, arguments={"n": 2})
SENT = Sent("r", "q1", 1, "ann", "approve", arguments={"n": 2}, began=1.0, accepted=True)
MADE = EffectRecord("r", 1, "k", "once", "r/1#0", {"n": 2}, at=2.0)
RECORD = ExportedAnswer(
    at=SENT.at, via="update", sender=Sender(door="gateway", token="ann"), decision="approve", arguments={"n": 2}
)


def judge(
    plan: Plan = PLAN, sent: Sent = SENT, made: tuple[EffectRecord, ...] = (MADE,), answers: tuple[Any, ...] = (RECORD,)
) -> list[str]:
    found, tools = Audit(), ToolServer(1)
    tools.effects += made
    it: Any = SimpleNamespace(tools=tools)
    question = ExportedQuestion(id="q1", text="approve pay", asked_at=SENT.at, answers=answers)
    judge_decisions(found, it, "r", [plan], [sent], RunFacts(questions=[question]))
    return found.violations


def test_a_decision_that_is_carried_out_and_recorded_is_in_order() -> None:
    assert judge() == []


def by(**changes: Any) -> ExportedAnswer:
    return RECORD.evolve(**changes)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"made": ()}, "approved, and never made"),
        ({"made": (replace(MADE, arguments={"n": 1}),)}, "decided were"),
        ({"made": (replace(MADE, at=0.5),)}, "when only [] of"),
        ({"plan": Plan(1, "pay", {"n": 1}, "deny")}, "was denied, and its tool was called"),
        ({"plan": replace(PLAN, people=("ann", "bob"))}, "when only ['ann'] of"),
        ({"answers": ()}, "has no record"),
        ({"answers": (RECORD, RECORD)}, "has answers of {'ann': 2}"),
        ({"answers": (by(sender=Sender(door="cli", person="ann")),)}, "that no person sent"),
        ({"answers": (by(at=SENT.at - timedelta(minutes=1)),)}, "that no person sent"),
        ({"answers": (by(arguments={"n": 3}),)}, "that no person sent"),
        ({"sent": replace(SENT, accepted=False)}, "without a reason"),
    ],
)
def test_each_broken_decision_is_a_violation(broken: dict[str, Any], says: str) -> None:
    assert any(says in violation for violation in judge(**broken))

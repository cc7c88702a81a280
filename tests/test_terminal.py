"""What a person at a terminal sees, and what they type at a question becomes the answer they meant."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from commands.terminal import Screen, read_answer
from contracts.context import ContextFull, Summary
from contracts.run import QuestionView
from contracts.signals import Decision
from watch import Crowded, Happening, Noticed, Shortened

SUMMARY = Summary(
    text="So far.",
    tail=20,
    before_tokens=15_000,
    after_tokens=4_000,
    before_messages=30,
    after_messages=13,
    model="small",
)

ASKS = QuestionView(id="q1", kind="question", text="Which?", options=("the start page", "the tide table"))
APPROVAL = QuestionView(
    id="q2", kind="approval", text="charge", options=("approve", "approve_tool", "deny"), call="c0ffee"
)


@pytest.mark.parametrize(
    ("question", "typed", "meant"),
    [
        (ASKS, "2", {"text": "the tide table"}),
        (ASKS, " the visit page ", {"text": "the visit page"}),
        (ASKS, "2 of them", {"text": "2 of them"}),
        (ASKS, "7", {"text": "7"}),
        (APPROVAL, "1", {"decision": Decision.approve, "call": "c0ffee"}),
        (APPROVAL, "deny", {"decision": Decision.deny, "call": "c0ffee"}),
        (APPROVAL, "3 too dear", {"decision": Decision.deny, "text": "too dear", "call": "c0ffee"}),
        (APPROVAL, "deny too dear", {"decision": Decision.deny, "text": "too dear", "call": "c0ffee"}),
        (APPROVAL, "maybe", {"text": "maybe"}),  # no decision: the run refuses it, and says what it takes
    ],
)
def test_a_typed_line_is_read_as_an_option_a_decision_or_a_text(
    question: QuestionView, typed: str, meant: dict[str, Any]
) -> None:
    answer = read_answer(question, typed)
    assert answer.question_id == question.id
    assert answer.model_dump(exclude_none=True, exclude={"question_id"}) == meant


@pytest.mark.parametrize(
    ("happening", "says"),
    [
        (Crowded(ContextFull(tokens=15_000, window=20_000, messages=30)), "about 15,000 of 20,000"),
        (Shortened(SUMMARY), "30 → 13 messages, about 15,000 → 4,000 tokens: summarised by small"),
        (Shortened(SUMMARY.model_copy(update={"model": ""})), "cut down without a summary"),
        (Shortened(SUMMARY.model_copy(update={"tail": 0})), "nothing to summarise"),
        (
            Noticed({"event": "agent.guardrail.escalated", "ladder": "thrash", "stage": "nudge"}),
            "goes in circles: told",
        ),
        (Noticed({"event": "agent.exhaustion.soft_limit"}), "one last turn"),
        (Noticed({"event": "agent.guardrail.escalated", "ladder": "recovery", "stage": "prune"}), ""),
    ],
)
def test_what_a_run_does_about_itself_is_told_in_a_line(happening: Happening, says: str) -> None:
    seen = StringIO()
    Screen(Console(file=seen, width=120)).show(happening)
    assert says in seen.getvalue()
    assert len(seen.getvalue().splitlines()) == bool(says)

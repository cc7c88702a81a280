"""What a person types at a question becomes the answer they meant."""

from typing import Any

import pytest

from contracts.run import QuestionView
from contracts.signals import Decision
from terminal import read_answer

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

"""Which answers a question takes."""

from datetime import UTC, datetime
from typing import Any

import pytest

from contracts.question import Question, QuestionKind
from contracts.signals import Decision, HumanInput
from decisions.question import DECISIONS, refusal


def question(kind: str) -> Question:
    return Question(id="q2", kind=QuestionKind(kind), text="Well?", asked_at=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("kind", "answer", "says"),
    [
        ("question", {"text": "yes"}, None),
        ("question", {"text": "yes", "question_id": "q2"}, None),
        ("question", {"text": "yes", "decision": "approve"}, None),
        ("question", {"text": "yes", "question_id": "q1"}, "question q1 is not open; the open one is q2"),
        ("question", {"text": "  "}, "takes a text"),
        ("question", {}, "takes a text"),
        ("question", {"decision": "approve"}, "takes a text"),
        ("approval", {"decision": "approve"}, None),
        ("approval", {"decision": "approve_tool"}, None),
        ("approval", {"decision": "deny", "text": "too dear"}, None),
        ("approval", {"text": "yes"}, "takes one of: approve, approve_tool, deny"),
        ("approval", {"decision": "run_again"}, "takes one of: approve, approve_tool, deny"),
        ("resume_unsafe", {"decision": "run_again"}, None),
        ("resume_unsafe", {"decision": "give_up"}, None),
        ("resume_unsafe", {"decision": "use_result", "text": "paid"}, None),
        ("resume_unsafe", {"decision": "use_result", "text": ""}, None),
        ("resume_unsafe", {"decision": "use_result"}, "needs the result as text"),
        ("resume_unsafe", {"decision": "approve"}, "takes one of: run_again, use_result, give_up"),
    ],
)
def test_each_kind_of_question_takes_its_own_answers(kind: str, answer: dict[str, Any], says: str | None) -> None:
    refused = refusal(question(kind), HumanInput.model_validate(answer))
    assert refused is None if says is None else says in (refused or "")


def test_without_an_open_question_every_answer_is_refused() -> None:
    assert refusal(None, HumanInput(text="yes")) == "no question is open on this run"


def test_every_kind_has_its_row_of_known_decisions() -> None:
    assert set(DECISIONS) == set(QuestionKind)
    assert all(isinstance(decision, Decision) for row in DECISIONS.values() for decision in row)

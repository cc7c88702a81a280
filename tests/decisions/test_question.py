"""Which answers a question takes."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure.contracts.run.signals import Decision, HumanInput, Question, QuestionKind
from perdure.decisions.people.terms import expire_question
from perdure.decisions.run.question import QUESTIONS, answer_rejection, find_question
from perdure.decisions.text.formatting import format_doubt, waiting_for_people
from perdure.features.follow_ups.client import question_of_task
from perdure.features.follow_ups.contract import Task
from perdure.terminal.prompt import DECISION_HELP
from tests.reference.meanings import meanings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CALL = "c0ffee"
ROOT = Path(__file__).parents[2]
ASKING = ("workflows/agent_run", "perdure/decisions/run", "perdure/features/mcp")


def question(kind: str, **fields: Any) -> Question:
    call = CALL if kind == "approval" else None
    return Question(id="q2", kind=QuestionKind(kind), text="Well?", asked_at=NOW, call=call, **fields)


def rejection(*questions: Question, answer: HumanInput, expired: str | None = None, now: datetime = NOW) -> str | None:
    found = find_question([expire_question(asked, now) for asked in questions], answer, expired=expired)
    return found if isinstance(found, str) else answer_rejection(found, answer)


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
        ("approval", {"decision": "approve", "call": CALL}, None),
        ("approval", {"decision": "approve", "call": "5e1f"}, "question q2 is not about the call 5e1f"),
        ("approval", {"decision": "deny", "call": ""}, "is not about the call"),
        ("question", {"text": "yes", "call": CALL}, "is not about the call"),
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
    refused = rejection(question(kind), answer=HumanInput.model_validate(answer))
    assert refused is None if says is None else says in (refused or "")


def test_without_an_open_question_every_answer_is_refused() -> None:
    assert rejection(answer=HumanInput(text="yes")) == "no question is open on this run"


def test_a_question_closes_at_its_time_and_says_so() -> None:
    yes, hour = HumanInput(decision=Decision.approve), timedelta(hours=1)
    timed, timeless = question("approval", expires_at=NOW + hour), question("approval")
    assert rejection(timed, answer=yes, now=NOW + hour - timedelta(seconds=1)) is None
    assert rejection(timed, answer=yes, now=NOW + hour) == "question q2 has expired without an answer"
    assert rejection(timeless, answer=yes, now=NOW + 9999 * hour) is None


def test_a_late_answer_hears_that_its_question_has_expired() -> None:
    expired = "question q2 has expired without an answer"
    assert rejection(answer=HumanInput(decision=Decision.approve), expired="q2") == expired
    assert rejection(answer=HumanInput(question_id="q2", text="yes"), expired="q2") == expired
    assert rejection(answer=HumanInput(question_id="q1", text="yes"), expired="q2") == "no question is open on this run"


def test_every_kind_of_question_has_what_it_must_have_in_each_place() -> None:
    """`QuestionKind` names the places. Without its row, a run that asks this would fail its workflow task."""
    asking = "".join(path.read_text(encoding="utf-8") for folder in ASKING for path in (ROOT / folder).glob("*.py"))
    lacks = {
        "perdure/contracts/run/signals.py: the comments": {*QuestionKind} - {*meanings(QuestionKind)},
        "perdure/decisions/run/question.py: QUESTIONS": {*QuestionKind} ^ {*QUESTIONS},
        "perdure/terminal/prompt.py: DECISION_HELP": {*Decision} ^ {*DECISION_HELP},
        "perdure/decisions/run/question.py: who takes the decision": {*Decision}
        - {decision for row in QUESTIONS.values() for decision in row.decisions},
        f"{' or '.join(ASKING)}: who asks it": {
            kind
            for kind in {*QuestionKind} - {QuestionKind.project}  # which no run asks
            if not re.search(rf"(ask_person\(run, |asks=)QuestionKind\.{kind}\b", asking)
        },
    }
    assert {place: sorted(missing) for place, missing in lacks.items() if missing} == {}


@pytest.mark.parametrize("kind", QuestionKind)
def test_every_kind_is_shown_in_lists_and_in_the_web_ui(kind: QuestionKind) -> None:
    assert QUESTIONS[kind].title
    assert waiting_for_people([question(kind.value)])


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"text": "b.csv"}, None),
        ({"text": "b.csv", "decision": "approve"}, None),
        ({"text": "c.csv"}, "question q2 takes one of: a.csv, b.csv"),
        ({"decision": "approve"}, "takes one of: a.csv, b.csv"),
    ],
)
def test_a_choice_takes_one_of_its_options(answer: dict[str, Any], says: str | None) -> None:
    asked = question("choice", options=("a.csv", "b.csv"))
    refused = answer_rejection(asked, HumanInput.model_validate(answer))
    assert refused is None if says is None else says in (refused or "")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({}, ""),
        ({"order": "A-1"}, ""),
        ({"order": "A" * 120}, "A" * 120),
        ({"order": "A-1", "cents": 999}, '"cents": 999'),
    ],
)
def test_who_decides_to_run_a_call_again_sees_all_of_it(arguments: dict[str, Any], shown: str) -> None:
    text = format_doubt("refund", arguments)
    assert text.splitlines()[0].endswith("was interrupted and may have happened. Run it again?")
    assert (shown in text, "{" in text) == (True, bool(shown))


def test_the_options_of_a_follow_ups_question_have_nothing_hidden_in_them() -> None:
    question = {"text": "Which one?", "options": ["a\u202eb", "a" + " " * 50 + "b"]}
    task = Task(task_id="t1", kind="prompt", description="x", input=question, created_at=0, updated_at=0)
    assert question_of_task(task).options == ("a[U+202E]b", "a [50 spaces] b")

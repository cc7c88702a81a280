"""The filters of open questions, and how the terminal lists them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from perdure.client.questions import ListedQuestion, QuestionFilter, QuestionList
from perdure.commands import questions as command
from perdure.contracts.run.signals import QuestionKind
from perdure.contracts.run.state import QuestionView, TermsView

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
REFUND = QuestionView(
    id="q1",
    kind="approval",
    text="refund\n{}",
    options=("approve", "deny"),
    tool="refund",
    asked_at=NOW - timedelta(hours=2),
    call="c0ffee",
    terms=(
        TermsView(approvers=("finance",), quorum=2, approved_by=("bob",)),
        TermsView(approvers=("ops",), not_by=("rob",)),
        TermsView(approvers=("ceo",), approved_by=("eva",)),
    ),
)
ASKS = QuestionView(id="q2", kind="question", text="Which?", options=(), asked_at=NOW - timedelta(minutes=5))


def listed(question: QuestionView | None, agent: str = "clerk") -> ListedQuestion:
    return ListedQuestion(
        run_id="r1",
        agent=agent,
        goal=None,
        waiting_for="human: 2",
        started_at=NOW - timedelta(days=1),
        question=question,
    )


@pytest.mark.parametrize(
    ("filters", "has_refund", "has_question"),
    [
        ({}, True, True),
        ({"tool": "refund"}, True, False),
        ({"tool": "ref"}, False, False),
        ({"kind": QuestionKind.question}, False, True),
        ({"group": "finance"}, True, False),
        ({"group": "legal"}, False, False),
        ({"person": "ann", "groups": ("finance",)}, True, True),
        ({"person": "ann"}, False, True),
        ({"person": "bob", "groups": ("finance",)}, False, True),
        ({"person": "bob", "groups": ("finance", "ops")}, True, True),
        ({"person": "rob", "groups": ("ops",)}, False, True),  # who started the run
        ({"older_than": timedelta(hours=1)}, True, False),
        ({"older_than": timedelta(hours=1), "tool": "fetch"}, False, False),
    ],
)
def test_a_filter_lets_through_what_meets_all_of_it(
    filters: dict[str, Any], has_refund: bool, has_question: bool
) -> None:
    only = QuestionFilter(**filters)
    assert [only.is_met(listed(question), NOW) for question in (REFUND, ASKS)] == [has_refund, has_question]


def test_a_question_that_no_worker_tells_is_listed_only_if_no_filter_has_to_read_it() -> None:
    unread = listed(None)
    assert QuestionFilter(agent="clerk").is_met(unread, NOW)
    assert QuestionFilter(older_than=timedelta(hours=23)).is_met(unread, NOW)
    assert not QuestionFilter(tool="refund").is_met(unread, NOW)


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    def show(*questions: ListedQuestion, **more: Any) -> list[str]:
        out = StringIO()
        monkeypatch.setattr(command, "console", Console(file=out, width=70, no_color=True))
        monkeypatch.setattr(command, "format_age", lambda _: "2 h")
        command.print_questions(QuestionList(questions=questions, **more))
        return out.getvalue().splitlines()

    return show


def test_each_question_has_its_run_and_the_command_that_shows_or_answers_it(
    printed: Callable[..., list[str]],
) -> None:
    assert printed(listed(REFUND), listed(ASKS), listed(None)) == [
        "r1  q1  approve a call: refund  clerk  2 h  for finance and for ops",
        "  refund {}",
        "  perdure show r1",
        "r1  q2  the agent asks  clerk  2 h",
        "  Which?",
        '  perdure answer r1 --question q2 "…"',
        "r1  clerk  2 h",
        "  human: 2",
        "  perdure show r1",
    ]


def test_a_list_says_what_it_does_not_hold(printed: Callable[..., list[str]]) -> None:
    assert printed(unread=1, is_partial=True) == [
        "no such question is open",
        "no worker answers for 1 run, whose questions are not listed",
        "more runs wait for a person: perdure list --waiting",
    ]

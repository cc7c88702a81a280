"""What is expected of a run, and why it does not hold."""

from typing import Any

import pytest
from pydantic import ValidationError

from perdure.features.proof.contract import Case, Expectation, Facts, Score
from perdure.features.proof.rules import case_name, failed_checks, pass_rate

GOOD = Facts(
    status="completed",
    text="The order A-1 was shipped.",
    files=("artifacts/report.md", "memory.md"),
    made=("look", "finish"),
    requested=("look", "charge", "finish"),
    steps=3,
    tokens=100,
    cost_usd=0.5,
)
ASKING = Facts(
    status="cancelled", asked=("Which shop?",), unanswered="Which shop?", made=("look",), requested=("look",)
)
ANSWERED = GOOD.evolve(asked=("Which shop?",))


def whys(facts: Facts, **expect: Any) -> tuple[str, ...]:
    return failed_checks(Expectation.model_validate(expect), facts)


@pytest.mark.parametrize(
    ("expect", "why"),
    [
        ({}, None),
        ({"status": "escalated"}, "it is completed, not escalated: The order A-1 was shipped."),
        ({"contains": "shipped"}, None),
        ({"contains": ["shipped", "today"]}, "it does not say 'today', but 'The order A-1 was shipped.'"),
        ({"not_contains": "lost"}, None),
        ({"not_contains": "order"}, "it says 'order'"),
        ({"matches": r"A-\d\b"}, None),
        ({"matches": "^A-"}, "it does not match '^A-': 'The order A-1 was shipped.'"),
        ({"artifact": "artifacts/*.md"}, None),
        ({"artifact": "plan.md"}, "there is no file plan.md; there are: artifacts/report.md, memory.md"),
        ({"calls": ["look", "finish"]}, None),
        ({"calls": "charge"}, "it does not call charge; it calls: look, finish"),
        ({"never_calls": "refund"}, None),
        ({"never_calls": "charge"}, "it calls charge"),
        ({"max_steps": 3}, None),
        ({"max_steps": 2}, "it takes 3 steps; the limit is 2"),
        ({"max_cost_usd": 0.5}, None),
        ({"max_cost_usd": 0.4}, "it costs USD 0.5000; the limit is 0.4"),
        ({"asks": True}, "it asks no question; it is completed: The order A-1 was shipped."),
    ],
    ids=str,
)
def test_an_expectation_holds_or_its_reason_is_reported(expect: dict[str, Any], why: str | None) -> None:
    assert whys(GOOD, **expect) == (() if why is None else (why,))


def test_all_failed_expectations_are_reported() -> None:
    assert len(whys(GOOD, contains="a", not_contains="order", matches="x", calls="charge", max_steps=1)) == 4


def test_an_unknown_cost_does_not_pass_for_a_small_one() -> None:
    (why,) = whys(GOOD.evolve(cost_usd=None), max_cost_usd=9)
    assert why.startswith("its cost is not known")


@pytest.mark.parametrize(
    ("facts", "expect", "why"),
    [
        (ASKING, {}, "it asks a person: Which shop?"),
        (ASKING, {"status": "cancelled"}, "it asks a person: Which shop?"),
        (ASKING, {"asks": True}, None),
        (ASKING, {"asks": "shop"}, None),
        (ASKING, {"asks": "page"}, "it asks something else: Which shop?"),
        (ASKING, {"asks": True, "calls": "look"}, None),
        (ASKING, {"asks": True, "never_calls": "look"}, "it calls look"),
        (ASKING, {"asks": True, "answer": "the first"}, "it asks a person, and no answer settles it: Which shop?"),
        (ANSWERED, {"asks": "shop", "answer": "the first"}, None),
        (ANSWERED, {"answer": "the first"}, None),
        (ANSWERED, {"asks": True, "answer": "x", "contains": "lost"}, "it does not say 'lost'"),
    ],
)
def test_a_question_is_expected_or_it_is_the_reason(facts: Facts, expect: dict[str, Any], why: str | None) -> None:
    found = whys(facts, **expect)
    assert (len(found), "".join(found)[: len(why or "")]) == (0 if why is None else 1, why or "")


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ValidationError, match="is not a regular expression"):
        Expectation.model_validate({"matches": "("})


def test_the_rate_is_the_share_that_passed() -> None:
    scores = [Score(run_id="x", why=why, facts=GOOD, seconds=1) for why in ((), (), ("no",), ())]
    assert pass_rate(scores) == 0.75


def test_a_case_is_called_by_its_name_or_its_goal() -> None:
    assert case_name(Case(goal="x", name="the name")) == "the name"
    assert case_name(Case(goal="two\nlines")) == "two lines"

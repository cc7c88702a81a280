"""`docs/never-twice.md` says what `bench/results/crash.json` has, and the results are complete."""

from pathlib import Path

import pytest

from bench.crash.page import PAGE, filled, outcome
from bench.crash.results import ALL_CASES, CostOfSteps, Results
from bench.crash.server import Moment
from bench.crash.trial import Case, Trial, Variant

LEAST = 10  # trials of a cell


@pytest.fixture(scope="module")
def results() -> Results:
    return Results.load()


def test_the_tables_of_the_page_are_those_of_the_results(results: Results) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page, results) == page


def test_each_cell_was_tried_often_enough_and_killed_where_it_should_be(results: Results) -> None:
    few = {case: len(results.of(case)) for case in ALL_CASES if len(results.of(case)) < LEAST}
    assert not few
    assert {case.side for case in ALL_CASES} == results.costs.keys() == results.versions.keys()


def test_perdure_paid_each_bill_once_and_asked_only_where_a_payment_may_have_happened(results: Results) -> None:
    own = [trial for trial in results.trials if trial.side == "perdure"]
    assert {(trial.end, trial.payments) for trial in own} == {("ended", 1)}
    asked = {(trial.variant, trial.moment) for trial in own if trial.asked_of is not None}
    assert asked == {("plain", "before"), ("plain", "in"), ("plain", "after")}


@pytest.mark.parametrize(
    ("end", "payments", "asked_of", "words"),
    [
        ("ended", 1, None, "once"),
        ("ended", 1, 5.0, "once, asked"),
        ("ended", 2, None, "**twice**"),
        ("ended", 3, None, "**3 times**"),
        ("failed", 0, None, "failed, unpaid"),
        ("hung", 1, None, "hung, paid once"),
    ],
)
def test_an_outcome_says_how_often_was_paid_and_how_the_run_ended(
    end: str, payments: int, asked_of: float | None, words: str
) -> None:
    assert outcome(Trial("s", "plain", "in", end, payments, 4, (1, 0), asked_of)) == words


@pytest.mark.parametrize(
    ("moment", "end", "at_kill", "is_hit"),
    [
        (Moment.before, "ended", (0, 0), True),
        (Moment.before, "ended", (1, 0), False),
        (Moment.within, "ended", (1, 0), True),
        (Moment.within, "ended", (1, 1), False),
        (Moment.after, "failed", (1, 1), True),
        (Moment.asked, "missed", (0, 0), False),
    ],
)
def test_a_trial_counts_only_if_the_server_saw_the_kill_at_its_moment(
    moment: Moment, end: str, at_kill: tuple[int, int], *, is_hit: bool
) -> None:
    assert Trial("s", "plain", moment.value, end, 1, 4, at_kill).is_hit is is_hit


def test_results_are_the_same_after_they_were_written_and_read(tmp_path: Path) -> None:
    trials = [
        Trial("perdure", "plain", "in", "ended", 1, 4, (1, 0), 5.5, 7.0),
        Trial("s", "keyed", "in", "hung", 0, 2, (0, 0)),
    ]
    costs = {"perdure": CostOfSteps("perdure", 3.5, 3000.0, 0.1)}
    Results(tmp_path / "crash.json", trials, costs, {"perdure": {"temporalio": "1"}}).save()
    again = Results.load(tmp_path / "crash.json")
    assert (again.trials, again.costs, again.versions) == (trials, costs, {"perdure": {"temporalio": "1"}})
    assert again.of(Case("perdure", Variant.plain, Moment.within)) == trials[:1]

"""What is found wrong, and what of it is repaired without asking."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.failures import Escalation
from perdure.contracts.run.signals import Question, QuestionKind
from perdure.contracts.run.state import Ending, Pending, RunState, RunStatus, WorkflowStatus
from perdure.contracts.tool import Effect, ToolKind, ToolRoute
from perdure.decisions.run.limits import merge_limits
from perdure.features.reconciler import rules as judge
from perdure.features.reconciler.contract import FindingKind, Place, Repair, StoreMark
from perdure.features.reconciler.rules import LedgerKey, OpenClaim, Parent, Sweep

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
HERE = Place(namespace="n-1", task_queue="perdure")
DAY = timedelta(days=1)


def state(**changes: Any) -> RunState:
    begun: dict[str, Any] = {
        "run_id": "r",
        "goal": "g",
        "agent": "default",
        "context": {},
        "conversation_id": None,
        "step": 3,
    }
    return RunState(**{**begun, "created_at": NOW, "updated_at": NOW, "limits": merge_limits(), **changes})


def pending(step: int, since: datetime = NOW, tool: str = "charge", *, outside: bool = False) -> Pending:
    return Pending(step=step, tool=tool, since=since, outside=outside)


def claim(**changes: Any) -> OpenClaim:
    facts: dict[str, Any] = {
        "page": LedgerKey(3, 1),
        "tool": "charge",
        "until": NOW - DAY,
        "keeper": "r",
        "standing": WorkflowStatus.open,
    }
    return OpenClaim(**{**facts, "asks": False, "at_work": False, "state": state(pending=(pending(3),)), **changes})


@pytest.mark.parametrize(
    "standing", [WorkflowStatus.failed, WorkflowStatus.cancelled, WorkflowStatus.terminated, WorkflowStatus.timed_out]
)
def test_an_orphan_of_a_parent_that_was_cut_short_is_asked_to_stop(standing: WorkflowStatus) -> None:
    finding = judge.orphaned_finding("r", Parent("lane", standing, NOW - DAY), NOW)
    assert finding is not None
    assert finding.repair is Repair.cancel


@pytest.mark.parametrize("standing", [WorkflowStatus.completed, WorkflowStatus.gone])
def test_an_orphan_that_its_parent_left_behind_is_only_named(standing: WorkflowStatus) -> None:
    finding = judge.orphaned_finding("r", Parent("lane", standing), NOW)
    assert finding is not None
    assert finding.repair is None


def test_a_wedged_orphan_takes_no_signal() -> None:
    finding = judge.orphaned_finding("r", Parent("lane", WorkflowStatus.failed), NOW, is_wedged=True)
    assert finding is not None
    assert finding.repair is None


@pytest.mark.parametrize("parent", [Parent("lane", WorkflowStatus.open), Parent("lane", WorkflowStatus.failed, NOW)])
def test_a_child_is_no_orphan_while_its_parent_lives_or_may_be_stopping_it(parent: Parent) -> None:
    assert judge.orphaned_finding("r", parent, NOW) is None


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], []),
        (["step-00003.claim"], [LedgerKey(3, 1)]),
        (["step-00003.claim", "step-00003.result"], []),
        (["step-00003.claim", "step-00003-2.claim", "step-00003-2.result"], []),
        (["step-00003.claim", "step-00003-2.claim"], [LedgerKey(3, 2)]),
        (["step-00003-10.claim", "step-00003-9.claim", "step-00003-9.result"], [LedgerKey(3, 10)]),
        (["step-00003.result", "notes.txt", "step-00001.claim"], [LedgerKey(1, 1)]),
    ],
)
def test_a_claim_is_loose_without_a_result_or_a_later_generation(names: list[str], found: list[LedgerKey]) -> None:
    assert judge.unsettled_claims(names) == found


@given(st.sets(st.builds(LedgerKey, st.integers(1, 200_000), st.integers(1, 12))), st.data())
def test_no_claim_with_a_result_is_loose_and_each_step_is_so_once(pages: set[LedgerKey], data: Any) -> None:
    made = data.draw(st.sets(st.sampled_from(sorted(pages)))) if pages else set()
    names = [f"{page.name}.claim" for page in pages] + [f"{page.name}.result" for page in made]
    found = judge.unsettled_claims(names)
    assert not set(found) & made
    assert set(found) <= pages
    assert len({page.step for page in found}) == len(found)


@pytest.mark.parametrize(
    "owned",
    [
        {"until": NOW},  # the effect may be under way
        {"asks": True},
        {"at_work": True},
        {"state": state()},  # history has the outcome, the ledger had no room for it
        {"standing": WorkflowStatus.completed, "state": state()},
        {"standing": WorkflowStatus.failed, "state": state(ending=Ending(status=RunStatus.failed, text="no model"))},
    ],
)
def test_a_claim_is_owned(owned: dict[str, Any]) -> None:
    assert judge.unowned_finding("r", claim(**owned), NOW) is None


VIOLATED = Ending(status=RunStatus.escalated, text="", reason=Escalation.wrong_tool)


@pytest.mark.parametrize(
    "alone",
    [
        {},
        {"until": None},  # it cannot be read
        {"state": None},
        {"state": None, "standing": WorkflowStatus.completed},
        {"standing": WorkflowStatus.terminated, "asks": True},  # nobody can answer any more
        {"standing": WorkflowStatus.cancelled, "state": state(status=RunStatus.cancelled)},  # a halt answered it
        {"standing": WorkflowStatus.completed, "state": state(ending=VIOLATED)},
        {"keeper": "r.r2", "standing": WorkflowStatus.failed},
    ],
)
def test_a_claim_without_an_owner_is_reported_and_never_repaired(alone: dict[str, Any]) -> None:
    finding = judge.unowned_finding("r", claim(**alone), NOW)
    assert finding is not None
    assert (finding.problem, finding.repair) == (FindingKind.claim, None)
    assert "step 3" in finding.found
    assert "ledger/step-00003.claim" in finding.advice


def question(ago: timedelta) -> Question:
    return Question(id="q1", kind=QuestionKind.question, text="which one?", asked_at=NOW - ago)


QUEUE = ToolRoute(name="weigh", kind=ToolKind.queue, effect=Effect.read, timeout=timedelta(hours=2))
SIGNAL = ToolRoute(name="review", kind=ToolKind.signal, effect=Effect.read, timeout=timedelta(hours=2))


@pytest.mark.parametrize(
    ("waiting", "is_overdue"),
    [
        ({"asked": (question(timedelta(hours=23)),)}, False),
        ({"asked": (question(timedelta(hours=25)),)}, True),
        ({"pending": (pending(3, NOW - timedelta(hours=2), "review", outside=True),)}, False),
        ({"pending": (pending(3, NOW - timedelta(hours=3), "review", outside=True),)}, True),
        ({"pending": (pending(3, NOW - timedelta(hours=3), "review"),)}, False),  # our own call, not awaited outside
        ({"pending": (pending(3, NOW - timedelta(hours=3), "unknown", outside=True),)}, False),
        ({"pending": (pending(3, NOW - timedelta(hours=3), "weigh", outside=True),)}, False),  # Temporal ends it
        ({}, False),
    ],
)
def test_a_wait_is_overdue_after_its_time(waiting: dict[str, Any], is_overdue: bool) -> None:
    finding = judge.overdue_finding(state(tools=(SIGNAL, QUEUE), **waiting), NOW)
    assert (finding is not None) is is_overdue


ELSEWHERE = [Place(namespace="n-2", task_queue="perdure"), Place(namespace="n-1", task_queue="other")]
MARKS = st.none() | st.builds(
    StoreMark,
    place=st.sampled_from([HERE, *ELSEWHERE]),
    gone_since=st.none() | st.integers(0, 300).map(lambda minutes: NOW - timedelta(minutes=minutes)),
)


@given(seen=MARKS, claims=st.integers(0, 2), has_heir=st.booleans())
def test_a_store_is_cleared_only_where_its_run_was_seen_here_and_has_been_gone_for_long(
    seen: StoreMark | None, claims: int, has_heir: bool
) -> None:
    cleared = judge.decide_sweep(seen, HERE, NOW, claims=claims, has_heir=has_heir) is Sweep.clear
    gone = seen is not None and seen.place == HERE and seen.gone_since is not None
    is_long = seen is not None and seen.gone_since is not None and NOW - seen.gone_since >= judge.GONE_FOR
    assert cleared == (gone and is_long and not claims and not has_heir)


def test_a_store_of_a_run_that_is_gone_is_noted_before_it_is_cleared() -> None:
    here, long_ago = StoreMark(place=HERE), StoreMark(place=HERE, gone_since=NOW - DAY)
    assert judge.decide_sweep(None, HERE, NOW, claims=0, has_heir=False) is Sweep.leave
    assert judge.decide_sweep(here, HERE, NOW, claims=0, has_heir=False) is Sweep.note
    assert judge.decide_sweep(here.evolve(gone_since=NOW), HERE, NOW, claims=0, has_heir=False) is Sweep.wait
    assert judge.decide_sweep(long_ago, HERE, NOW, claims=1, has_heir=False) is Sweep.name
    assert judge.decide_sweep(long_ago, HERE, NOW, claims=0, has_heir=True) is Sweep.wait


def test_of_each_problem_the_first_ones_are_named() -> None:
    many = [judge.wedged_finding(f"r{n}", []) for n in range(100)]
    kept = judge.limit_findings([*many, judge.unattended_finding("other", "q")])
    assert len(kept) == judge.MAX_FINDINGS + 1
    assert kept[-1].run_id == "other"

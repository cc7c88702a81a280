"""A5: what a result from outside means, judged in the source's order."""

from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.run.events import ToolResultEvent, ToolResultPayload
from perdure.contracts.run.state import Ending, Inheritance, Pending, RunState, RunStatus
from perdure.contracts.tool import MAX_ERROR, ToolError, ToolKind
from perdure.decisions.tool_requests import nonce_of
from perdure.decisions.tool_results import (
    ESCALATES,
    MAX_OUTSIDE_RESULT,
    ResultVerdict,
    correlate_result,
    judge_result,
    judge_update_result,
    outcome_of_result,
    record_result,
)
from tests.decisions.runs import NOW, new_call, new_state

ENDED = Ending(status=RunStatus.completed, text="done")


def result(**fields: Any) -> ToolResultPayload:
    return ToolResultPayload(**{"run_id": "R1", "step": 3, "tool": "vote", "status": "ok", **fields})


@pytest.fixture
def waiting() -> RunState:
    """Step 1 and 2 are done, 3 awaits its result from outside, 4 is ours and runs, 5 is not issued yet."""
    pending = (
        Pending(step=3, tool="vote", since=NOW, outside=True),
        Pending(step=4, tool="look", since=NOW),
    )
    calls = (new_call("vote", 3), new_call("look", 4), new_call("charge", 5))
    return new_state(step=5, pending=pending, calls=calls)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, ResultVerdict.accepted),
        ({"status": "error"}, ResultVerdict.accepted),
        ({"run_id": "R2"}, ResultVerdict.foreign_run),
        ({"run_id": "R2", "step": 99, "tool": "other"}, ResultVerdict.foreign_run),
        ({"step": 1}, ResultVerdict.stale),
        ({"step": 2, "tool": "other"}, ResultVerdict.stale),
        ({"step": 5}, ResultVerdict.step_never_issued),
        ({"step": 6}, ResultVerdict.step_never_issued),
        ({"step": 0}, ResultVerdict.step_never_issued),
        ({"step": -1}, ResultVerdict.step_never_issued),
        ({"step": 6, "tool": "other"}, ResultVerdict.step_never_issued),
        ({"tool": "Vote"}, ResultVerdict.wrong_tool),
        ({"step": 4, "tool": "vote"}, ResultVerdict.wrong_tool),
        ({"step": 4, "tool": "look"}, ResultVerdict.not_awaited),
    ],
)
def test_each_result_gets_the_verdict_of_the_first_rule_that_it_breaks(
    waiting: RunState, changes: Any, verdict: ResultVerdict
) -> None:
    assert correlate_result(waiting, result(**changes)) is verdict


def event(nonce: str | None = None, **fields: Any) -> ToolResultEvent:
    return ToolResultEvent(payload=result(**fields), nonce=nonce)


def test_no_result_without_its_nonce_is_accepted_at_the_door(waiting: RunState) -> None:
    state = waiting.evolve(secret="5ec")
    for run_id, step, tool, nonce in product(
        ("R1", "R2"), range(-1, 9), ("vote", "look", "charge"), (None, "", "0" * 32)
    ):
        brought = event(nonce, run_id=run_id, step=step, tool=tool)
        by_signal = judge_result(state, brought.payload, is_halted=False, is_new=True)
        verdict = judge_update_result(state, brought, by_signal)
        assert verdict is (ResultVerdict.wrong_nonce if by_signal is ResultVerdict.accepted else by_signal)


def test_the_nonce_is_that_of_the_request_and_of_no_other(waiting: RunState) -> None:
    calls = tuple(call.evolve(kind=ToolKind.signal) for call in waiting.calls)
    state = waiting.evolve(secret="5ec", calls=calls)
    right = nonce_of(state, calls[0])
    others = [
        nonce_of(state, calls[1]),
        nonce_of(state, calls[0].evolve(generation=2)),
        nonce_of(state.evolve(secret="other"), calls[0]),
        nonce_of(state.evolve(run_id="R2"), calls[0]),
        nonce_of(state.evolve(secret=""), calls[0]),
    ]
    assert judge_update_result(state, event(right), ResultVerdict.accepted) is ResultVerdict.accepted
    for nonce in others:
        assert judge_update_result(state, event(nonce), ResultVerdict.accepted) is ResultVerdict.wrong_nonce
    heir = state.evolve(run_id="R1.r2", inherited=(Inheritance(run_id="R1", through=5),))
    assert nonce_of(heir, calls[0]) == right


def test_what_comes_again_is_known_by_its_content(waiting: RunState) -> None:
    calls = tuple(call.evolve(kind=ToolKind.signal) for call in waiting.calls)
    state = waiting.evolve(secret="5ec", calls=calls)
    nonce = nonce_of(state, calls[0])
    taken = record_result(state, result(result="yes"))
    taken = taken.evolve(pending=taken.pending[1:], calls=())
    same, other = event(nonce, result="yes", completed_at=datetime(2026, 1, 1, tzinfo=UTC)), event(nonce, result="no")
    by_signal = [judge_result(taken, each.payload, is_halted=False, is_new=True) for each in (same, other)]
    assert by_signal == [ResultVerdict.stale, ResultVerdict.conflict]
    at_door = [
        judge_update_result(taken, each, verdict) for each, verdict in zip((same, other), by_signal, strict=True)
    ]
    assert at_door == [ResultVerdict.repeated, ResultVerdict.conflict]
    assert judge_update_result(taken, event(None, result="no"), ResultVerdict.conflict) is ResultVerdict.wrong_nonce


def test_a_call_of_another_worker_takes_no_result_by_signal(waiting: RunState) -> None:
    queued = new_call("vote", 3).evolve(kind=ToolKind.queue)
    state = waiting.evolve(calls=(queued, *waiting.calls[1:]))
    assert correlate_result(state, result()) is ResultVerdict.not_awaited


@pytest.mark.parametrize("changes", [{}, {"step": 1}, {"step": 99}, {"tool": "other"}])
def test_after_the_end_every_result_of_this_run_is_terminal(waiting: RunState, changes: Any) -> None:
    assert correlate_result(waiting.evolve(ending=ENDED), result(**changes)) is ResultVerdict.run_terminal


def test_only_a_step_never_issued_and_a_wrong_tool_escalate() -> None:
    assert {ResultVerdict.step_never_issued, ResultVerdict.wrong_tool} == ESCALATES


@given(
    step=st.integers(-2, 9),
    tool=st.sampled_from(["vote", "look", "other"]),
    run_id=st.sampled_from(["R1", "R2"]),
    last=st.integers(0, 7),
    open_steps=st.sets(st.integers(1, 7), max_size=4),
    ended=st.booleans(),
)
def test_the_rules_apply_in_order_for_every_result(
    step: int, tool: str, run_id: str, last: int, open_steps: set[int], ended: bool
) -> None:
    pending = tuple(Pending(step=s, tool="vote", since=NOW, outside=True) for s in sorted(open_steps) if s <= last)
    state = new_state(step=last, pending=pending, ending=ENDED if ended else None)
    expected = ResultVerdict.accepted
    if run_id != "R1":
        expected = ResultVerdict.foreign_run
    elif ended:
        expected = ResultVerdict.run_terminal
    elif step not in [p.step for p in pending]:
        expected = ResultVerdict.stale if 1 <= step <= last else ResultVerdict.step_never_issued
    elif tool != "vote":
        expected = ResultVerdict.wrong_tool
    assert correlate_result(state, result(run_id=run_id, step=step, tool=tool)) is expected


def test_an_error_without_an_error_still_says_something() -> None:
    outcome = outcome_of_result(result(status="error"))
    assert outcome.status == "error"
    assert outcome.error is not None
    assert outcome.error.message


def test_an_ok_result_never_carries_an_error() -> None:
    error = ToolError(kind="timeout", message="late", retryable=True)
    assert outcome_of_result(result(result=1, error=error)).model_dump(exclude_defaults=True) == {"result": 1}


def test_a_long_error_is_cut_and_a_result_too_large_for_a_page_is_refused() -> None:
    long = outcome_of_result(result(status="error", error=ToolError(kind="k" * 9999, message="x" * 100_000)))
    assert long.error is not None
    assert len(long.error.message) == MAX_ERROR
    assert len(long.error.kind) <= 100
    assert outcome_of_result(result(result="x" * (MAX_OUTSIDE_RESULT - 2))).status == "ok"
    large = outcome_of_result(result(result="x" * MAX_OUTSIDE_RESULT))
    assert large.error is not None
    assert large.error.kind == "too_large"

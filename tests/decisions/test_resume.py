"""Going on from another run: what is carried, what is cut off; the conversation stays valid wherever it is cut."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.failures import RunFailure
from perdure.contracts.run.state import Ending, Pending, RunStatus
from perdure.contracts.run.transcript import Part, PartKind
from perdure.contracts.tool import Effect, ToolOutcome, error_outcome
from perdure.decisions.ids import resumed_id
from perdure.decisions.run.call_state import record_approval
from perdure.decisions.run.next_calls import needs_approval
from perdure.decisions.run.resume import (
    StepNotFoundError,
    cut_after_step,
    fork_state,
    origin_of,
    resume_rejection,
    resume_state,
)
from perdure.decisions.run.state import add_watcher, keep_received
from perdure.decisions.run.transcript import add_message, goal_part, note_part, result_part
from tests.decisions.runs import NOW, new_call, new_state


def conversation(turns: list[int]) -> list[Part]:
    """Each number is a turn with so many calls; the last turn is an answer in words."""
    parts, step = [goal_part("see", {})], 0
    for number, count in enumerate(turns):
        uses = [f"u{number}-{i}" for i in range(count)]
        content: list[dict[str, Any]] = [{"type": "text", "text": f"turn {number}"}]
        content += [{"type": "tool_use", "id": use, "name": "look", "input": {}} for use in uses]
        parts.append(Part(kind=PartKind.reply, content=content))
        for use in uses:
            step += 1
            parts.append(result_part(use, "look", step, ToolOutcome(result=f"seen {step}")))
    parts.append(Part(kind=PartKind.reply, content=[{"type": "text", "text": "done"}]))
    return parts


def owner_of(state: Any, step: int) -> str | None:
    origin = origin_of(state, step)
    return origin.run_id if origin else None


@given(turns=st.lists(st.integers(1, 4), max_size=6), data=st.data())
def test_wherever_a_conversation_is_cut_every_tool_use_has_one_result_right_after_it(
    turns: list[int], data: st.DataObject
) -> None:
    parts = conversation(turns)
    step = data.draw(st.integers(0, sum(turns)))
    messages: list[dict[str, Any]] = []
    for part in cut_after_step(new_state(), parts, step, None):
        add_message(messages, part)
    assert messages[-1]["role"] == "user"
    for asked, answered in pairwise(messages):
        uses = [b["id"] for b in asked["content"] if b["type"] == "tool_use"]
        results = [b["tool_use_id"] for b in answered["content"] if b["type"] == "tool_result"]
        assert uses == results
    seen = [b["content"] for m in messages for b in m["content"] if b.get("content", "").startswith("seen")]
    assert seen == [f"seen {n}" for n in range(1, step + 1)]


def test_a_step_that_is_not_there_is_refused() -> None:
    with pytest.raises(StepNotFoundError, match="the steps are 0 to 3"):
        cut_after_step(new_state(), conversation([1, 2]), 4, None)
    with pytest.raises(StepNotFoundError, match="the steps are 0 to 0"):
        cut_after_step(new_state(), [goal_part("see", {})], 1, None)


def test_a_forks_note_names_the_effects_after_its_step_and_no_reads() -> None:
    parts = [
        *conversation([1])[:-1],
        result_part("a", "charge", 2, ToolOutcome()),
        result_part("b", "look", 3, ToolOutcome()),
        result_part("c", "save", 4, ToolOutcome()),
    ]
    note = cut_after_step(new_state(), parts, 1, "be kind")[-1].content[0]["text"]
    assert "made: charge (step 2), save (step 4)." in note
    assert note.endswith("be kind")
    assert "made:" not in cut_after_step(new_state(), parts, 4, None)[-1].content[0]["text"]


def test_a_forks_note_names_the_open_turn_and_no_refused_call() -> None:
    done = new_call("save", 2, outcome=ToolOutcome(result="x"))
    refused = new_call("save", 3, tool_use_id="r", outcome=error_outcome("denied", "a person denied this call"))
    open_ = new_call("charge", 4)
    origin = new_state(calls=(done, refused, open_), pending=(Pending(step=4, tool="charge", since=NOW),))
    note = cut_after_step(origin, conversation([1])[:-1], 1, None)[-1].content[0]["text"]
    assert "made: save (step 2). That" in note
    assert "In flight when the fork was made: charge (step 4); it may have happened." in note


def test_a_resumed_run_keeps_all_but_how_its_origin_ended() -> None:
    origin = new_state(
        run_id="a",
        step=4,
        turns=3,
        definition="d",
        status=RunStatus.failed,
        calls=(new_call("charge", 4),),
        pending=(Pending(step=4, tool="charge", since=NOW),),
        approved_tools=("charge",),
        ending=Ending(status=RunStatus.failed, text="no key", reason=RunFailure.model_refused),
    )
    state = resume_state(origin, "a.r2", "x2", NOW)
    assert (state.run_id, state.status, state.step, state.turns) == ("a.r2", RunStatus.running, 4, 3)
    assert (state.ending, state.pending, state.approved_tools, state.interrupted) == (None, (), (), True)
    assert state.calls == origin.calls
    assert state.doubtful == (origin.calls[0].tool_use_id,)
    assert [owner_of(state, step) for step in (1, 4, 5)] == ["a", "a", None]
    again = resume_state(state.evolve(step=6), "a.r3", "x3", NOW)
    assert again.doubtful == state.doubtful  # also where the heir ended before it could look
    assert [owner_of(again, step) for step in (4, 5, 6, 7)] == ["a", "a.r2", "a.r2", None]


def test_what_waited_for_approval_was_not_in_flight_and_what_was_approved_was() -> None:
    call = new_call("guarded", 4, effect=Effect.once)
    origin = new_state(step=4, calls=(call,), pending=(Pending(step=4, tool="guarded", since=NOW),), expired="q1")
    waiting = resume_state(origin, "a.r2", "x2", NOW)
    assert (waiting.doubtful, waiting.expired) == ((), None)
    let, call = record_approval(origin, call)
    assert resume_state(let, "a.r2", "x2", NOW).doubtful == (call.tool_use_id,)
    for_the_run = origin.evolve(approved_tools=("guarded",))
    assert resume_state(for_the_run, "a.r2", "x2", NOW).doubtful == (call.tool_use_id,)


def test_an_approval_outlives_its_run_only_for_the_very_call_in_flight() -> None:
    """It is looked up under its old key: that is the same use of the approval, not a second one."""
    origin = new_state(step=4, calls=(new_call("guarded", 4),), approved_tools=("guarded",))
    origin, _ = record_approval(origin, origin.calls[0])
    heir = resume_state(origin, "a.r2", "x2", NOW)
    assert [needs_approval(heir, call) for call in (heir.calls[0], new_call("guarded", 5))] == [False, True]
    fork = fork_state(origin, conversation([1])[:-1], 1, "b", "xb", NOW)
    assert (fork.calls, fork.approved_tools) == ((), ())


def test_a_run_signals_its_end_to_its_own_watchers_and_not_to_those_of_its_origin() -> None:
    origin = add_watcher(new_state(), "wf:origins")
    own = add_watcher(add_watcher(add_watcher(new_state(), "wf:a"), "wf:b"), "wf:a")
    assert keep_received(origin, own).watchers == ("wf:b", "wf:a")


def test_the_later_steps_of_a_fork_are_its_own() -> None:
    origin = new_state(run_id="a", step=5, turns=5)
    kept = cut_after_step(origin, conversation([1, 1, 1]), 2, None)
    state = fork_state(origin, kept, 2, "b", "xb", NOW)
    assert (state.step, state.turns, state.usage.input, state.cost_usd) == (2, 2, 0, 0.0)
    assert [owner_of(state, step) for step in (2, 3)] == ["a", None]


def test_reframes_are_counted_as_far_as_a_fork_goes() -> None:
    parts = [goal_part("see", {}), result_part("a", "reframe", None, ToolOutcome()), note_part("x")]
    assert fork_state(new_state(reframes=2), parts, 0, "b", "xb", NOW).reframes == 1


@pytest.mark.parametrize("status", list(RunStatus))
def test_failed_and_timed_out_runs_are_offered_for_resume_and_no_others(status: RunStatus) -> None:
    why = resume_rejection("a", status)
    assert (why is None) == (status in (RunStatus.failed, RunStatus.timed_out))
    if status in (RunStatus.completed, RunStatus.escalated, RunStatus.cancelled):
        assert "perdure fork a --step N" in (why or "")


def test_each_resume_has_the_next_number() -> None:
    assert [resumed_id(i) for i in ("a", "a.r2", "a.r9", "a.rx", "v1.2")] == [
        "a.r2",
        "a.r3",
        "a.r10",
        "a.rx.r2",
        "v1.2.r2",
    ]

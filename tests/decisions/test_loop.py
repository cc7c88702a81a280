"""The run's state machine: examples of each rule, and a machine that plays random models and tools against it."""

import math
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.contracts.failures import Escalation, RunFailure, ToolFault
from perdure.contracts.run.loop_detection import RecentCall
from perdure.contracts.run.state import Ending, ForcedTool, RunStatus
from perdure.contracts.tool import ToolOutcome, error_outcome
from perdure.decisions.ids import call_digest
from perdure.decisions.run import call_state, loop, outcome
from perdure.decisions.run.next_calls import next_batch
from tests.decisions.runs import NOW, OK, new_call, new_player, new_state, new_turn

BAD = error_outcome(ToolFault.tool_error, "it broke")


LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "max_turns": st.integers(1, 12),
        "budget_tokens": st.integers(1, 30),
        "budget_usd": st.floats(0.01, 0.3),
        "hard_limit": st.integers(1, 200).map(lambda ms: timedelta(milliseconds=ms)),
        "soft_limit": st.integers(1, 200).map(lambda ms: timedelta(milliseconds=ms)),
    },
).filter(bool)
ANYTHING = st.tuples(
    st.sampled_from(["", "thought"]),
    st.lists(
        st.tuples(
            st.sampled_from(["look", "save", "charge", "finish", "reframe", "get_run_journal", "nothing"]),
            st.sampled_from([{}, {"outcome": "done"}, {"frame": "anew"}]),
        ),
        max_size=3,
    ),
    st.sampled_from([None, None, "max_tokens", "pause_turn"]),
)


@settings(max_examples=300)
@given(limits=LIMITS, replies=st.lists(ANYTHING, min_size=1, max_size=8), failing=st.booleans())
def test_whatever_replies_come_a_run_with_a_limit_ends_one_turn_beyond_it_at_most(
    limits: Any, replies: Any, failing: bool
) -> None:
    """Each turn takes 10 ms, 2 tokens and USD 0.01. Neither steps nor reframes nor anything but `limits` ends it."""
    player = new_player(**{"max_steps": 10**4, "max_turns": 10**4, "max_reframes": 10**4, **limits})
    player.outcomes = dict.fromkeys(("look", "save"), BAD if failing else OK)
    most = [
        limits.get("max_turns"),
        limits.get("budget_tokens") and -(-limits["budget_tokens"] // 2),
        limits.get("budget_usd") and math.ceil(round(limits["budget_usd"] / 0.01, 6)) + 1,  # sums of floats
        limits.get("hard_limit") and math.ceil(limits["hard_limit"] / timedelta(milliseconds=10)),
        limits.get("soft_limit") and math.ceil(limits["soft_limit"] / timedelta(milliseconds=10)) + 1,
    ]
    move = player.settle()
    while not isinstance(move, loop.End):
        text, uses, stop = replies[player.state.turns % len(replies)]
        move = player.play(text, *uses, stop=stop, duration_ms=10, cost_usd=0.01)
        assert player.state.turns <= min(each for each in most if each is not None)
    assert player.final_turns <= 1
    assert len(player.ends) == 1
    state = call_state.settle_interrupted(player.state, ())
    assert all(call.outcome is not None for call in state.calls)
    assert not player.ending.is_partial or (player.final_turns == 1 and player.ending.status is RunStatus.completed)


def test_after_the_soft_limit_one_turn_is_left_and_its_finish_is_the_outcome() -> None:
    player = new_player(soft_limit=timedelta(milliseconds=5))
    assert player.play("", ("look", {})) == loop.Think()
    assert (player.state.is_closing, player.final_turns) == (True, 1)
    player.play("", ("look", {}), ("finish", {"outcome": "half"}), ("finish", {"outcome": "all"}))
    assert (player.ending.text, player.ending.is_partial) == ("half", True)
    assert [part.content[0].get("is_error", False) for part in player.transcript.parts[-3:]] == [True, False, True]


@pytest.mark.parametrize(
    ("uses", "reason"),
    [
        ([("finish", {"outcome": "done"})], ""),
        ([("get_run_journal", {}), ("finish", {"outcome": "done"})], ""),
        ([("escalate", {"reason": "stuck"})], Escalation.asked),
        ([("look", {}), ("finish", {"outcome": "done"})], RunFailure.hard_limit),
        ([("reframe", {"frame": "anew"})], RunFailure.hard_limit),
        ([("get_run_journal", {})], RunFailure.hard_limit),
    ],
)
def test_an_ending_that_takes_no_more_time_is_not_refused_at_the_hard_limit(uses: Any, reason: str) -> None:
    player = new_player(hard_limit=timedelta(milliseconds=5))
    player.play("", *uses)
    assert player.ending.reason == reason
    assert player.issued == []


LATE = {"active_ms": 5, "soft_limit": timedelta(milliseconds=5)}
OVER = {**LATE, "ending": Ending(status=RunStatus.completed, text="done")}
WAITS, MADE = {"outcome": None}, {"outcome": OK}


@pytest.mark.parametrize(
    ("rule", "call", "fields", "is_spoken_to", "is_long"),
    [
        (loop.time_is_up, WAITS, {**LATE, "hard_limit": timedelta(milliseconds=5)}, True, True),
        (loop.reads_are_fused, WAITS, {"fuse_reads": True}, False, False),
        (loop.calls_wait, WAITS, {"fuse_reads": True, **OVER}, True, True),
        (loop.calls_are_made, MADE, OVER, True, True),
        (loop.user_has_spoken, None, OVER, True, True),
        (loop.work_is_over, None, OVER, False, True),
        (loop.history_is_long, None, LATE, False, True),
        (loop.time_runs_short, None, LATE, False, False),
        (loop.nothing_else, None, {}, False, False),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_of_the_rules_that_hold_the_first_one_says_what_is_done(
    rule: Any, call: Any, fields: Any, is_spoken_to: bool, is_long: bool
) -> None:
    state = new_state(calls=() if call is None else (new_call(**call),), **fields)
    now = loop.LoopFacts(state, next_batch(state), is_long, is_spoken_to)
    assert next(each for each in loop.RULES if each(now)) is rule
    assert loop.next_move(state, history_is_long=is_long, is_spoken_to=is_spoken_to) == rule(now)


LARGE = {"arguments": {"text": "x" * 9_000}}
SAME = RecentCall(tool="look", arguments=call_digest("look", {}), result="r", is_new=False)


@pytest.mark.parametrize(
    ("calls", "fields", "facts"),
    [
        ([{}], {"fuse_reads": False}, {}),
        ([{}], {}, {"is_spoken_to": True}),
        ([{}], {}, {"history_is_long": True}),
        ([{}], LATE, {}),
        ([{}], {"turns": 3, "max_turns": 3}, {}),
        ([{}], {"interrupted": True}, {}),
        ([{}], {"forced": ForcedTool(tool="look")}, {}),
        ([{}], {"ending": Ending(status=RunStatus.escalated, text="no")}, {}),
        ([{}], {"recent": (SAME, SAME)}, {}),
        ([LARGE], {}, {}),
        ([{}] * 17, {}, {}),
        *(([{}, {"tool": tool}], {}, {}) for tool in ("save", "charge", "vote", "guarded", "ask_human", "finish")),
        ([{}, {"outcome": OK}], {}, {}),
    ],
)
def test_reads_are_made_apart_if_anything_else_is_due_before_the_next_model_call(
    calls: Any, fields: Any, facts: Any
) -> None:
    made = tuple(new_call(**{"step": step, **call}) for step, call in enumerate(calls, start=1))
    state = new_state(calls=made, **{"fuse_reads": True, **fields})
    assert isinstance(loop.next_move(state, **{"history_is_long": False, **facts}), loop.Act | loop.End)


def test_up_to_sixteen_short_reads_are_fused_with_the_model_call() -> None:
    calls = tuple(new_call(step=step, tool="peek" if step % 2 else "look") for step in range(1, 17))
    assert loop.next_move(new_state(calls=calls, fuse_reads=True), history_is_long=False) == loop.TakeFusedTurn(calls)


def test_the_table_of_the_rules_in_the_documentation_is_the_one_that_is_played_by() -> None:
    rows = [
        f"| `{rule.__name__}` | {(rule.__doc__ or '').removesuffix('.')} | {move_of(rule)} |" for rule in loop.RULES
    ]
    page = (Path(loop.__file__).parents[3] / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert "\n".join(rows) in page


def move_of(rule: Any) -> str:
    return str(next(each.__name__ for each in get_args(get_type_hints(rule)["return"]) or (loop.Think,)))


def test_a_run_thinks_first_and_rotates_only_between_turns() -> None:
    player = new_player()
    assert loop.next_move(player.state, history_is_long=False) == loop.Think()
    assert loop.next_move(player.state, history_is_long=True) == loop.Rotate()
    player.reply(new_turn("", ("look", {})))
    assert isinstance(loop.next_move(player.state, history_is_long=True), loop.Act)


def test_a_closing_run_that_is_spoken_to_takes_its_last_turn_however_long_its_history_is() -> None:
    closing = loop.start_final_turn(new_player().state)
    assert loop.next_move(closing, history_is_long=True) == loop.Rotate()
    assert loop.next_move(closing, history_is_long=True, is_spoken_to=True) == loop.Think()


@pytest.mark.parametrize("outcomes", [{}, {"look": BAD}])
def test_max_steps_cutoff_escalates_always_at_the_same_step(outcomes: Any) -> None:
    player = new_player(max_steps=3)
    player.outcomes = outcomes
    for _ in range(3):
        assert player.play("", ("look", {})) == loop.Think()
    player.play("", ("look", {}))
    assert (player.ending.reason, player.state.step) == (Escalation.step_budget, 3)


def test_of_a_batch_over_the_budget_the_first_run_and_the_model_may_still_finish() -> None:
    player = new_player(max_steps=2)
    assert player.play("", *[("look", {})] * 3) == loop.Think()
    assert player.issued == [1, 2]
    player.play("", ("finish", {"outcome": "enough"}))
    assert player.ending.status is RunStatus.completed


def test_asking_for_one_more_step_beside_finish_escalates() -> None:
    player = new_player(max_steps=1)
    player.play("", ("look", {}))
    player.play("", ("look", {}), ("finish", {"outcome": "x"}))
    assert player.ending.reason == Escalation.step_budget


def test_finish_beside_a_failed_call_is_refused_and_the_model_hears_why() -> None:
    player = new_player()
    player.outcomes = {"charge": BAD}
    assert player.play("", ("finish", {"outcome": "paid"}), ("charge", {})) == loop.Think()
    assert player.state.ending is None
    shown = [part.content[0]["content"] for part in player.transcript.parts if part.kind == "result"]
    assert shown[0].startswith("not_finished: ")
    assert "charge" in shown[0]


@pytest.mark.parametrize("arguments", [{}, {"outcome": ""}, {"outcome": "  "}, {"outcome": 7}])
def test_finish_without_an_outcome_is_refused(arguments: Any) -> None:
    player = new_player()
    assert player.play("", ("finish", arguments)) == loop.Think()


def test_of_two_finishes_the_first_counts() -> None:
    player = new_player()
    player.play("", ("finish", {"outcome": "one"}), ("finish", {"outcome": "two"}))
    assert player.ending.text == "one"


def test_artifacts_are_collected_once_each_whatever_finish_names() -> None:
    player = new_player()
    player.outcomes = {"save": ToolOutcome(artifacts=("a.md",)), "look": ToolOutcome(artifacts=("b.md",))}
    player.play("", ("save", {}), ("look", {}), ("finish", {"outcome": "x", "artifacts": ["a.md", 5, "c.md"]}))
    assert player.state.artifacts == ("a.md", "b.md", "c.md")


def test_one_reframe_more_than_allowed_escalates() -> None:
    player = new_player(max_reframes=2)
    for turn in range(3):
        assert player.state.ending is None
        player.play("", ("reframe", {"frame": f"frame {turn}"}))
    assert (player.state.reframes, player.ending.reason) == (2, Escalation.reframe_budget)
    assert player.state.journal.objective == "frame 1"


def test_escalate_tells_the_models_reason() -> None:
    player = new_player()
    player.play("", ("look", {}), ("escalate", {"reason": "no rights"}))
    assert (player.ending.reason, player.ending.text) == (Escalation.asked, "no rights")
    assert player.issued == [1]


def test_turns_used_up_escalate() -> None:
    player = new_player(max_turns=1)
    player.play("", ("nothing", {}))
    assert player.ending.reason == Escalation.turn_budget


def test_a_run_that_is_halted_answers_every_open_call() -> None:
    player = new_player()
    player.reply(new_turn("", ("look", {}), ("charge", {}), ("finish", {"outcome": "x"})))
    player.state = call_state.issue_calls(player.state, player.state.calls[:1], NOW)
    state = call_state.settle_interrupted(player.state, [player.state.calls[1].tool_use_id])
    kinds = [c.outcome.error.kind for c in state.calls if c.outcome and c.outcome.error]
    assert kinds == ["interrupted", "in_doubt", "interrupted"]
    assert state.pending == ()


def test_the_first_ending_stays() -> None:
    player = new_player()
    player.reply(new_turn("done"))
    assert outcome.escalate_run(player.state, Escalation.wrong_tool, "late").ending == player.state.ending


def test_a_call_made_again_keeps_its_step_and_counts_the_attempt() -> None:
    player = new_player()
    player.reply(new_turn("", ("look", {}), ("peek", {})))
    state = call_state.reissue_call(call_state.issue_calls(player.state, player.state.calls, NOW), 2, NOW)
    assert [(p.step, p.attempt) for p in state.pending] == [(1, 1), (2, 2)]

"""Going in circles: seen literally, acted upon only where nothing new came of it (B3)."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.run.limits import Spent
from perdure.contracts.run.loop_detection import Rung, Tier
from perdure.contracts.run.state import Call, RunState
from perdure.contracts.tool import Effect, ToolKind, ToolOutcome, error_outcome
from perdure.decisions.run.loop_detection import LoopCheck, check_for_loops, may_answer_loop, reset_detection
from tests.decisions.runs import new_state

SEARCH, SHELL, LOOK = "search", "shell", "look"
EFFECTS = {SEARCH: Effect.read, LOOK: Effect.read, SHELL: Effect.once}
New = Callable[..., RunState]


def call(tool: str, arguments: Any, result: Any = "", *, fails: bool = False, number: int = 0) -> Call:
    outcome = error_outcome("tool_error", str(result)) if fails else ToolOutcome(result=result)
    return Call(
        tool_use_id=f"u{number}",
        tool=tool,
        kind=ToolKind.native,
        effect=EFFECTS.get(tool, Effect.read),
        step=number,
        arguments={"a": arguments},
        outcome=outcome,
    )


def check(state: RunState, turns: Iterable[Call | tuple[Call, ...]]) -> list[LoopCheck]:
    seen: list[LoopCheck] = []
    for turn in turns:
        seen.append(check_for_loops(state, turn if isinstance(turn, tuple) else (turn,)))
        state = seen[-1].state
    return seen


def rungs_of(state: RunState, turns: Iterable[Call | tuple[Call, ...]]) -> list[Rung | None]:
    return [each.escalated_to for each in check(state, turns)]


N, D, A = Rung.nudge, Rung.directive, Rung.ask

CIRCLES: dict[str, tuple[list[Any], list[Rung | None]]] = {
    "the same search three times": ([call(SEARCH, "x", "r")] * 5, [None, None, N, D, A]),
    "five variations of a query, nothing found": (
        [call(SEARCH, n, "no results") for n in range(10)],
        [None, None, None, N, None, None, D, None, None, A],
    ),
    "variations that bring nothing at all": ([call(SEARCH, n) for n in range(7)], [*[None] * 3, N, None, None, D]),
    "a tool that declares nothing and finds nothing": ([call(SHELL, n, []) for n in range(4)], [None, None, None, N]),
    "variations that all fail, each in its own way": (
        [call(SHELL, n, f"no such file {n}", fails=True) for n in range(7)],
        [None, None, None, N, None, None, D],
    ),
    "two calls for ever": (
        [call(SEARCH, n % 2, f"r{n % 2}") for n in range(8)],
        [None, None, None, None, N, D, A, A],
    ),
    "two tools for ever": (
        [call((SEARCH, LOOK)[n % 2], "x", f"r{n % 2}") for n in range(8)],
        [None, None, None, None, N, D, A, A],
    ),
    "three at once, turn after turn": ([(call(SEARCH, "x", "r"),) * 3] * 4, [None, N, D, A]),
    "a payment refused again and again": (
        [call(SHELL, "pay", "declined", fails=True)] * 5,
        [None, None, N, D, A],
    ),
    "a large result, each time an artifact of its own": (
        [call(LOOK, "x", {"artifact_path": f"a-{n}", "bytes": 9, "excerpt": "e"}) for n in range(4)],
        [None, None, N, D],
    ),
}

WORK: dict[str, list[Any]] = {
    "three failures after a success": [call(SHELL, n, n if n % 4 == 0 else "no", fails=n % 4 > 0) for n in range(20)],
    "two files read twice": [call(LOOK, n % 2, f"text {n % 2}") for n in range(4)],
    "paging": [call(SEARCH, f"page {n}", f"rows of {n}") for n in range(20)],
    "one shell tool": [call(SHELL, f"cmd {n}", f"out {n}") for n in range(20)],
    "one shell tool whose edits say nothing": [call(SHELL, f"sed {n}", "") for n in range(20)],
    "edit, test, edit, test; the test fails in the same way": [
        call(SHELL, "pytest" if n % 2 else f"sed {n}", "1 failed" if n % 2 else "") for n in range(20)
    ],
    "a file read again after each edit": [
        call(LOOK, "file", "text") if n % 2 else call(SHELL, f"sed {n}", "ok") for n in range(20)
    ],
    "a job whose progress moves": [call(LOOK, "job", f"{n} %") for n in range(20)],
    "one mistake, made four times at once": [tuple(call(SHELL, n, "not found", fails=True) for n in range(4))],
    "many reads at once": [tuple(call(LOOK, f"{t}-{n}", f"{t}-{n}") for n in range(8)) for t in range(5)],
}


@pytest.mark.parametrize(("turns", "rungs"), CIRCLES.values(), ids=CIRCLES)
def test_circles_climb_every_rung(turns: Any, rungs: list[Rung | None]) -> None:
    assert rungs_of(new_state(), turns) == rungs


@pytest.mark.parametrize("turns", WORK.values(), ids=WORK)
def test_work_is_never_nudged(turns: Any) -> None:
    assert set(rungs_of(new_state(), turns)) == {None}


def test_arguments_in_another_order_are_the_same() -> None:
    one, other = {"q": "x", "n": 1}, {"n": 1, "q": "x"}
    assert rungs_of(new_state(), [call(SEARCH, a, "r") for a in (one, other, one)]) == [None, None, N]
    turned = call(SEARCH, 0, "r").evolve(arguments=other)
    straight = turned.evolve(arguments=one)
    assert rungs_of(new_state(), [straight, turned, straight]) == [None, None, N]


def test_a_pattern_is_reported_even_if_nothing_is_done() -> None:
    seen = check(new_state(), WORK["paging"])
    assert [len(each.seen) for each in seen[:5]] == [0, 0, 0, 1, 1]
    assert {(t.tier, t.tool, t.is_barren) for each in seen for t in each.seen} == {(Tier.pattern, SEARCH, False)}


def test_a_pollable_tool_is_waited_for() -> None:
    state = new_state()
    routes = tuple(r.evolve(pollable=r.name == "look") for r in state.tools)
    polls = [call("look", "job", "pending")] * 10
    assert set(rungs_of(state.evolve(tools=routes), polls)) == {None}
    assert N in rungs_of(state, polls)


def test_another_way_leads_back_down() -> None:
    circle, work = [call(SEARCH, "x", "r")] * 3, [call(LOOK, n, f"new {n}") for n in range(6)]
    assert rungs_of(new_state(), [*circle, *work, *circle])[-1] is N, "the ladder begins anew"
    assert rungs_of(new_state(), [*circle, *work[:2], *circle])[-1] is D, "too soon to be forgotten"


def test_a_person_s_word_is_a_new_beginning() -> None:
    circle = [call(SEARCH, "x", "r")] * 5
    state = reset_detection(check(new_state(), circle)[-1].state)
    assert state.forced is None
    assert rungs_of(state, circle) == [None, None, N, D, A]


def test_the_forced_tool_can_be_chosen_and_a_person_comes_first_where_it_would_end_the_run() -> None:
    circle = [call(SEARCH, "x", "r")] * 4

    def forced(**fields: Any) -> tuple[Rung | None, str | None]:
        last = check(new_state(**fields), circle)[-1]
        return last.escalated_to, last.state.forced.tool if last.state.forced else None

    assert forced() == (D, "reframe")
    assert forced(directive_tool="peek") == (D, "peek")
    assert forced(directive_tool="no_such_tool") == (D, "reframe")
    assert forced(reframes=2) == (A, "ask_human")
    assert forced(directive_tool="peek", step=20) == (A, "ask_human"), "it would take a step, and none is left"
    used = Spent(steps=18)
    assert forced(directive_tool="peek", step=2, delegated=used) == (A, "ask_human"), "its subtasks took the steps"


TURN = st.lists(
    st.tuples(st.sampled_from([SEARCH, LOOK]), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=3
)


@given(st.lists(TURN, max_size=15))
def test_a_response_to_a_loop_is_known_to_be_possible_before_the_reads_are_made(made: Any) -> None:
    """So no model call that was made together with reads turns out to be the wrong one."""
    state = new_state()
    for turn in made:
        calls = tuple(call(tool, arguments, result or "") for tool, arguments, result in turn)
        possible, checked = may_answer_loop(state, calls), check_for_loops(state, calls)
        assert possible or checked.note is None
        state = checked.state


@given(st.lists(st.tuples(st.sampled_from([SEARCH, LOOK]), st.integers(0, 2), st.integers(0, 2)), max_size=30))
def test_a_rung_is_climbed_only_with_a_literal_detection_and_only_by_calls_that_are_known(
    made: list[tuple[str, int, int]],
) -> None:
    known: set[tuple[str, int]] = set()
    state = new_state()
    for tool, arguments, result in made:
        last = check_for_loops(state, (call(tool, arguments, result or ""),))
        state = last.state
        if last.escalated_to:
            assert any(thrash.is_barren for thrash in last.seen)
            assert not result or (tool, result) in known, "the latest call brought nothing new"
        known.add((tool, result))

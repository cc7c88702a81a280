"""The result of a built-in that did nothing for the task says what to do next: small models repeat the call else."""

from typing import Any

import pytest

from perdure.contracts.run.journal import Journal
from perdure.contracts.run.state import RunState
from perdure.decisions.run.call_state import apply_state_tool, settle_call
from perdure.decisions.run.journal import run_journal_tool
from perdure.decisions.run.reply import take_turn
from perdure.decisions.tools import GO_ON
from tests.decisions.runs import new_state, new_turn

JOURNAL = Journal(objective="pay", current_state="begun", verified_findings=("rafts float",))


def control(state: RunState, turn: Any) -> RunState:
    state = take_turn(state, turn).state
    for call in state.calls:
        if call.outcome is None:
            state, outcome = apply_state_tool(state, call)
            state = settle_call(state, call, outcome)
    return state


def message_of(state: RunState, at: int = -1) -> str:
    outcome = state.calls[at].outcome
    assert outcome is not None
    return str(outcome.error.message if outcome.error else outcome.result)


def test_a_reframe_says_what_comes_next_and_how_many_are_left() -> None:
    state, said = new_state(), []
    for number in range(2):
        state = control(state, new_turn("", ("reframe", {"frame": "otherwise"}), prefix=f"r{number}-"))
        said.append(message_of(state))
        state = state.evolve(calls=())
    assert state.ending is None
    assert said == [
        f"reframed (1 of 2). {GO_ON} Reframes left: 1.",
        f"reframed (2 of 2). {GO_ON} No reframe is left: another one escalates the run, which ends it.",
    ]


def test_a_finish_without_an_outcome_or_beside_a_fault_says_how_to_end() -> None:
    assert "answer as text" in message_of(control(new_state(), new_turn("", ("finish", {"outcome": " "}))))
    both = new_turn("", ("nothing", {}), ("finish", {"outcome": "done"}))
    assert "call `finish` again alone" in message_of(control(new_state(), both))


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("get_run_journal", {}),
        ("update_run_journal", {"current_state": " begun "}),
        ("update_run_journal", {"verified_findings": ["rafts float"], "objective": "pay"}),
        ("append_run_journal_entry", {"section": "verified_findings", "entry": "rafts float"}),
    ],
)
def test_the_journal_says_so_where_nothing_is_new(tool: str, arguments: dict[str, Any]) -> None:
    _, outcome = run_journal_tool(JOURNAL, tool, arguments)
    assert GO_ON in str(outcome.result)


def test_an_update_without_a_section_names_them() -> None:
    _, outcome = run_journal_tool(JOURNAL, "update_run_journal", {})
    assert outcome.error is not None
    assert outcome.error.message.startswith("give one section at least: texts are objective")


def test_an_update_that_changes_something_needs_no_hint() -> None:
    for tool, arguments in (
        ("update_run_journal", {"current_state": "done"}),
        ("append_run_journal_entry", {"section": "blockers", "entry": "rain"}),
    ):
        _, outcome = run_journal_tool(JOURNAL, tool, arguments)
        assert GO_ON not in str(outcome.result)

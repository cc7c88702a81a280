"""What a reply asks for: steps, refusals, and the order in which calls are made."""

from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.run.state import Call
from perdure.contracts.tool import ToolOutcome
from perdure.decisions.run.call_state import record_approval
from perdure.decisions.run.next_calls import needs_approval, next_batch
from perdure.decisions.run.reply import MAX_CALLS, parse_calls
from perdure.decisions.run.transcript import join_text_blocks
from perdure.decisions.tools import unwrap_use
from tests.decisions.runs import new_call, new_route, new_state, new_turn

NAMES = ["look", "peek", "save", "charge", "vote", "guarded", "finish", "reframe", "escalate", "ask_human", "nothing"]


def kinds(calls: Any) -> list[str | None]:
    return [call.outcome.error.kind if call.outcome else None for call in calls]


def test_steps_count_on_from_the_last_one_and_control_calls_take_none() -> None:
    turn = new_turn("", ("look", {}), ("finish", {}), ("ask_human", {}), ("reframe", {}), ("charge", {"a": 1}))
    calls = parse_calls(new_state(step=7), turn)
    assert [(c.tool, c.step) for c in calls] == [
        ("look", 8),
        ("finish", None),
        ("ask_human", 9),
        ("reframe", None),
        ("charge", 10),
    ]


@given(uses=st.lists(st.sampled_from(NAMES), max_size=12), step=st.integers(0, 12), most=st.integers(1, 12))
def test_steps_are_consecutive_within_the_budget_and_every_use_gets_one_call(
    uses: list[str], step: int, most: int
) -> None:
    calls = parse_calls(new_state(step=step, max_steps=most), new_turn("", *((name, {}) for name in uses)))
    assert [c.tool_use_id for c in calls] == [f"u{number}" for number in range(len(uses))]
    steps = [c.step for c in calls if c.step is not None]
    assert steps == list(range(step + 1, step + 1 + len(steps)))
    assert all(s <= most for s in steps)
    takers = [c for c in calls if c.tool not in {"finish", "reframe", "escalate", "nothing"}]
    assert len(steps) == max(0, min(len(takers), most - step))


def test_the_calls_that_fit_the_budget_run_and_the_rest_are_refused() -> None:
    calls = parse_calls(new_state(step=18), new_turn("", *[("look", {})] * 4))
    assert [c.step for c in calls] == [19, 20, None, None]
    assert kinds(calls) == [None, None, "budget", "budget"]
    assert "step budget used up" in calls[2].outcome.error.message  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["Look", "LOOK", "look ", "lооk", "agentic-loop", "", "look\u200b", "run:R1"])
def test_a_name_that_is_not_exactly_a_tools_is_refused_with_the_list_of_tools(name: str) -> None:
    (call,) = parse_calls(new_state(), new_turn("", (name, {})))
    assert call.step is None
    assert kinds([call]) == ["unknown_tool"]
    assert "look, peek, save" in call.outcome.error.message  # type: ignore[union-attr]


def test_an_endless_name_is_cut_where_it_is_repeated() -> None:
    (call,) = parse_calls(new_state(), new_turn("", ("x" * 100_000, {})))
    assert len(call.model_dump_json()) < 2000


def test_broken_arguments_are_refused_without_a_step() -> None:
    calls = parse_calls(new_state(), new_turn("", ("look", {}), ("look", {}), ("look", {}), broken=("u1",)))
    assert kinds(calls) == [None, "broken_json", None]
    assert [c.step for c in calls] == [1, None, 2]


@pytest.mark.parametrize("arguments", [None, [], [1], "text", 5, True])
def test_arguments_that_are_no_object_are_refused(arguments: Any) -> None:
    assert kinds(parse_calls(new_state(), new_turn("", ("look", arguments)))) == ["invalid_arguments"]


def test_arguments_cannot_touch_what_names_the_call() -> None:
    forged = {"run_id": "R9", "step": 99, "tool": "charge", "tool_command": "rm"}
    (call,) = parse_calls(new_state(), new_turn("", ("look", forged)))
    assert (call.tool, call.step, call.arguments) == ("look", 1, forged)


def settle_batches(state: Any) -> list[list[str]]:
    """Settles batch after batch, and tells their tools."""
    made = []
    while batch := next_batch(state):
        made.append([call.tool for call in batch])
        ids = [call.tool_use_id for call in batch]
        done = [c.evolve(outcome=ToolOutcome()) if c.tool_use_id in ids else c for c in state.calls]
        state = state.evolve(calls=tuple(done))
    return made


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ([], []),
        (["look", "peek", "look"], [["look", "peek", "look"]]),
        (["charge", "charge"], [["charge"], ["charge"]]),
        (["save", "save"], [["save"], ["save"]]),
        (["look", "charge", "look", "peek"], [["look"], ["charge"], ["look", "peek"]]),
        (["finish", "look", "escalate", "charge"], [["look"], ["charge"], ["finish"], ["escalate"]]),
        (["reframe", "finish"], [["reframe"], ["finish"]]),
        (["look", "ask_human", "look"], [["look"], ["ask_human"], ["look"]]),
        (["guarded", "guarded", "look"], [["guarded"], ["guarded"], ["look"]]),
        (["vote", "look"], [["vote", "look"]]),
        (["nothing", "look"], [["look"]]),
    ],
)
def test_neighbouring_reads_go_together_effects_alone_and_control_last(
    uses: list[str], expected: list[list[str]]
) -> None:
    state = new_state()
    calls = parse_calls(state, new_turn("", *((name, {}) for name in uses)))
    assert settle_batches(state.evolve(calls=calls)) == expected


@given(uses=st.lists(st.sampled_from(NAMES), max_size=10))
def test_every_call_is_made_exactly_once_and_effects_in_the_models_order(uses: list[str]) -> None:
    state = new_state()
    calls = parse_calls(state, new_turn("", *((name, {}) for name in uses)))
    made = settle_batches(state.evolve(calls=calls))
    flat = [tool for batch in made for tool in batch]
    work = [name for name in uses if name in {"look", "peek", "save", "charge", "vote", "guarded", "ask_human"}]
    control = [name for name in uses if name in {"finish", "reframe", "escalate"}]
    assert flat == work + control
    assert all(len(batch) == 1 or set(batch) <= {"look", "peek", "vote"} for batch in made)


def test_a_tool_approved_for_the_run_needs_no_more_approval() -> None:
    assert needs_approval(new_state(), new_call("guarded"))
    assert not needs_approval(new_state(approved_tools=("guarded",)), new_call("guarded"))
    assert not needs_approval(new_state(), new_call("look"))


def test_an_approval_is_for_exactly_one_call_and_void_once_its_arguments_differ() -> None:
    state = new_state(calls=(new_call("guarded", arguments={"eur": 5, "to": "eva"}), new_call("guarded", 2)))
    state, call = record_approval(state, state.calls[0])
    assert state.calls[0] == call
    assert not needs_approval(state, call)
    assert not needs_approval(state, call.evolve(arguments={"to": "eva", "eur": 5}))
    assert needs_approval(state, call.evolve(arguments={"eur": 6, "to": "eva"}))
    assert needs_approval(state, state.calls[1])


def test_an_approval_written_by_an_earlier_version_is_void() -> None:
    written = {**new_call("guarded").model_dump(mode="json"), "approved": True}
    assert needs_approval(new_state(), Call.model_validate(written))


def test_the_text_of_a_reply_is_its_text_blocks() -> None:
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": " a"}, {"type": "text", "text": "b "}]
    assert join_text_blocks(blocks) == "a\nb"


def test_of_a_flood_the_first_calls_are_made_and_the_rest_are_refused_without_a_step() -> None:
    calls = parse_calls(new_state(max_steps=1000), new_turn("", *[("look", {})] * (MAX_CALLS + 3)))
    assert kinds(calls) == [None] * MAX_CALLS + ["too_many"] * 3
    assert [call.step for call in calls] == [*range(1, MAX_CALLS + 1), None, None, None]


JSON_VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5)
ARGUMENTS = st.dictionaries(st.text(), JSON_VALUES, max_size=4)


@given(names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=6), arguments=ARGUMENTS, step=st.integers(0, 20))
def test_a_call_by_call_tool_is_the_call_of_the_tool_itself(
    names: list[str], arguments: dict[str, Any], step: int
) -> None:
    plain = [(name, arguments) for name in names]
    wrapped = [("call_tool", {"name": name, "arguments": arguments}) for name in names]
    state = new_state(step=step)
    assert parse_calls(state, new_turn("", *wrapped)) == parse_calls(state, new_turn("", *plain))


@given(name=st.text(), arguments=ARGUMENTS)
def test_any_name_and_arguments_come_out_as_they_went_in(name: str, arguments: dict[str, Any]) -> None:
    use = {"type": "tool_use", "id": "u", "name": "call_tool", "input": {"name": name, "arguments": arguments}}
    assert unwrap_use(use) == {**use, "name": name, "input": arguments}
    assert unwrap_use({**use, "name": name}) == {**use, "name": name} or name == "call_tool"


@given(given_input=JSON_VALUES | st.fixed_dictionaries({"name": JSON_VALUES, "arguments": JSON_VALUES}))
def test_a_use_of_call_tool_with_any_input_is_one_call(given_input: Any) -> None:
    (call,) = parse_calls(new_state(), new_turn("", ("call_tool", given_input)))
    assert (call.tool_use_id, call.step) == ("u0", None) or call.tool in NAMES
    assert call.outcome is not None or call.tool in NAMES


def test_arguments_of_call_tool_that_are_no_json_are_said_to_be_broken() -> None:
    assert kinds(parse_calls(new_state(), new_turn("", ("call_tool", {}), broken=("u0",)))) == ["broken_json"]


def test_an_unknown_name_is_answered_with_similar_ones_and_without_the_searched_tools() -> None:
    routes = tuple(route.evolve(is_searched=route.name in ("charge", "vote")) for route in new_state().tools)
    state = new_state().evolve(tools=routes)
    (call,) = parse_calls(state, new_turn("", ("changer", {})))
    assert call.outcome is not None
    assert call.outcome.error is not None
    known, _, listed = call.outcome.error.message.partition("; the tools are: ")
    assert known == "there is no tool 'changer' here; similar names: charge"
    assert "look" in listed
    assert "vote" not in listed
    assert listed.endswith("and those that search_tools returns")


def test_a_reply_of_wrong_names_is_answered_before_a_workflow_task_may_not_take_longer() -> None:
    routes = (*new_state().tools, *(new_route(f"server__create_thing_number_{n}") for n in range(1000)))
    state = new_state().evolve(tools=routes)
    began = process_time()
    calls = parse_calls(state, new_turn("", *((f"server_create_thing_{n}", {}) for n in range(MAX_CALLS))))
    assert set(kinds(calls)) == {"unknown_tool"}
    assert len(calls[0].model_dump_json()) < 4000
    assert process_time() - began < 2  # after which the SDK takes the workflow for deadlocked

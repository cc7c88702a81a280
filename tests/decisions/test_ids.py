"""Ids and dedupe keys."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.decisions import ids


@given(run_id=st.text())
def test_a_run_id_survives_the_trip_through_its_workflow_id(run_id: str) -> None:
    assert ids.run_id_of_workflow(ids.run_workflow_id(run_id)) == run_id


def test_a_workflow_under_a_foreign_id_is_its_own_run_id() -> None:
    assert ids.run_id_of_workflow("nightly") == "nightly"


def test_the_dedupe_keys_are_the_sources() -> None:
    assert ids.start_key("ext-1") == "agentic:start:ext-1"
    assert ids.request_key("01J", 1) == "agentic:run:01J:step:1:request"
    assert ids.result_key("01J", 1) == "agentic:run:01J:step:1:result"


def test_run_again_opens_a_new_generation_of_the_key() -> None:
    keys = [ids.request_key("01J", 1, attempt) for attempt in (1, 2, 3)]
    assert keys[1] == "agentic:run:01J:step:1:request:2"
    assert len(set(keys)) == 3


@given(one=st.text(), other=st.text())
def test_one_dedupe_key_means_one_run_and_two_mean_two(one: str, other: str) -> None:
    assert (ids.run_id_for(one) == ids.run_id_for(other)) is (one == other)
    assert ids.run_id_for(one).isascii()
    assert len(ids.run_id_for(one)) < 40


def test_a_run_has_one_trace_and_other_runs_others() -> None:
    mine = ids.trace_id("default", "run:a")
    assert mine == "c52029951cfe2a683960f700de6f1e0c"  # a worker of another version goes on with the same trace
    assert len({mine, ids.trace_id("default", "run:b"), ids.trace_id("other", "run:a")}) == 3
    assert re.fullmatch(r"[0-9a-f]{32}", mine)
    assert re.fullmatch(r"[0-9a-f]{16}", ids.root_span_id("default", "run:a"))
    assert not mine.startswith(ids.root_span_id("default", "run:a"))
    assert ids.trace_id("default", "run:\ud800")  # an id may be what is no text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(arguments=st.dictionaries(st.text(), JSON, max_size=4))
def test_a_calls_digest_does_not_depend_on_the_order_of_its_arguments(arguments: dict[str, Any]) -> None:
    turned = dict(reversed(arguments.items()))
    assert ids.call_digest("charge", turned) == ids.call_digest("charge", arguments)
    assert ids.call_digest("refund", arguments) != ids.call_digest("charge", arguments)


@pytest.mark.parametrize("other", [{"eur": 6}, {"eur": 5.0}, {"eur": "5"}, {"eur": 5, "to": None}, {}])
def test_other_arguments_have_another_digest(other: dict[str, Any]) -> None:
    assert ids.call_digest("charge", other) != ids.call_digest("charge", {"eur": 5})


def test_the_digest_of_a_call_stays_what_it_was() -> None:
    """It lies in the ledgers and histories of runs that are under way."""
    assert ids.call_digest("charge", {"to": "eva", "eur": 5}) == "e8826a6e2c33190b175ea6b5"


@given(run_id=st.text(min_size=1), repeat=st.integers(1, 600), step=st.integers(1, 10**6))
def test_the_id_of_a_delegation_fits_and_is_plain_where_it_can_be(run_id: str, repeat: int, step: int) -> None:
    """Runs that are under way have their delegations under the plain one."""
    long = run_id * repeat
    plain, made = f"run:{long}/delegation:{step}", ids.delegation_workflow_id(long, step)
    assert len(made.encode("utf-8", "surrogatepass")) <= ids.MAX_WORKFLOW_ID_BYTES
    assert (made == plain) is (len(plain.encode("utf-8", "surrogatepass")) <= ids.MAX_WORKFLOW_ID_BYTES)
    assert ids.delegating_run_id(made) in (ids.run_id_of_workflow(f"run:{long}"), ids.placeholder_id(long))


def test_the_ids_of_subtasks_stay_what_they_were() -> None:
    """Runs that are under way know theirs by them."""
    assert ids.subtask_run_id("01J", 2, "a") == "01J.2-a"
    assert ids.subtask_run_id("x" * 797, 1, "a") == "d-d82d7748eeb7e2d4602a"


def test_an_approval_names_run_execution_question_step_and_call() -> None:
    names = (("r", "e"), "q1", 1, "charge", {"eur": 5})
    others = [
        (("s", "e"), *names[1:]),
        (("r", "f"), *names[1:]),
        (names[0], "q2", *names[2:]),
        (*names[:2], 2, *names[3:]),
        (*names[:3], "refund", names[4]),
        (*names[:4], {"eur": 6}),
    ]
    assert len({ids.approval_digest(*each) for each in (names, *others)}) == 7

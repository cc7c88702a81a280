"""Ids and dedupe keys."""

from hypothesis import given
from hypothesis import strategies as st

from decisions import ids


@given(run_id=st.text())
def test_a_run_id_survives_the_trip_through_its_workflow_id(run_id: str) -> None:
    assert ids.run_id_of(ids.run_workflow_id(run_id)) == run_id


def test_a_workflow_under_a_foreign_id_is_its_own_run_id() -> None:
    assert ids.run_id_of("nightly") == "nightly"


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

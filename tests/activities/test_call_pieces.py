"""Calls of one reply that servers number and name in their own ways: no call is made that the model did not write."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.providers.replies.reply import UNCLEAR, CallPieces

A, B = '{"text": "a"}', '{"text": "b"}'


def piece(name: str | None = None, arguments: Any = None, **fields: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}, **fields}


def gather(*chunks: list[dict[str, Any]], are_whole: bool = False) -> list[tuple[str, Any]]:
    calls = CallPieces()
    for chunk in chunks:
        calls.add_pieces(chunk, are_whole=are_whole)
    return [(call["name"], call["input"]) for call in calls.in_order()]


@pytest.mark.parametrize("fields", [{"index": 0}, {"index": 0, "id": ""}, {"index": 0, "id": "x"}, {"id": None}, {}])
def test_whole_calls_with_one_index_stay_apart(fields: dict[str, Any]) -> None:
    for first in (A, "{}"):
        assert gather([piece("look", first, **fields)], [piece("look", B, **fields)]) == [("look", first), ("look", B)]
    both = [("cancel_all", {}), ("look", A)]
    assert gather([piece("cancel_all", "", **fields)], [piece("look", A, **fields)]) == both
    assert (
        gather([piece("cancel_all", "", **fields)], [piece("look", "", **fields)], [piece(None, A, **fields)]) == both
    )
    assert gather([piece("ping", "", **fields), piece("ping", "", **fields)]) == [("ping", {}), ("ping", {})]


@pytest.mark.parametrize("index", [0, None])
def test_an_id_in_each_piece_begins_no_call_without_a_name(index: int | None) -> None:
    pieces = [piece("look", "", id="1"), piece(None, A[:5], id="2"), piece(None, A[5:], id="3")]
    assert gather(*([{**each, "index": index}] for each in pieces)) == [("look", A)]


def test_a_name_in_each_piece_begins_no_call_while_the_arguments_are_open() -> None:
    pieces = [piece("look", ""), piece("look", A[:5]), piece("look", A[5:]), piece("look", "")]
    assert gather(*([{**each, "index": 0, "id": "x"}] for each in pieces)) == [("look", A)]


def test_calls_with_ids_of_their_own_stay_apart() -> None:
    def ping(call_id: str, arguments: str = "") -> list[dict[str, Any]]:
        return [piece("ping", arguments, index=0, id=call_id)]

    assert gather(ping("1"), ping("2")) == [("ping", {}), ("ping", {})]
    assert gather(ping("1", A), ping("2"), [piece(None, B, index=0, id="2")]) == [("ping", A), ("ping", B)]
    assert gather(ping("1"), ping("2", A)) == [("ping", UNCLEAR), ("ping", A)]  # one call, or two
    assert gather(ping("1"), ping("2", A[:5]), ping("3", A[5:])) == [("ping", A)]  # an id for each piece


def test_calls_of_a_whole_completion_stay_apart_however_they_are_numbered() -> None:
    pieces = [piece("ping", "", index=0), piece("ping", "", index=0), piece("ping", "", index=0, id="x")]
    assert gather(pieces, are_whole=True) == [("ping", {})] * 3


def test_pieces_without_a_call_of_their_own_break_the_calls_that_may_lack_them() -> None:
    assert gather([piece("cancel_all", "", index=0)], [piece(None, A, index=1)]) == [("cancel_all", UNCLEAR)]
    assert gather([piece("look", A, index=0)], [piece(None, "", index=1)]) == [("look", A)]
    with pytest.raises(TypeError, match="a call has no name"):
        gather([piece(None, A, index=0)])


def test_arguments_are_parsed_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.activities.providers.replies.reply.MAX_PARSED", 10)
    assert gather([piece("look", A, index=0)], [piece("look", B, index=0)]) == [("look", A + B)]


WRITTEN = st.lists(
    st.tuples(st.sampled_from(["look", "ping"]), st.dictionaries(st.sampled_from("ab"), st.text(max_size=4))),
    min_size=1,
    max_size=4,
)


@given(
    written=WRITTEN,
    index=st.sampled_from(["own", "zero", "none"]),
    call_id=st.sampled_from(["own", "empty", "same", "per piece", "none"]),
    cut=st.integers(1, 9),
    repeats_name=st.booleans(),
    opens=st.booleans(),
)
def test_each_call_that_can_be_made_is_one_that_the_model_wrote(
    written: list[tuple[str, Any]], index: str, call_id: str, cut: int, repeats_name: bool, opens: bool
) -> None:
    chunks, count = list[list[dict[str, Any]]](), 0
    for number, (name, arguments) in enumerate(written):
        text = json.dumps(arguments)
        parts = ([""] if opens else []) + [text[at : at + cut] for at in range(0, len(text), cut)]
        for at, part in enumerate(parts):
            count += 1
            ids = {"own": f"c{number}", "empty": "", "same": "c", "per piece": f"p{count}", "none": None}
            numbers = {"own": number, "zero": 0, "none": None}
            fields = {"index": numbers[index], "id": ids[call_id]}
            chunks.append([piece(name if repeats_name or at == 0 else None, part, **fields)])
    left = list(written)
    for name, arguments in gather(*chunks):
        try:
            call = (name, json.loads(arguments) if isinstance(arguments, str) else arguments)
        except ValueError:
            continue  # an error for the model
        assert call in left
        left = left[left.index(call) + 1 :]
    if not repeats_name and (index == "own" or call_id == "own"):
        assert left == []

"""Pieces of a reply, joined."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.model.turn import can_continue, continuation_call, join_replies
from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.activities.storage.store import LocalStores
from perdure.contracts.agent import Definition
from perdure.contracts.run.turn import Usage
from perdure.features.batches.activities import BatchedPieces, read_batched_pieces, save_batched_pieces

CALL = ModelCall(
    definition=Definition(agent="a", model="m", system="s", tools=()),
    messages=[{"role": "user", "content": [{"type": "text", "text": "see"}]}],
)
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}


def reply(*content: dict[str, Any], stop_reason: str = "max_tokens") -> ModelReply:
    return ModelReply([*content], stop_reason, "m", Usage(input=2, output=1), cost_usd=0.5)


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **fields}


@given(st.lists(st.text(min_size=1), min_size=2, max_size=4))
def test_texts_are_joined_as_they_are(pieces: list[str]) -> None:
    joined = reply(THOUGHT, text(pieces[0]))
    for piece in pieces[1:]:
        joined = join_replies(joined, reply(THOUGHT, text(piece)))
    assert joined.content == [THOUGHT, text("".join(pieces))]
    assert (joined.pieces, joined.usage.total, joined.cost_usd) == (len(pieces), 3 * len(pieces), 0.5 * len(pieces))


def test_citations_of_both_pieces_are_kept() -> None:
    joined = join_replies(reply(text("a", citations=[{"url": "x"}])), reply(text("b", citations=[{"url": "y"}])))
    assert joined.content == [text("ab", citations=[{"url": "x"}, {"url": "y"}])]


def test_an_unknown_price_of_one_piece_makes_the_cost_unknown() -> None:
    other = ModelReply([text("b")], "end_turn", "m", Usage())
    assert join_replies(reply(text("a")), other).cost_usd is None


def test_the_text_so_far_goes_before_the_text_of_the_rest() -> None:
    shown: list[str] = []
    call = ModelCall(CALL.definition, CALL.messages, on_text=shown.append)
    continuation_call(call, reply(text("once "))).on_text("more")
    assert shown == ["once more"]
    assert len(CALL.messages[0]["content"]) == 1, "the conversation itself stays as it is"


def test_the_budgets_bound_the_pieces() -> None:
    for tokens_left, usd_left, expected in ((None, None, True), (4, 0.6, True), (3, None, False), (None, 0.5, False)):
        assert can_continue(reply(text("a")), tokens_left, usd_left) is expected


def test_the_pieces_of_batches_are_kept_as_the_first_worker_stored_them(tmp_path: Path) -> None:
    """One that was paused while others went on stores a piece late, and replaces none."""
    store = LocalStores(tmp_path).of("r")
    store.workspace.create()
    assert read_batched_pieces(store, "e") == BatchedPieces()
    one = BatchedPieces(reply=reply(THOUGHT, text("a")), batches=("b1",))
    two = BatchedPieces(reply=reply(THOUGHT, text("ab")), batches=("b1", "b2"))
    for pieces in (one, two, BatchedPieces(reply=reply(text("late")), batches=("b1",))):
        save_batched_pieces(store, "e", pieces)
    assert read_batched_pieces(store, "e") == two
    assert read_batched_pieces(store, "other") == BatchedPieces()

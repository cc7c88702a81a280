"""Pieces of a reply, joined."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from activities.model.pieces import can_continue, continuation_call, join_replies
from activities.providers.port import ModelCall, ModelReply
from contracts.agent import Definition
from contracts.run.turn import TurnRequest, Usage

REQUEST = TurnRequest(turn=1, length=1, head="h", definition="d")
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
    for left, expected in (
        ({}, True),
        ({"tokens_left": 4, "usd_left": 0.6}, True),
        ({"tokens_left": 3}, False),
        ({"usd_left": 0.5}, False),
    ):
        assert can_continue(reply(text("a")), REQUEST.model_copy(update=left)) is expected

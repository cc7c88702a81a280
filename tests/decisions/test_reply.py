"""What a reply makes of a run: calls, an outcome, or a note that it cannot be used."""

from typing import Any

import pytest

from contracts.failures import Escalation, RunFailure
from contracts.run.state import RunStatus
from decisions.errors import IllegalMoveError
from decisions.run import loop


def test_a_reply_without_calls_is_the_outcome(player: Any, new_turn: Any) -> None:
    it = player()
    it.turn(new_turn("All done."))
    assert it.settle() == loop.End(it.state.ending)
    assert (it.state.ending.status, it.state.ending.text) == (RunStatus.completed, "All done.")


@pytest.mark.parametrize(
    "reply",
    [
        {"text": ""},
        {"text": "   "},
        {"text": "half", "stop": "max_tokens"},
        {"text": "half", "stop": "model_context_window_exceeded"},
    ],
)
def test_three_unusable_replies_in_a_row_end_the_run_typed(player: Any, new_turn: Any, reply: Any) -> None:
    it = player()
    for _ in range(3):
        assert it.settle() == loop.Think()
        it.turn(new_turn(reply["text"], stop=reply.get("stop")))
    assert (it.state.ending.status, it.state.ending.reason) == (RunStatus.failed, RunFailure.model_unusable)


def test_a_usable_reply_starts_the_count_of_unusable_ones_anew(player: Any, new_turn: Any) -> None:
    it = player()
    for turn in range(4):
        it.turn(new_turn(""))
        it.turn(new_turn(""))
        it.turn(new_turn("", ("look", {}), prefix=f"t{turn}-"))
        assert it.settle() == loop.Think()


def test_an_empty_reply_does_not_enter_the_conversation_but_a_note_about_it_does(player: Any, new_turn: Any) -> None:
    it = player()
    it.turn(new_turn(""))
    assert [part.kind for part in it.transcript.parts] == ["goal", "note"]


def test_a_refusal_escalates_and_its_calls_are_not_made(player: Any, new_turn: Any) -> None:
    it = player()
    it.turn(new_turn("I will not.", ("charge", {}), stop="refusal"))
    it.settle()
    assert (it.state.ending.reason, it.issued) == (Escalation.model_declined, [])


def test_a_paused_turn_goes_on(player: Any, new_turn: Any) -> None:
    it = player()
    it.turn(new_turn("searching", stop="pause_turn"))
    assert it.settle() == loop.Think()


def test_frame_and_plan_are_read_from_what_the_model_says_first(player: Any, new_turn: Any) -> None:
    it = player()
    it.turn(new_turn("**Frame:** see the page\n\n## Plan\n1. look\n2. write", ("look", {})))
    assert it.state.journal.objective == "see the page"
    assert it.state.plan == "1. look\n2. write"
    it.settle()
    it.turn(new_turn("The page is short.", ("look", {}), prefix="b"))
    assert it.state.last_finding == "The page is short."
    assert it.state.journal.current_state == "", "that is the agent's own to write"


def test_tokens_and_money_are_counted_and_an_unknown_price_stays_unknown(player: Any, new_turn: Any) -> None:
    it = player()
    for cost, total in ((0.5, 0.5), (0.25, 0.75), (None, None), (1.0, None)):
        it.turn(new_turn("", ("look", {}), cost_usd=cost))
        it.settle()
        assert it.state.cost_usd == total
    assert it.state.usage.input == 4


def test_a_reply_while_calls_are_open_is_an_illegal_move(player: Any, new_turn: Any) -> None:
    it = player()
    it.turn(new_turn("", ("look", {}), prefix="a"))
    before = it.state
    with pytest.raises(IllegalMoveError, match="cannot take a reply: calls are open: a0"):
        it.turn(new_turn("done"))
    assert it.state is before

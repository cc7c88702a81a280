"""What a reply makes of a run: calls, an outcome, or a note that it cannot be used."""

from typing import Any

import pytest

from contracts.failures import Escalation, RunFailure
from contracts.run.state import RunStatus
from decisions.errors import IllegalMoveError
from decisions.run import loop
from tests.decisions.runs import new_player, new_turn


def test_a_reply_without_calls_is_the_outcome() -> None:
    player = new_player()
    assert player.play("All done.") == loop.End(player.ending)
    assert (player.ending.status, player.ending.text) == (RunStatus.completed, "All done.")


@pytest.mark.parametrize(
    "reply",
    [
        {"text": ""},
        {"text": "   "},
        {"text": "half", "stop": "max_tokens"},
        {"text": "half", "stop": "model_context_window_exceeded"},
    ],
)
def test_three_unusable_replies_in_a_row_end_the_run_typed(reply: Any) -> None:
    player = new_player()
    for _ in range(3):
        assert player.settle() == loop.Think()
        player.reply(new_turn(reply["text"], stop=reply.get("stop")))
    assert (player.ending.status, player.ending.reason) == (RunStatus.failed, RunFailure.model_unusable)


def test_a_usable_reply_resets_the_count_of_unusable_ones() -> None:
    player = new_player()
    for _ in range(4):
        player.reply(new_turn(""))
        player.reply(new_turn(""))
        assert player.play("", ("look", {})) == loop.Think()


def test_an_empty_reply_does_not_enter_the_conversation_but_a_note_about_it_does() -> None:
    player = new_player()
    player.reply(new_turn(""))
    assert [part.kind for part in player.transcript.parts] == ["goal", "note"]


def test_a_refusal_escalates_and_its_calls_are_not_made() -> None:
    player = new_player()
    player.play("I will not.", ("charge", {}), stop="refusal")
    assert (player.ending.reason, player.issued) == (Escalation.model_declined, [])


def test_a_paused_turn_goes_on() -> None:
    player = new_player()
    assert player.play("searching", stop="pause_turn") == loop.Think()


def test_frame_and_plan_are_read_from_what_the_model_says_first() -> None:
    player = new_player()
    player.reply(new_turn("**Frame:** see the page\n\n## Plan\n1. look\n2. write", ("look", {})))
    assert player.state.journal.objective == "see the page"
    assert player.state.plan == "1. look\n2. write"
    player.settle()
    player.reply(new_turn("The page is short.", ("look", {}), prefix="b"))
    assert player.state.last_finding == "The page is short."
    assert player.state.journal.current_state == "", "that is the agent's own to write"


def test_tokens_and_money_are_counted_and_an_unknown_price_stays_unknown() -> None:
    player = new_player()
    for cost, total in ((0.5, 0.5), (0.25, 0.75), (None, None), (1.0, None)):
        player.play("", ("look", {}), cost_usd=cost)
        assert player.state.cost_usd == total
    assert player.state.usage.input == 4


def test_a_reply_while_calls_are_open_is_an_illegal_move() -> None:
    player = new_player()
    player.reply(new_turn("", ("look", {}), prefix="a"))
    before = player.state
    with pytest.raises(IllegalMoveError, match="cannot take a reply: calls are open: a0"):
        player.reply(new_turn("done"))
    assert player.state is before

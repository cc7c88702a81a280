"""What a reply makes of a run: calls, an outcome, or a note that it cannot be used."""

from pathlib import Path
from typing import Any

import pytest

from perdure.contracts.failures import Escalation, RunFailure
from perdure.contracts.run.state import RunStatus
from perdure.decisions.errors import IllegalMoveError
from perdure.decisions.run import loop, reply
from perdure.decisions.text.visible_text import find_written_call
from tests.decisions.runs import new_player, new_state, new_turn

THOUGHT = [{"type": "thinking", "thinking": "The answer is 4."}]
TYPED = {"is_typed": True}
# A reply for each row of the table: the run, the reply, and what it becomes: the reason of the ending, "" for an
# outcome, or None if the run goes on; whether the conversation keeps the reply; the number of calls.
ROWS: dict[Any, tuple[dict[str, Any], Any, str | None, bool, int]] = {
    reply.take_last_turn: ({"is_closing": True}, new_turn("half", ("look", {})), "", True, 1),
    reply.escalate_declined: ({}, new_turn("no", ("look", {}), stop="refusal"), Escalation.model_declined, False, 0),
    reply.escalate_out_of_steps: (
        {"max_steps": 1, "step": 1},
        new_turn("", ("look", {})),
        Escalation.step_budget,
        True,
        1,
    ),
    reply.take_calls: ({}, new_turn("", ("look", {}), stop="max_tokens"), None, True, 1),
    reply.continue_turn: ({}, new_turn("searching", stop="pause_turn"), None, True, 0),
    reply.reject_cut_off: ({}, new_turn("half", stop="max_tokens"), None, True, 0),
    reply.reject_reasoning: ({}, new_turn().evolve(content=THOUGHT), None, False, 0),
    reply.reject_empty: ({}, new_turn(stop="pause_turn"), None, False, 0),
    reply.reject_written_call: (TYPED, new_turn('{"name": "look", "arguments": {}}'), None, True, 0),
    reply.ask_for_result: (TYPED, new_turn("done"), None, True, 0),
    reply.complete_with_text: ({}, new_turn("done"), "", True, 0),
}


@pytest.mark.parametrize("take", ROWS, ids=lambda take: take.__name__)
def test_each_row_decides_about_some_reply_and_what_it_becomes(take: Any) -> None:
    fields, turn, ending, keeps, count = ROWS[take]
    state = new_state(**fields)
    calls = reply.parse_calls(state, turn)
    facts = reply.ReplyFacts(state, turn, calls, "".join(block.get("text", "") for block in turn.content))
    assert next(row for _, holds, row in reply.REPLIES if holds(facts)) is take
    taken = reply.take_turn(state, turn)
    assert (taken.state.ending and taken.state.ending.reason) == ending
    assert (taken.keep, len(taken.state.calls)) == (keeps, count)
    assert (taken.note is not None) is (take.__name__.startswith("reject") or take is reply.ask_for_result)


def test_the_table_of_replies_in_the_documentation_is_the_one_that_decides() -> None:
    """And each of its rows is played above."""
    assert [*ROWS] == [take for _, _, take in reply.REPLIES]
    rows = [
        f"| {text} | `{take.__name__}` | {(take.__doc__ or '').removesuffix('.')} |" for text, _, take in reply.REPLIES
    ]
    page = (Path(reply.__file__).parents[3] / "docs" / "one-call.md").read_text(encoding="utf-8")
    assert "\n".join(rows) in page


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


WRITTEN = [
    'I will look first.\n\n```json\n{"name": "look", "arguments": {"at": "x"}}\n```',
    '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>',
    '[TOOL_CALLS][{"name": "look", "arguments": {"at": "x"}}]',
    '{"type": "function", "function": {"name": "look", "arguments": "{}"}}',
    '{"arguments": {"a": [1, {}]}, "name": "look"}',
    '{"tool": "look", "input": {}}',
    '<function=look>{"at": "x"}</function>',
    '<function_calls><invoke name="look"><parameter name="at">x</parameter></invoke></function_calls>',
    "<tool_call>look\n<arg_key>at</arg_key></tool_call>",
    '{"name": "nothing", "arguments": {}} {"name" : "look" ,"parameters":{}}',
]


@pytest.mark.parametrize("text", WRITTEN)
def test_a_text_with_a_call_of_an_offered_tool_is_no_outcome(text: str) -> None:
    player = new_player()
    assert player.play(text) == loop.Think()
    assert [part.kind for part in player.transcript.parts] == ["goal", "reply", "note"]
    assert "a call of `look` as text" in player.transcript.parts[-1].content[0]["text"]
    assert player.play("", ("look", {})) == loop.Think()  # which is made
    for _ in range(3):
        player.play(text)
    assert (player.ending.status, player.ending.reason) == (RunStatus.failed, RunFailure.model_unusable)
    assert player.ending.text.endswith("the last one had a call of look as text, which makes none")


@pytest.mark.parametrize(
    "text",
    [
        "Call look to see it.",
        '{"name": "look", "found": 3}',
        '{"name": "somebody", "arguments": {"at": "x"}}',
        'The tool is `look("x")`, and its "arguments" are a list.',
        "</tool_call> look",
    ],
)
def test_other_text_is_an_outcome(text: str) -> None:
    player = new_player()
    player.play(text)
    assert (player.ending.status, player.ending.text) == (RunStatus.completed, text)


def test_an_answer_that_quotes_a_call_can_be_given_by_finish() -> None:
    player = new_player()
    player.play(WRITTEN[0])
    player.play("", ("finish", {"outcome": WRITTEN[0]}))
    assert (player.ending.status, player.ending.text) == (RunStatus.completed, WRITTEN[0])


def test_a_written_call_is_looked_for_in_linear_time() -> None:
    for text in ('"name"' + " " * 500_000, '"arguments":' * 50_000 + '"name": ' * 50_000, "<tool_call>" * 50_000):
        assert find_written_call(text, {"look"}) is None


def test_a_run_whose_replies_are_reasoning_alone_says_so() -> None:
    player = new_player()
    for _ in range(3):
        player.reply(new_turn("").evolve(content=THOUGHT))
    assert "only reasoning" in player.transcript.parts[1].content[0]["text"]
    assert player.ending.reason == RunFailure.model_unusable
    assert player.ending.text.endswith("the last one had all its words as reasoning, and no answer")


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
    for cost, total in ((0.5, 0.5), (0.25, 0.75), (None, None), (1.0, None), (None, None)):
        player.play("", ("look", {}), cost_usd=cost)
        assert player.state.cost_usd == total
    assert player.state.usage.input == 5
    tokens = 2 * player.state.usage.total // 5
    assert (player.state.known_usd, player.state.unpriced) == (1.75, {player.state.model: tokens})


def test_what_is_known_of_the_cost_ends_a_run_at_its_budget() -> None:
    player = new_player(budget_usd=1.0)
    player.play("", ("look", {}), cost_usd=None)
    player.play("", ("look", {}), cost_usd=0.9)
    assert player.state.ending is None
    player.play("", ("look", {}), cost_usd=0.2)
    assert player.ending.reason == Escalation.money_budget


def test_a_reply_while_calls_are_open_is_an_illegal_move() -> None:
    player = new_player()
    player.reply(new_turn("", ("look", {}), prefix="a"))
    before = player.state
    with pytest.raises(IllegalMoveError, match="cannot take a reply: calls are open: a0"):
        player.reply(new_turn("done"))
    assert player.state is before

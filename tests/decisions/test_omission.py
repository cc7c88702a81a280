"""What the model is shown after a turn that ended without an answer: nothing that may be its cause, and all it did."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.failures import Escalation, RunFailure
from perdure.contracts.run.state import Ending, RunState, RunStatus
from perdure.contracts.run.transcript import Part, PartKind
from perdure.contracts.tool import ToolOutcome, error_outcome
from perdure.decisions.run.compaction import brief_of, divide_parts, messages_of, narrate_parts
from perdure.decisions.run.outcome import complete_run, escalate_run
from perdure.decisions.run.transcript import (
    OUT_OF_TIME,
    brief_part,
    close_unanswered,
    goal_part,
    note_part,
    omit_parts,
    result_part,
    said_part,
    unanswered_kind,
    visible_parts,
)
from tests.decisions.runs import new_state
from tests.decisions.test_context import compact, is_sound

KINDS = [*RunFailure, *(kind for kind in Escalation if kind is not Escalation.asked), "Terminated", "TimedOut"]


def goal(text: str) -> Part:
    return goal_part(text, {})


def reply(text: str = "", *uses: str, tool: str = "charge") -> Part:
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    content += [{"type": "tool_use", "id": use, "name": tool, "input": {}} for use in uses]
    usage = {"input": 1, "output": 1, "cache_read": 0, "cache_write": 0}
    return Part(kind=PartKind.reply, content=content, about={"usage": usage})


def result(use: str, text: str, step: int = 1) -> Part:
    return result_part(use, "charge", step, ToolOutcome(result=text))


def close(parts: Sequence[Part], start: int, kind: str) -> list[Part]:
    note = close_unanswered(parts, start, kind)
    return [*parts, *([note] if note else [])]


def texts_of(parts: Sequence[Part]) -> str:
    messages = messages_of(parts, [], 0)
    assert is_sound(messages)
    return str(messages)


ANSWERED = [goal("my name is Ada"), reply("hello Ada")]
ASKED = [goal("and now?")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_without_a_call_is_left_out_whole_whatever_ended_it(kind: str) -> None:
    turn = [
        brief_part("be evil"),
        goal("POISON"),
        reply("cut off POI"),
        note_part("POISON again"),
        said_part("POISON!"),
    ]
    text = texts_of([*close([*ANSWERED, *turn], len(ANSWERED), kind), *ASKED])
    assert "POI" not in text
    assert all(said in text for said in ("hello Ada", f"without an answer: {kind}", "and now?"))


@pytest.mark.parametrize(("kind", "is_withheld"), [("ModelRefused", True), ("Terminated", False)])
def test_what_a_turn_did_stays_and_only_an_unanswered_result_of_a_refused_one_is_withheld(
    kind: str, is_withheld: bool
) -> None:
    turn = [goal("pay"), reply("first", "a"), result("a", "paid 1"), reply("second", "b"), result("b", "POISON", 2)]
    text = texts_of([*close([*ANSWERED, *turn, said_part("hurry")], len(ANSWERED), kind), *ASKED])
    assert all(said in text for said in ("pay", "first", "paid 1", "second", kind))
    assert ("POISON" not in text, "(done; the result was left out)" in text) == (is_withheld, is_withheld)
    assert "hurry" not in text


def test_a_result_that_is_withheld_still_says_how_the_call_ended() -> None:
    doubt = result_part("a", "charge", 1, error_outcome("in_doubt", "POISON"))
    text = texts_of([*close([goal("pay"), reply("", "a"), doubt], 0, "ModelRefused"), *ASKED])
    assert "in_doubt: (the message was left out)" in text
    assert "POISON" not in text


@pytest.mark.parametrize("before", ["worked", "cancelled"])
def test_a_cause_in_an_earlier_turn_does_not_stay_for_ever(before: str) -> None:
    """The work of a turn that failed, or the words of one that was cancelled, were never answered either."""
    earlier = [goal("POISON")]
    if before == "worked":
        earlier += [reply("", "a"), result("a", "POISON")]
    parts = [*ANSWERED, *earlier]
    parts = close(parts, len(ANSWERED), "ModelUnavailable") if before == "worked" else parts
    start = len(parts)
    text = texts_of([*close([*parts, goal("again")], start, "ModelRefused"), *ASKED])
    assert ("POISON" not in text, "again" not in text, "hello Ada" in text) == (True, True, True)
    assert ("charge (step 1): done" in text) == (before == "worked")


def test_an_end_that_refused_nothing_takes_nothing_of_earlier_turns() -> None:
    parts = close([goal("pay"), reply("", "a"), result("a", "paid 1")], 0, "ModelUnavailable")
    text = texts_of([*close([*parts, goal("again")], len(parts), "Terminated"), *ASKED])
    assert "paid 1" in text


def test_a_finished_turn_stays_before_one_that_is_refused() -> None:
    parts = [
        goal("pay"),
        reply("", "a", tool="finish"),
        result_part("a", "finish", None, ToolOutcome(result="finished")),
    ]
    text = texts_of([*close([*parts, goal("POISON")], len(parts), "ModelRefused"), *ASKED])
    assert "finished" in text
    assert "POISON" not in text


def test_a_partial_outcome_after_a_reply_is_an_answer() -> None:
    assert close_unanswered([goal("pay"), reply("", "a"), result("a", "1")], 0, OUT_OF_TIME) is None
    assert close_unanswered([goal("pay")], 0, OUT_OF_TIME) is not None


def test_a_summary_of_what_is_left_out_later_goes_with_it() -> None:
    old = [part for n in range(20) for part in (goal(f"POISON {n}"), reply(f"answer {n}"))]
    parts = compact(old)
    assert "THE SUMMARY" in texts_of(parts)
    left = [*parts, omit_parts(parts, 0, 2, "A person took a message out."), *ASKED]
    text = texts_of(left)
    assert ("THE SUMMARY" in text, "POISON 0" in text, "POISON 1" in text) == (False, False, True)
    assert "POISON 0" not in narrate_parts(left, len(left), 100_000)
    assert texts_of(compact(left))
    assert brief_of(left) == ""
    kept = [*parts, goal("POISON X")]
    assert "THE SUMMARY" in texts_of(close(kept, len(parts), "ModelRefused"))


def test_which_ends_are_without_an_answer() -> None:
    state = new_state()
    ends: list[tuple[RunState, str | None]] = [
        (complete_run(state, "done", ()), None),
        (complete_run(state, "so far", (), is_partial=True), OUT_OF_TIME),
        (escalate_run(state, Escalation.asked, "help"), None),
        (escalate_run(state, Escalation.model_declined, "no"), "model_declined"),
        (state, None),
    ]
    for reason in RunFailure:
        ending = Ending(status=RunStatus.failed, text="", reason=reason)
        ends.append((state.evolve(ending=ending), reason))
    assert [unanswered_kind(ended) for ended, _ in ends] == [kind for _, kind in ends]
    assert unanswered_kind(state, "Terminated") == "Terminated"


TURNS = st.lists(
    st.tuples(st.integers(0, 3), st.booleans(), st.sampled_from(["done", "cancelled", *KINDS])), min_size=1, max_size=8
)


@given(TURNS)
def test_whatever_turns_end_the_conversation_is_sound_and_grows_as_if_it_was_read_at_once(turns: Any) -> None:
    parts: list[Part] = []
    messages: list[dict[str, Any]] = []
    for number, (calls, has_text, end) in enumerate(turns):
        start = len(parts)
        parts.append(goal(f"goal {number}"))
        for n in range(calls):
            parts += [reply("", f"{number}-{n}"), result(f"{number}-{n}", "ok", n + 1)]
        if end == "done" or (has_text and end != "cancelled"):
            parts.append(reply("text"))
        if end not in ("done", "cancelled"):
            parts = close(parts, start, end)
        messages = messages_of(parts, messages, start)
        assert messages == messages_of(parts, [], 0)
        assert is_sound([*messages_of([*parts, *ASKED], [], 0)])
        assert len(visible_parts(parts)) == len(parts)
        assert divide_parts(parts, 4, 10_000, is_deep=True).tail <= len(parts)

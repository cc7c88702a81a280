"""What people read is short, one line where it must be, and never mistaken for markup."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.policy import PolicyVerdict, Verdict
from perdure.contracts.run.signals import Question, QuestionKind
from perdure.contracts.run.state import Ending, RunStatus
from perdure.contracts.tool import Effect, ToolOutcome
from perdure.decisions.run.journal import render_journal
from perdure.decisions.run.outcome import ending_event, format_handoff, parse_handoff
from perdure.decisions.text import formatting
from tests.decisions.runs import NOW, new_call, new_state


@given(text=st.text(), length=st.integers(1, 300))
def test_a_cut_text_is_one_line_of_at_most_the_length(text: str, length: int) -> None:
    line = formatting.truncate(text, length)
    assert len(line) <= length
    assert line.splitlines() in ([], [line])


def test_a_notice_of_a_signal_holds_nothing_that_a_terminal_obeys() -> None:
    said = formatting.format_signal_notice("\x1b[31mred\u202e", "no such\nsignal " * 100)
    assert said.startswith("[U+001B][31mred[U+202E]: no such signal")
    assert len(said) == 300


def test_what_fits_is_not_cut() -> None:
    assert formatting.truncate("  a \n b ", 3) == "a b"
    assert formatting.truncate("abcd", 3) == "ab…"


@given(
    tool=st.text(max_size=200),
    arguments=st.dictionaries(st.text(max_size=9), st.text() | st.integers() | st.none(), max_size=5),
)
def test_a_calls_summary_has_at_most_200_characters(tool: str, arguments: dict[str, Any]) -> None:
    call = new_call("look", 123_456, arguments=arguments, generation=12).evolve(tool=tool)
    for effect, action in ((Effect.once, "looked up"), (Effect.read, "made again")):
        summary = formatting.call_summary(call.evolve(effect=effect), was_lost=True)
        assert len(summary) <= 200
        assert summary.endswith(f"step 123456 · attempt 12 · {action}, its worker was lost")


@pytest.mark.parametrize(
    ("kind", "body"),
    [("question", '{"question_id": "q1", "text": "a"}'), ("resume_unsafe", '{"question_id": "q1", "decision": "…"}')],
)
def test_an_answer_is_offered_for_pasting_and_a_decision_is_not_suggested(kind: str, body: str) -> None:
    question = Question(id="q1", kind=QuestionKind(kind), text="Which?", options=("a", "b"), asked_at=NOW)
    assert body in formatting.run_details(new_state(asked=(question,)))


def test_where_only_signed_answers_count_nothing_is_offered_for_pasting() -> None:
    question = Question(id="q1", kind=QuestionKind.approval, text="charge", asked_at=NOW, call="c0ffee")
    details = formatting.run_details(new_state(asked=(question,), answer_keys={"k1": "x"}))
    assert "Only signed answers are taken" in details
    assert "question_id" not in details


def test_an_approval_is_offered_for_exactly_its_call_and_tells_how_long_it_is_open() -> None:
    fields = {"asked_at": NOW, "call": "c0ffee", "expires_at": NOW + timedelta(hours=1)}
    question = Question(id="q1", kind=QuestionKind.approval, text="charge", options=("approve", "deny"), **fields)
    details = formatting.run_details(new_state(asked=(question,)))
    assert '{"question_id": "q1", "call": "c0ffee", "decision": "…"}' in details
    assert "question q1, until 2026-02-16 13:00:00 UTC" in details
    assert formatting.state_view(new_state(asked=(question,))).model_dump(mode="json")["question"] == {
        "id": "q1",
        "kind": "approval",
        "text": "charge",
        "options": ["approve", "deny"],
        "asked_at": "2026-02-16T12:00:00Z",
        "call": "c0ffee",
        "expires_at": "2026-02-16T13:00:00Z",
    }


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"url": "http://a"}, "fetch http://a"),
        ({"n": 5, "path": "a.md"}, "fetch a.md"),
        ({"n": 5, "deep": True}, "fetch n=5, deep=True"),
        ({"list": [1]}, "fetch"),
        ({}, "fetch"),
    ],
)
def test_a_call_is_shown_by_its_most_telling_argument(arguments: Any, line: str) -> None:
    assert formatting.call_line("fetch", arguments) == line


def asks(now: Any, kind: str, text: str, tool: str | None) -> Question:
    return Question(id="q1", kind=QuestionKind(kind), text=text, tool=tool, asked_at=now)


@given(text=st.text(min_size=1), tool=st.none() | st.text(max_size=300))
def test_what_a_run_waits_for_has_at_most_200_characters(text: str, tool: str | None) -> None:
    assert len(formatting.waiting_for_person(asks(NOW, "approval", text, tool))) <= 200


@pytest.mark.parametrize(
    ("verdict", "words"),
    [(Verdict.ask, "The rule that asks: mail"), (Verdict.allow, "own approval asks. The rule that allows: mail")],
)
def test_an_approval_names_the_rule_as_what_it_is(verdict: Verdict, words: str) -> None:
    decided = PolicyVerdict(verdict=verdict, rule="mail", policy="p")
    assert formatting.format_approval("note", {}, decided).endswith(words)


def test_an_approval_shows_the_whole_of_its_arguments_with_what_is_hidden_in_them() -> None:
    arguments = {"text": "x" * 9000, "to": "e\u202eve", "note": " " * 5000 + "DANGER"}
    text = formatting.format_approval("note", arguments)
    question = Question(id="q1", kind=QuestionKind.approval, text=text, options=("approve", "deny"), asked_at=NOW)
    details = formatting.run_details(new_state(asked=(question,)))
    for shown in (text, details):
        assert "x" * 9000 in shown
        assert "e[U+202E]ve" in shown
        assert "[5,000 spaces] DANGER" in shown
    assert "**Waiting for a person: approve a call**" in details


def test_a_call_that_no_person_could_be_shown_whole_is_not_asked_about() -> None:
    assert formatting.too_large_to_approve("note", {"text": "x" * 19_000}) is None
    for large in ({"text": "x" * 20_001}, {"text": "\u202e" * 3000}):
        outcome = formatting.too_large_to_approve("note", large)
        assert outcome is not None
        assert outcome.error is not None
        assert (outcome.error.kind, outcome.error.message.startswith("not made: ")) == ("too_large", True)


def test_what_a_run_waits_for_names_the_tool_or_asks_the_question() -> None:
    assert formatting.waiting_for_person(asks(NOW, "approval", "charge …", "charge")) == "human: approve charge"
    assert formatting.waiting_for_person(asks(NOW, "question", "Which one?", "ask_human")) == "human: asks: Which one?"


def test_no_words_of_a_model_or_a_sender_pass_for_an_approval() -> None:
    approval = formatting.waiting_for_person(asks(NOW, "approval", "refund …", "refund"))
    for kind in QuestionKind:
        shown = formatting.waiting_for_person(asks(NOW, kind, "approve refund", "refund"))
        assert (shown == approval) == (kind is QuestionKind.approval), kind
    hidden = formatting.waiting_for_person(asks(NOW, "question", "\b" * 20 + "\u202eapprove" + "x" * 400, "ask_human"))
    assert hidden.startswith("human: asks: [U+0008]")
    assert len(hidden) == 200


def test_the_details_show_goal_state_question_and_cost_and_no_bare_dollar() -> None:
    question = asks(NOW, "question", "Pay $5?", "ask_human")
    state = new_state(goal="spend $3", plan="1. pay $1", cost_usd=0.5, asked=(question,), step=3)
    text = formatting.run_details(state.evolve(last_finding="$9", ending=None))
    for said in ("spend", "step 3 of 20", "USD 0.5000", "Pay", "1. pay", "**running**"):
        assert said in text
    assert text.count("$") == text.count("\\$") == 4


def test_the_view_tells_finished_steps_apart_from_open_ones() -> None:
    done = new_call("look", 2).evolve(outcome=ToolOutcome())
    view = formatting.state_view(new_state(step=4, calls=(done, new_call("charge", 3), new_call("look", 4))))
    assert view.completed_steps == (1, 2)
    assert (view.step, view.max_steps, view.reframes, view.max_reframes) == (4, 20, 0, 2)


def test_a_completion_event_is_the_sources_field_for_field() -> None:
    ending = Ending(status=RunStatus.completed, text="done")
    event = ending_event(new_state(step=2, artifacts=("artifacts/a.md",), ending=ending)).model_dump(mode="json")
    assert event == {
        "type": "agent.completed",
        "payload": {
            "run_id": "R1",
            "goal": "see",
            "outcome": "done",
            "steps_taken": 2,
            "artifacts": ["artifacts/a.md"],
        },
    }


def test_an_escalation_event_carries_reason_detail_and_hand_off() -> None:
    ending = Ending(status=RunStatus.escalated, text="no rights", reason="asked")
    event = ending_event(new_state(ending=ending)).model_dump(mode="json")
    assert event["type"] == "agent.escalated"
    assert set(event["payload"]) == {"run_id", "goal", "reason", "detail", "steps_taken", "artifacts", "handoff"}
    assert (event["payload"]["reason"], event["payload"]["detail"]) == ("asked", "no rights")
    assert "Blocker: no rights" in format_handoff(new_state(ending=ending))


@given(blocker=st.text(), goal=st.text(min_size=1))
def test_a_handoff_has_four_sections_whatever_is_in_them(blocker: str, goal: str) -> None:
    ending = Ending(status=RunStatus.failed, text=blocker)
    sections = parse_handoff(format_handoff(new_state(goal=goal, ending=ending)))
    assert list(sections) == ["objective", "state", "blocker", "next"]
    assert sections["blocker"] == " ".join(blocker.split())[:600].rstrip()
    assert parse_handoff("") == {}


def test_the_journal_shows_the_sections_that_hold_something() -> None:
    journal = new_state().journal.evolve(objective="see it", artifacts=("a.md", "b.md"))
    assert render_journal(journal) == "# Run journal\n\n## Objective\n\nsee it\n\n## Artifacts\n\n- a.md\n- b.md\n"

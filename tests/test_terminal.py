"""What a person at a terminal sees, and what they type at a question becomes the answer they meant."""

import json
import re
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from perdure.activities.run.outcome import RunEnd
from perdure.client.run_events import (
    AnswerReceived,
    AnswerRejected,
    CallsReviewed,
    ContextCompacted,
    ContextFilled,
    ModelReplied,
    NoticeAdded,
    OutcomeChecked,
    RunEvent,
    RunStarted,
    ToolCallFinished,
    ToolCallRefused,
    event_to_json,
)
from perdure.contracts.people import CLI, Sender
from perdure.contracts.policy import Verdict
from perdure.contracts.run.signals import Decision, HumanInput
from perdure.contracts.run.state import QuestionView, RunStatus
from perdure.contracts.run.turn import Acceptance, ContextFull, ModelTurn, PolicyReview, Summary, Usage
from perdure.contracts.tool import ToolCall, ToolError, ToolOutcome
from perdure.decisions.ids import call_digest
from perdure.decisions.text.formatting import format_approval
from perdure.features.proof.contract import Case, CaseResult, Facts, Score
from perdure.features.proof.report import print_report
from perdure.terminal import event_lines
from perdure.terminal.chat_view import ChatView
from perdure.terminal.console import SafeConsole
from perdure.terminal.prompt import format_input_hint, parse_answer, print_question
from perdure.terminal.report import to_one_line
from perdure.terminal.run_view import RunScreen
from tests.screen import Terminal

REVIEW = PolicyReview(
    tool_use_id="t1",
    tool="refund",
    rule="r",
    model="small",
    verdict=Verdict.deny,
    reason="too much",
    usage=Usage(input=9),
)
SUMMARY = Summary(
    text="So far.",
    tail=20,
    before_tokens=15_000,
    after_tokens=4_000,
    before_messages=30,
    after_messages=13,
    model="small",
)

ASKS = QuestionView(id="q1", kind="question", text="Which?", options=("the start page", "the tide table"))
APPROVAL = QuestionView(
    id="q2", kind="approval", text="charge", options=("approve", "approve_tool", "deny"), call="c0ffee"
)
INPUT = QuestionView(
    id="q9",
    kind="input",
    text="How many?",
    options=("continue", "deny"),
    form={"type": "object", "properties": {"count": {"type": "integer"}}},
)
NUMBERS = QuestionView(id="q3", kind="question", text="How many?", options=("5", "10", "2"))
ARGUMENTS = {"text": "all of it " * 900, "name": "back\u202ewards", "code": "\x1b[31m", "lines": "a\nb"}
WANTED = QuestionView(
    id="q4",
    kind="approval",
    text=format_approval("note", ARGUMENTS),
    options=("approve", "approve_tool", "deny"),
    call=call_digest("note", ARGUMENTS),
)


@pytest.mark.parametrize(
    ("question", "typed", "meant"),
    [
        (ASKS, "2", {"text": "the tide table"}),
        (ASKS, " the visit page ", {"text": "the visit page"}),
        (ASKS, "2 of them", {"text": "2 of them"}),
        (ASKS, "7", {"text": "7"}),
        (NUMBERS, "2", {"text": "2"}),  # the option, not the second one
        (INPUT, "2", {"text": "2"}),  # the value of the form's field, not the second option
        (INPUT, "deny", {"decision": Decision.deny}),
        (APPROVAL, "1", {"decision": Decision.approve, "call": "c0ffee"}),
        (APPROVAL, "Deny", {"decision": Decision.deny, "call": "c0ffee"}),
        (APPROVAL, "deny", {"decision": Decision.deny, "call": "c0ffee"}),
        (APPROVAL, "3 too dear", {"decision": Decision.deny, "text": "too dear", "call": "c0ffee"}),
        (APPROVAL, "deny too dear", {"decision": Decision.deny, "text": "too dear", "call": "c0ffee"}),
        (APPROVAL, "maybe", {"text": "maybe"}),  # no decision: the run refuses it, and says what it takes
    ],
)
def test_a_typed_line_is_read_as_an_option_a_decision_or_a_text(
    question: QuestionView, typed: str, meant: dict[str, Any]
) -> None:
    answer = parse_answer(question, typed)
    assert answer.question_id == question.id
    assert answer.model_dump(exclude_none=True, exclude={"question_id", "shown"}) == meant
    assert answer.shown == (question.text if "call" in meant else None)


@pytest.mark.parametrize(
    "happening",
    [
        ModelReplied(
            "plan", 1, ModelTurn(content=[{"type": "text", "text": "First\n\nthis."}], model="m", usage=Usage())
        ),
        ToolCallFinished(ToolCall(step=1, tool="note", tool_use_id="u", arguments={}), ToolOutcome(result="x" * 5000)),
    ],
)
def test_without_a_screen_a_turn_and_a_call_are_one_line_each(happening: RunEvent) -> None:
    (line,) = event_lines.format_event(happening, None)
    assert isinstance(line, Text)
    assert "\n" not in line.plain


THOUGHTFUL = ModelReplied(
    "plan",
    1,
    ModelTurn(
        content=[
            {"type": "thinking", "thinking": "First\nI [look]. " + "word " * 100, "signature": "s"},
            {"type": "text", "text": "so"},
        ],
        model="m",
        usage=Usage(),
    ),
)


def test_thinking_is_shown_whole_on_request() -> None:
    seen = StringIO()
    RunScreen(SafeConsole(file=seen, width=120), shows_thinking=True).show_event(THOUGHTFUL)
    assert seen.getvalue().count("word ") > 100


def test_thinking_is_folded_to_one_line() -> None:
    for width in (None, 100):
        lines = [line.plain for line in event_lines.format_event(THOUGHTFUL, width) if isinstance(line, Text)]
        [line] = [line for line in lines if "thought" in line]
        assert line.startswith("  ✻ thought, 103 words: First I [look]. word")
        assert len(line) < 120
    seen = StringIO()
    ChatView(SafeConsole(file=seen, width=120)).show_event(THOUGHTFUL)
    assert seen.getvalue().count("✻ thought") == 1


@pytest.mark.parametrize("content", [[], [{"type": "thinking", "thinking": "", "signature": "s"}]])
def test_thinking_that_the_provider_does_not_show_has_no_line(content: list[dict[str, Any]]) -> None:
    reply = ModelReplied("plan", 1, ModelTurn(content=content, model="m", usage=Usage()))
    assert not any("thought" in str(line) for line in event_lines.format_event(reply, 100))


def test_a_reply_names_the_searches_of_the_provider_and_what_it_cites() -> None:
    citation = {"type": "web_search_result_location", "url": "https://a.example/[x]"}
    content = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "agents"}},
        {"type": "text", "text": "They last.", "citations": [citation, citation]},
    ]
    reply = ModelTurn(content=content, model="m", usage=Usage(input=1, output=2, searches=2), cost_usd=0.02)
    lines = [str(line) for line in event_lines.format_event(ModelReplied("reflect", 2, reply), None)]
    assert "1 → 2 tokens, 2 web searches · USD 0.0200" in lines[0]
    assert lines[1:] == ["  ⌕ web_search agents", "  cites https://a.example/[x]"]


def test_an_end_without_a_hand_off_ends_with_its_reason() -> None:
    seen = StringIO()
    RunScreen(Console(file=seen, width=120)).show_end(RunEnd(RunStatus.cancelled, kind="Terminated", message="by eva"))
    assert seen.getvalue().splitlines()[1:] == ["  Terminated: by eva"]


REFUSED = ToolCallRefused(
    "delegate", "toolu_1", None, "delegate", ToolError(kind="unknown_agent", message="no such peer")
)


def test_an_answer_given_here_is_not_shown_again() -> None:
    seen = StringIO()
    screen = RunScreen(Console(file=seen, width=120))
    own = screen.note_answer(HumanInput(question_id="q1", text="the second one"))
    screen.show_event(AnswerReceived(own))
    assert seen.getvalue() == ""
    screen.show_event(AnswerReceived(own))  # somebody else, to a later question
    assert "the second one" in seen.getvalue()


@pytest.mark.parametrize(
    ("happening", "says"),
    [
        (ContextFilled(ContextFull(tokens=15_000, window=20_000, messages=30)), "about 15,000 of 20,000"),
        (OutcomeChecked(Acceptance(rejection="no source")), "the outcome was not accepted: no source"),
        (OutcomeChecked(Acceptance()), "accepted"),
        (CallsReviewed((REVIEW,)), "review of refund"),
        (CallsReviewed((REVIEW,)), "deny: too much"),
        (CallsReviewed((REVIEW.evolve(verdict=None, reason=""),)), "no verdict"),
        (ContextCompacted(SUMMARY), "30 → 13 messages, about 15,000 → 4,000 tokens: summarised by small"),
        (ContextCompacted(SUMMARY.evolve(model="")), "truncated without a summary"),
        (ContextCompacted(SUMMARY.evolve(tail=0)), "nothing to summarise"),
        (
            NoticeAdded({"event": "agent.guardrail.escalated", "ladder": "thrash", "stage": "nudge"}),
            "loop detected: the model is asked to try something else",
        ),
        (NoticeAdded({"event": "agent.exhaustion.soft_limit"}), "one last turn"),
        (NoticeAdded({"event": "agent.guardrail.escalated", "ladder": "recovery", "stage": "prune"}), ""),
        (REFUSED, "✗ delegate  unknown_agent: no such peer"),
        (AnswerReceived(HumanInput(decision=Decision.approve, by="eva")), "← temporal, as eva  approve"),
        (AnswerReceived(HumanInput(text="the second one", sender=CLI)), "← cli  the second one"),
        (
            AnswerReceived(
                HumanInput(decision=Decision.approve, by="eva", arguments={"cents": 900, "to": "x"}, text="as agreed"),
                {"cents": 100, "to": "x", "note": "a"},
            ),
            '← temporal, as eva  approve, cents: 100 → 900, note: "a" → none: as agreed',
        ),
        (
            AnswerRejected(HumanInput(decision=Decision.approve, by="ann"), "this one is not signed"),
            "✗ not taken from temporal, as ann  approve: this one is not signed",
        ),
        (
            AnswerReceived(HumanInput(text="5", by="eva", sender=Sender(door="gateway", token="eva"))),
            "← eva (gateway)  5",
        ),
    ],
)
def test_each_notice_is_one_line(happening: RunEvent, says: str) -> None:
    seen = StringIO()
    RunScreen(Console(file=seen, width=120)).show_event(happening)
    assert says in seen.getvalue()
    assert len(seen.getvalue().splitlines()) == bool(says)


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_the_whole_call_is_shown_before_it_is_approved(columns: int) -> None:
    seen = Terminal()
    console = SafeConsole(file=seen, width=columns, force_terminal=True, no_color=True, _environ={"TERM": "xterm"})
    print_question(console, WANTED)
    said = re.sub(r"\x1b\[[0-9;]*m", "", seen.getvalue())
    assert all(len(line) <= columns for line in said.splitlines())
    shown = "".join(said.split())
    exact = json.dumps(ARGUMENTS, indent=2, ensure_ascii=False).replace("\u202e", "[U+202E]")
    exact = exact.replace(r'"a\nb"', '"a" "b"')  # a text of several lines is shown line by line
    assert "".join(exact.split()) in shown
    assert "approveacall:note" in shown
    assert [line.split()[:2] for line in said.splitlines()[-3:]] == [
        ["1", "approve"],
        ["2", "approve_tool"],
        ["3", "deny"],
    ]


def test_a_question_that_imitates_an_approval_is_introduced_as_the_agents() -> None:
    for seen in (StringIO(), Terminal()):
        imitation = ASKS.evolve(text="approve a call: refund 5")
        print_question(SafeConsole(file=seen, width=80, _environ={"TERM": "xterm"}), imitation)
        assert "? the agent asks: approve a call: refund 5" in re.sub(r"\x1b\[[0-9;]*m", "", seen.getvalue())


def test_a_json_event_is_one_line_with_any_line_separator() -> None:
    line = event_to_json(NoticeAdded({"event": "first\u2028second\x85third"}))
    assert len(line.splitlines()) == 1
    assert json.loads(line)["event"]["event"] == "first\u2028second\x85third"


def test_without_a_terminal_a_question_is_one_line() -> None:
    seen = StringIO()
    print_question(SafeConsole(file=seen, width=60), WANTED)
    print_question(SafeConsole(file=seen, width=60), ASKS.evolve(text="Which\none?"))
    first, second = seen.getvalue().splitlines()
    assert "back[U+202E]wards" in first
    assert ARGUMENTS["text"].strip() in first
    assert second == "? the agent asks: Which one? · the start page, the tide table"


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (ASKS, "type a number from 1 to 2 or your own words; Ctrl-D leaves the question open"),
        (APPROVAL, "type a number from 1 to 3; Ctrl-D leaves the question open"),
        (NUMBERS, "type an option as shown or your own words; Ctrl-D leaves the question open"),
        (ASKS.evolve(options=()), "type your own words; Ctrl-D leaves the question open"),
        (ASKS.evolve(kind="choice"), "type a number from 1 to 2; Ctrl-D leaves the question open"),
    ],
)
def test_the_hint_lists_the_possible_answers(question: QuestionView, says: str) -> None:
    assert format_input_hint(question) == says


@pytest.mark.parametrize("file", [StringIO, Terminal])
def test_the_end_has_the_totals(file: type[StringIO]) -> None:
    seen = file()
    screen = RunScreen(SafeConsole(file=seen, width=100, no_color=True, _environ={"TERM": "xterm"}))
    start = datetime(2026, 1, 1, tzinfo=UTC)
    reply = ModelTurn(
        content=[],
        stop_reason="x",
        model="m",
        usage=Usage(input=100, cache_read=300, output=10),
        duration_ms=900,
        cost_usd=0.0123,
        pieces=3,
    )
    call = ToolCall(step=1, tool="note", tool_use_id="u", arguments={})
    screen.show_event(RunStarted("go", at=start))
    screen.show_event(ModelReplied("plan", 1, reply, at=start + timedelta(seconds=3)))
    outcome = ToolOutcome(result="x", duration_ms=1500)
    screen.show_event(ToolCallFinished(call, outcome, at=start + timedelta(seconds=75)))
    screen.show_end(RunEnd(RunStatus.completed, event={"type": "agent.completed", "payload": {"outcome": "[done]"}}))
    said = re.sub(r"\x1b\[[0-9;]*m", "", seen.getvalue())
    assert "◆ plan  turn 1 · 400 (75% cached) → 10 tokens · USD 0.0123 · 0.9 s · m · 3 pieces" in said
    assert "✓ note  step 1 · 1.5 s" in said
    assert "■ completed  1 step · 1 turn · 400 (75% cached) → 10 tokens · USD 0.0123 · 1:15 min" in said
    assert "[done]" in said


def test_what_is_known_of_a_cost_is_shown_with_the_tokens_of_the_models_without_a_price() -> None:
    seen = StringIO()
    screen = RunScreen(SafeConsole(file=seen, width=100))
    for turn, (model, cost) in enumerate([("[red]m", None), ("dear", 0.0123), ("[red]m", None)], 1):
        reply = ModelTurn(content=[], stop_reason="x", model=model, usage=Usage(input=900), cost_usd=cost)
        screen.show_event(ModelReplied("plan", turn, reply, at=datetime(2026, 1, 1, tzinfo=UTC)))
    screen.show_end(RunEnd(RunStatus.completed))
    assert "USD 0.0123 and 1,800 tokens of [red]m without a price in [prices] · 0.0 s" in seen.getvalue()


@pytest.mark.parametrize(
    ("costs", "says"),
    [
        ((0.5, 0.25), "20 tokens, USD 0.7500 in all"),
        ((0.5, None), "20 tokens, USD 0.5000 and 1 run with a model without a price in [prices] in all"),
        ((None, None), "20 tokens, USD unknown (a model has no price in [prices]) in all"),
    ],
)
def test_an_evaluation_shows_what_is_known_of_its_cost(costs: tuple[float | None, ...], says: str) -> None:
    facts = [Facts(status="completed", tokens=10, cost_usd=cost) for cost in costs]
    scores = [Score(run_id="a", why=(), facts=each, seconds=1.0) for each in facts]
    seen = StringIO()
    print_report(SafeConsole(file=seen, width=200), [CaseResult(1, Case(goal="go"), score) for score in scores], 1.0)
    assert says in seen.getvalue()


def test_a_chat_escapes_hidden_characters_of_an_answer() -> None:
    seen = StringIO()
    page = ChatView(SafeConsole(file=seen, width=80))
    page.show_end(
        RunEnd(RunStatus.completed, event={"type": "agent.completed", "payload": {"outcome": "pay\uffa0\u202e9"}})
    )
    assert "pay[U+FFA0][U+202E]9" in seen.getvalue()


def test_the_list_escapes_hidden_characters() -> None:
    assert to_one_line("a\u202e\uffa0b") == "a[U+202E][U+FFA0]b"

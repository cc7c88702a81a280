"""The walk over a run's events, and its parts for the AI SDK: what opens closes, in each order of events."""

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.model.turn import SHOWN_TAIL
from perdure.activities.run.outcome import RunEnd
from perdure.client import run_events
from perdure.client.course.moves import CallClosed, CallOpened, Move, StepClosed, StepOpened, TextClosed, TextOpened
from perdure.client.course.walk import MAX_PARTIAL, Walk
from perdure.client.run_events import RunEvent, SubtaskMove, TimedEvent
from perdure.contracts.media import StoredMedia
from perdure.contracts.run.signals import Decision, HumanInput
from perdure.contracts.run.state import QuestionView, RunStatus
from perdure.contracts.run.turn import ModelTurn, Usage
from perdure.contracts.tool import ToolCall, ToolError, ToolOutcome
from perdure.features.delegation.contract import DelegationState
from perdure.features.delegation.events import DelegationFinished
from perdure.features.web_ui.messages import to_message
from perdure.features.web_ui.parts import PartWriter

Json = dict[str, Any]
AT = datetime(2026, 11, 28, tzinfo=UTC)
DONE = RunEnd(RunStatus.completed, {"type": "agent.completed", "payload": {"outcome": "Done.", "artifacts": []}})


def replied(*content: Json, turn: int = 1) -> run_events.ModelReplied:
    return run_events.ModelReplied("plan", turn, ModelTurn(content=list(content), model="m", usage=Usage()))


def text(said: str, **more: Any) -> Json:
    return {"type": "text", "text": said, **more}


def use(number: int = 0, name: str = "look", **arguments: Any) -> Json:
    return {"type": "tool_use", "id": f"use{number}", "name": name, "input": arguments}


def call(number: int = 0, step: int = 1, **more: Any) -> ToolCall:
    return ToolCall(**{"step": step, "tool": "look", "tool_use_id": f"use{number}", "arguments": {}, **more})


def approval(number: int = 1, **more: Any) -> QuestionView:
    fields = {"kind": "approval", "text": "look?", "options": ("approve", "deny"), "tool_use_id": "use0", "call": "c1"}
    return QuestionView(id=f"q{number}", **{**fields, **more})


def asks(*questions: QuestionView) -> run_events.WaitStarted:
    return run_events.WaitStarted(RunStatus.waiting_on_human, "human: approve look", questions)


def moves_of(*events: TimedEvent, end: RunEnd | None = DONE) -> list[Move]:
    walk = Walk()
    moves = [move for event in events for move in walk.read(cast(RunEvent, event))]
    return [*moves, *walk.end(end)] if end else moves


def parts_of(*events: TimedEvent, end: RunEnd | None = DONE, version: int = 6) -> list[Json]:
    writer = PartWriter("r1", version)
    return [writer.begin(), *(part for move in moves_of(*events, end=end) for part in writer.write(move))]


def message_of(*events: TimedEvent, **more: Any) -> list[Json]:
    parts: list[Json] = to_message(parts_of(*events, **more))["parts"]
    return parts


def kinds(parts: Iterable[Json]) -> list[str]:
    return [part["type"] for part in parts]


def long_message(steps: int) -> list[Json]:
    """A message of so many steps, each with a text and a call."""

    def events() -> Iterator[RunEvent]:
        for turn in range(1, steps + 1):
            yield run_events.ModelCallStarted("plan", turn)
            yield replied({"type": "thinking", "thinking": "hm"}, text("word " * 20), use(turn, what="x"), turn=turn)
            yield run_events.ToolCallFinished(call(turn, turn), ToolOutcome(result="it is here " * 5))

    return parts_of(*events())


STARTED = run_events.ModelCallStarted("plan", 1)


# ---- texts


def test_the_text_so_far_becomes_what_is_new() -> None:
    parts = parts_of(
        STARTED,
        run_events.PartialText("Pla"),
        run_events.PartialText("Plan: loo"),
        replied(text("Plan: look."), use()),
    )
    assert [part["delta"] for part in parts if part["type"] == "text-delta"] == ["Pla", "n: loo", "k.", "Done."]
    assert kinds(message_of(STARTED, replied(text("Plan: look."), use()))) == [
        "step-start",
        "text",
        "dynamic-tool",
        "text",
    ]


def test_the_outcome_is_not_said_twice() -> None:
    assert [part["text"] for part in message_of(STARTED, replied(text("Done."))) if part["type"] == "text"] == ["Done."]


@pytest.mark.parametrize(("version", "texts"), [(6, ["Onc", "Twice."]), (7, ["Twice."])])
def test_a_text_that_begins_again_is_taken_back_if_the_client_can(version: int, texts: list[str]) -> None:
    events = [
        STARTED,
        run_events.PartialText("Onc"),
        run_events.ActivityRetrying("plan", 2, "its worker died"),
        run_events.PartialText("Twi"),
        replied(text("Twice.")),
    ]
    shown = [part["text"] for part in message_of(*events, version=version) if part["type"] == "text"]
    assert shown == [*texts, "Done."]


@pytest.mark.parametrize(("version", "texts"), [(6, ["Onc", "Twice."]), (7, ["Twice."])])
def test_a_reply_that_is_another_than_its_beginning_stands_alone(version: int, texts: list[str]) -> None:
    events = [STARTED, run_events.PartialText("Onc"), replied(text("Twice."))]
    shown = [part["text"] for part in message_of(*events, version=version) if part["type"] == "text"]
    assert shown == [*texts, "Done."]


def test_a_long_text_comes_by_its_end() -> None:
    whole = " ".join(map(str, range(2000)))
    assert MAX_PARTIAL == SHOWN_TAIL
    partial = [run_events.PartialText(whole[:at][-MAX_PARTIAL:]) for at in range(500, len(whole), 500)]
    assert message_of(STARTED, *partial, replied(text(whole)))[1]["text"] == whole
    # One that is joined in its middle has no beginning yet: the reply has it.
    assert kinds(parts_of(STARTED, *partial[5:], end=None)) == ["start", "start-step"]
    assert message_of(STARTED, *partial[5:], replied(text(whole)))[1]["text"] == whole


def test_what_is_heard_after_the_reply_is_of_no_other_step() -> None:
    late = run_events.PartialText("Plan: lo", turn=1)
    second = run_events.ModelCallStarted("reflect", 2)
    events = [STARTED, replied(text("Plan: look."), use()), late, second, late, replied(text("Done."), turn=2)]
    assert [part["text"] for part in message_of(*events) if part["type"] == "text"] == ["Plan: look.", "Done."]


def test_reasoning_and_sources_are_parts_of_their_own() -> None:
    cited = {"type": "web_search_result_location", "url": "https://a.example/", "title": "A", "cited_text": "x"}
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "a"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s1"}
    found["content"] = [
        {"type": "web_search_result", "url": "https://a.example/", "title": "A", "encrypted_content": "…"}
    ]  # type: ignore[assignment]
    parts = message_of(
        STARTED,
        replied(
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "…"},
            search,
            found,
            text("It says "),
            text("x", citations=[cited, cited]),
        ),
    )
    assert kinds(parts) == ["step-start", "reasoning", "dynamic-tool", "text", "source-url", "text"]
    assert (parts[1]["text"], parts[3]["text"]) == ("hm", "It says x")
    assert parts[2]["output"] == [{"url": "https://a.example/", "title": "A"}]
    assert (parts[4]["url"], parts[4]["title"]) == ("https://a.example/", "A")


# ---- calls


def test_each_way_in_which_a_call_ends_closes_it() -> None:
    refused = ToolError(kind="denied", message="a person denied this call")
    events: list[RunEvent] = [
        STARTED,
        replied(*map(use, range(6)), use(9, "get_journal")),
        run_events.ToolCallStarted(call(3, 4, nonce="n")),
        run_events.ToolCallFinished(call(0), ToolOutcome(result={"a": 1})),
        run_events.ToolCallFinished(call(1), ToolOutcome(status="error", error=ToolError(kind="x", message="no"))),
        run_events.ToolCallRefused("look", "use2", 3, "look", refused),
        run_events.ToolCallFinished(call(3, 4, nonce="n"), ToolOutcome(result="handed out")),
        run_events.ToolResultReceived(4, "look", ToolOutcome(result="from outside")),
        run_events.ActivityFailed("look · step 5", "its worker died", "use4"),
        run_events.ModelCallStarted("reflect", 2),
        replied(use(6), turn=2),
    ]
    calls = {part["toolCallId"]: part for part in message_of(*events) if part["type"] == "dynamic-tool"}
    assert {name: (each["state"], each.get("output", each.get("errorText"))) for name, each in calls.items()} == {
        "use0": ("output-available", {"a": 1}),
        "use1": ("output-error", "no"),
        "use2": ("output-denied", None),
        "use3": ("output-available", "from outside"),
        "use4": ("output-error", "its worker died"),
        "use5": ("output-available", None),
        "use6": ("output-error", "the run ended before the call did"),
        "use9": ("output-available", None),
    }


def test_a_call_on_another_workers_queue_is_found_by_what_it_is() -> None:
    queued = call(0, tool_use_id="", arguments={"what": "x"})
    events = [STARTED, replied(use(0, what="x")), run_events.ToolCallFinished(queued, ToolOutcome(result=7))]
    [shown] = [part for part in message_of(*events) if part["type"] == "dynamic-tool"]
    assert (shown["state"], shown["output"]) == ("output-available", 7)


def test_calls_that_end_the_run_or_ask_are_no_calls() -> None:
    events = [STARTED, replied(use(0, "finish", outcome="Done."), use(1, "ask_human", question="?"))]
    assert kinds(message_of(*events)) == ["step-start", "text"]


def test_media_of_a_result_are_files() -> None:
    media = StoredMedia(sha256="0" * 64, media_type="image/png", bytes=3)
    events = [STARTED, replied(use()), run_events.ToolCallFinished(call(), ToolOutcome(media=(media,)))]
    [file] = [part for part in message_of(*events) if part["type"] == "file"]
    assert (file["mediaType"], file["url"]) == ("image/png", f"/v1/runs/r1/media/{'0' * 64}")


# ---- people


def test_what_a_person_approves_has_no_invisible_characters() -> None:
    hidden = "to \u202eyou\u2066 and \u200bme"
    events = [STARTED, replied(use(0, to=hidden)), asks(approval(text=hidden, arguments={"to": hidden}))]
    shown = str([part for part in parts_of(*events, end=None) if "input" in part or "data" in part])
    assert "you" in shown
    assert not {"\u202e", "\u2066", "\u200b"} & {*json.loads(json.dumps(shown, ensure_ascii=False))}


def test_a_question_is_asked_once_and_a_changed_call_again() -> None:
    changed = approval(call="c2", revision=1)
    parts = parts_of(STARTED, replied(use()), asks(approval()), asks(approval()), asks(changed), end=None)
    assert [part["approvalId"] for part in parts if part["type"] == "tool-approval-request"] == ["r1/q1/c1", "r1/q1/c2"]
    assert kinds(parts).count("data-question") == 2


def test_an_approval_with_other_arguments_changes_the_call() -> None:
    answer = HumanInput(question_id="q1", decision=Decision.approve, arguments={"amount": 1}, by="ann")
    events = [STARTED, replied(use(0, amount=9)), asks(approval()), run_events.AnswerReceived(answer)]
    [shown] = [part for part in message_of(*events, end=None) if part["type"] == "dynamic-tool"]
    assert shown["input"] == {"amount": 1}


@pytest.mark.parametrize("end", ["answered", "expired", "withdrawn"])
def test_a_question_that_closed_unseen_still_has_its_end(end: str) -> None:
    events = [STARTED, replied(use()), asks(), run_events.QuestionClosed(approval(), end, AT)]
    [asked] = [part for part in message_of(*events, end=None) if part["type"] == "data-question"]
    assert (asked["data"]["status"], asked["data"]["id"]) == (end, "q1")


def test_seven_hears_of_an_approval_that_was_given_elsewhere() -> None:
    answer = HumanInput(question_id="q1", decision=Decision.approve, by="ann")
    events = [STARTED, replied(use()), asks(approval()), run_events.WaitEnded(), run_events.AnswerReceived(answer)]
    assert "tool-approval-response" not in kinds(parts_of(*events, end=None))
    [shown] = [part for part in message_of(*events, end=None, version=7) if part["type"] == "dynamic-tool"]
    assert (shown["state"], shown["approval"]) == ("approval-responded", {"id": "r1/q1/c1", "approved": True})


# ---- the rest


def test_subtasks_are_data_and_replaced_as_they_move() -> None:
    task = {"id": "a", "agent": "peer", "run_id": "r1.1-a", "status": "done", "outcome": "x"}
    finished = DelegationFinished(DelegationState.model_validate({"status": "done", "subtasks": [task]}))
    assert finished.subtasks == (SubtaskMove("a", "peer", "r1.1-a", "done", "x"),)
    [shown] = [part for part in message_of(STARTED, finished, finished) if part["type"] == "data-subtask"]
    assert shown["data"] == task


def test_notices_are_not_kept() -> None:
    events = [STARTED, run_events.RateLimitWait("slow down"), run_events.BatchWait("since noon")]
    notices = [part for part in parts_of(*events) if part["type"] == "data-notice"]
    assert [(part["transient"], part["data"]["text"]) for part in notices] == [
        (True, "slow down"),
        (True, "since noon"),
    ]
    assert kinds(message_of(*events)) == ["step-start", "text"]


ENDS = {
    "completed": ("finish", "stop"),
    "escalated": ("finish", "other"),
    "cancelled": ("finish", "other"),
    "failed": ("error", None),
    "timed_out": ("error", None),
}


def ended(status: str) -> RunEnd:
    events = {
        "completed": {"type": "agent.completed", "payload": {"outcome": "Done.", "artifacts": ["artifacts/a b.md"]}},
        "escalated": {"type": "agent.escalated", "payload": {"reason": "stuck", "detail": "no way", "artifacts": []}},
    }
    return RunEnd(RunStatus(status), events.get(status), kind="kind", message="why")


@pytest.mark.parametrize("status", ENDS)
def test_each_end_says_its_status(status: str) -> None:
    parts = parts_of(STARTED, replied(text("hm")), end=ended(status))
    assert (parts[-1]["type"], parts[-1].get("finishReason")) == ENDS[status]
    message = to_message(parts)
    assert message["metadata"]["status"] == status
    if status == "completed":
        assert message["parts"][-1]["url"] == "/v1/runs/r1/artifacts/a%20b.md"
    if status == "escalated":
        assert (message["metadata"]["reason"], message["metadata"]["detail"]) == ("stuck", "no way")


EVENTS: list[RunEvent] = [
    STARTED,
    run_events.ModelCallStarted("reflect", 2),
    run_events.PartialText("Pla"),
    run_events.PartialText("Plan"),
    run_events.PartialText("Other"),
    run_events.ActivityRetrying("plan", 2, "x"),
    replied(text("Plan."), use()),
    replied(use(1), {"type": "thinking", "thinking": "hm"}, turn=2),
    run_events.ToolCallStarted(call()),
    run_events.ToolCallFinished(call(), ToolOutcome(result=1)),
    run_events.ToolCallRefused("look", "use1", None, "look", ToolError(kind="denied", message="no")),
    run_events.ActivityFailed("look", "x", "use1"),
    run_events.ToolResultReceived(1, "look", ToolOutcome(result=2)),
    asks(approval()),
    asks(),
    run_events.WaitEnded(),
    run_events.AnswerReceived(HumanInput(decision=Decision.approve)),
    run_events.QuestionClosed(approval(), "answered", AT),
    run_events.ContinuedAsNew(),
]


@given(st.lists(st.sampled_from(EVENTS), max_size=25), st.sampled_from([6, 7]))
def test_in_any_order_all_that_opens_closes_once(events: list[RunEvent], version: int) -> None:
    """And a client can read the parts: a delta has its text, a result its call."""
    moves = moves_of(*events)
    for opened, closed in ((TextOpened, TextClosed), (StepOpened, StepClosed)):
        balance = 0
        for move in moves:
            balance += isinstance(move, opened) - isinstance(move, closed)
            assert balance in (0, 1)
        assert balance == 0
    calls: set[str] = set()
    for move in moves:
        if isinstance(move, CallOpened):
            calls.add(move.id)
        elif isinstance(move, CallClosed):
            calls.remove(move.id)
    assert calls == set()
    message = to_message(parts_of(*events, version=version))
    assert [part for part in message["parts"] if part.get("state") == "streaming"] == []

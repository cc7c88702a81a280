"""The events of a run for AG-UI: what opens closes, the messages are those of a client, each end says itself."""

import json
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.run.outcome import RunEnd
from perdure.client import run_events
from perdure.client.course.walk import Walk
from perdure.client.run_events import RunEvent, TimedEvent
from perdure.contracts.run.signals import Decision, HumanInput, QuestionKind
from perdure.contracts.run.state import QuestionView
from perdure.contracts.tool import ToolOutcome
from perdure.decisions.run.question import QUESTIONS
from perdure.features.ag_ui.contract import ResumeEntry
from perdure.features.ag_ui.events import StretchWriter, response_schema
from perdure.features.ag_ui.threads import read_answer
from perdure.gateway.problems import ApiError
from tests.ag_ui.conftest import brief, interrupts, one
from tests.web_ui.test_parts import DONE, EVENTS, STARTED, approval, asks, call, ended, moves_of, replied, text, use

Json = dict[str, Any]


def written(*events: TimedEvent, end: RunEnd | None = DONE) -> tuple[list[Json], list[Json]]:
    """The events of a run that ends, and the messages that the writer keeps."""
    writer = StretchWriter("r1", "t1", "s1")
    shown = [writer.begin(), *(event for move in moves_of(*events, end=end) for event in writer.write(move))]
    return shown, writer.messages


def paused(*events: TimedEvent) -> list[Json]:
    walk, writer = Walk(), StretchWriter("r1", "t1", "s1")
    moves = [move for event in events for move in walk.read(cast(RunEvent, event))]
    return [event for move in [*moves, *walk.pause()] for event in writer.write(move)]


def folded(events: list[Json]) -> dict[str, Json]:
    """The messages that a client makes of the events of one stretch. It fails at what the client refuses."""
    messages: dict[str, Json] = {}
    opened: set[tuple[str, str]] = set()
    for event in events:
        kind, _, move = event["type"].rpartition("_")
        name = str(event.get("messageId") or event.get("toolCallId") or event.get("stepName"))
        if kind in ("TEXT_MESSAGE", "REASONING_MESSAGE") and move == "START":
            messages[name] = {"id": name, "role": event["role"], "content": ""}
        elif move == "CONTENT":
            messages[name]["content"] += event["delta"]
            assert event["delta"]
        elif event["type"] == "TOOL_CALL_START":
            function = {"name": event["toolCallName"], "arguments": ""}
            called = {"id": name, "type": "function", "function": function}
            messages[name] = {"id": name, "role": "assistant", "toolCalls": [called]}
        elif event["type"] == "TOOL_CALL_ARGS":
            messages[name]["toolCalls"][0]["function"]["arguments"] += event["delta"]
        elif event["type"] == "TOOL_CALL_RESULT":
            assert event["toolCallId"] in messages
            messages[name] = {"id": name, **{key: event[key] for key in ("toolCallId", "role", "content")}}
        if kind in ("TEXT_MESSAGE", "REASONING_MESSAGE", "REASONING", "TOOL_CALL", "STEP"):
            if move in ("START", "STARTED"):
                assert (kind, name) not in opened
                opened.add((kind, name))
            elif move in ("END", "FINISHED"):
                opened.remove((kind, name))
    assert opened == set()
    return messages


@given(st.lists(st.sampled_from(EVENTS), max_size=25))
def test_in_any_order_the_messages_are_those_that_a_client_makes(events: list[RunEvent]) -> None:
    """But for a text that was taken back, and a call that a person changed: a snapshot follows these."""
    shown, kept = written(*events)
    made = folded(shown)
    assert {each["id"] for each in kept} <= set(made)
    assert [made[each["id"]] for each in kept] == kept
    assert shown[0]["type"] == "RUN_STARTED"
    assert [event["type"] for event in shown].count("RUN_FINISHED") == 1
    assert shown[-1]["type"] == "RUN_FINISHED"


def test_a_text_that_begins_again_has_another_id_and_the_first_one_is_no_message() -> None:
    retry = run_events.ActivityRetrying("plan", 2, "its worker died")
    events = [STARTED, run_events.PartialText("Onc"), retry, run_events.PartialText("Twi"), replied(text("Twice."))]
    shown, kept = written(*events)
    assert [each["content"] for each in folded(shown).values()] == ["Onc", "Twice.", "Done."]
    assert brief(kept) == ["Twice.", "Done."]


def test_a_changed_call_has_its_new_arguments_in_the_messages() -> None:
    answer = HumanInput(question_id="q1", decision=Decision.approve, arguments={"amount": 1}, by="ann")
    events = [STARTED, replied(use(0, amount=9)), asks(approval()), run_events.AnswerReceived(answer)]
    shown, kept = written(*events)
    assert json.loads(kept[0]["toolCalls"][0]["function"]["arguments"]) == {"amount": 1}
    assert one(shown, "perdure/call_changed")["value"]["arguments"] == {"amount": 1}
    assert one(shown, "perdure/answer")["value"]["by"] == "ann"


def test_what_a_person_approves_has_no_invisible_characters() -> None:
    hidden = "to \u202eyou\u2066 and \u200bme"
    shown = paused(STARTED, replied(use(0, to=hidden)), asks(approval(text=hidden, arguments={"to": hidden})))
    assert not {"\u202e", "\u2066", "\u200b"} & {*str([json.loads(json.dumps(event)) for event in shown])}


def test_an_interrupt_names_the_exact_call_its_schema_and_its_time() -> None:
    at = datetime(2026, 11, 28, 12, tzinfo=UTC)
    asked = approval(expires_at=at), QuestionView(id="q2", kind="question", text="Which?", options=("a", "b"))
    shown = paused(STARTED, replied(use()), asks(*asked))
    first, second = interrupts(shown)
    assert (first["id"], first["reason"], first["toolCallId"]) == ("r1/q1/c1", "tool_call", "r1/use0")
    assert first["expiresAt"] == "2026-11-28T12:00:00+00:00"
    assert (second["id"], second["reason"], "toolCallId" in second) == ("r1/q2/", "input_required", False)
    assert second["responseSchema"] == {"type": "string", "examples": ["a", "b"]}
    assert second["metadata"]["perdure"]["kind"] == "question"


@pytest.mark.parametrize("kind", QuestionKind)
def test_each_kind_of_question_has_a_schema(kind: QuestionKind) -> None:
    options = tuple(map(str, QUESTIONS[kind].decisions)) or ("a",)
    schema = response_schema(QuestionView(id="q1", kind=kind, text="?", options=options))
    assert schema["type"] == ("object" if QUESTIONS[kind].decisions else "string")


ASKED = {
    "question": QuestionView(id="q1", kind="question", text="?", options=()),
    "approval": approval(),
    "doubt": QuestionView(id="q1", kind="resume_unsafe", text="?", options=("run_again",)),
    "form": QuestionView(id="q1", kind="input", text="?", options=(), form={"type": "object"}),
}


@pytest.mark.parametrize(
    ("asked", "payload", "answer"),
    [
        ("question", "red", {"text": "red"}),
        ("question", {"text": "red"}, {"text": "red"}),
        ("question", False, {"text": "false"}),
        ("question", None, {"text": "null"}),
        ("approval", True, {"decision": "approve"}),
        ("approval", False, {"decision": "deny"}),
        ("approval", "approve_tool", {"decision": "approve_tool"}),
        ("approval", {"approved": False, "text": "too much"}, {"decision": "deny", "text": "too much"}),
        ("approval", {"approved": True, "editedArgs": {"a": 1}}, {"decision": "approve", "arguments": {"a": 1}}),
        ("doubt", {"decision": "use_result", "text": "7"}, {"decision": "use_result", "text": "7"}),
        ("form", {"name": "ann"}, {"text": '{"name": "ann"}'}),
        ("form", False, {"decision": "deny"}),
    ],
)
def test_a_payload_is_an_answer(asked: str, payload: Any, answer: Json) -> None:
    given = read_answer(ASKED[asked], payload)
    assert given.model_dump(exclude_defaults=True) == answer


@pytest.mark.parametrize(
    ("asked", "payload", "words"),
    [
        ("approval", {"approved": True, "decision": "deny"}, "either approved or decision"),
        ("approval", {"decision": "perhaps"}, "decision"),
        ("approval", {"forged": 1}, "forged"),
        ("doubt", True, "run_again, use_result, give_up"),
        ("question", "x" * 200_001, "200000"),
    ],
)
def test_a_payload_that_is_none_is_refused_in_a_line(asked: str, payload: Any, words: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_answer(ASKED[asked], payload)
    assert (refused.value.status_code, words in str(refused.value.detail)) == (422, True)


def test_an_answer_without_a_payload_is_none() -> None:
    entry = ResumeEntry.model_validate({"interruptId": "r/1/q1/c1", "status": "resolved"})
    assert (entry.run_id, entry.question_id) == ("r/1", "q1")
    with pytest.raises(ApiError, match="no payload"):
        read_answer(ASKED["approval"], entry.payload)


ENDS = {
    "completed": ("RUN_FINISHED", "success"),
    "escalated": ("RUN_FINISHED", "success"),
    "cancelled": ("RUN_FINISHED", "cancelled"),
    "failed": ("RUN_ERROR", None),
    "timed_out": ("RUN_ERROR", None),
}


@pytest.mark.parametrize("status", ENDS)
def test_each_end_says_its_status(status: str) -> None:
    [*_, last], _ = written(STARTED, replied(text("hm"), use()), end=ended(status))
    assert (last["type"], last.get("outcome", {}).get("type")) == ENDS[status]
    assert (last["result"]["status"] if "result" in last else last["code"]) == status
    if status == "completed":
        assert last["result"]["artifacts"] == ["/v1/runs/r1/artifacts/a%20b.md"]
    if status == "escalated":
        assert (last["result"]["reason"], last["result"]["detail"]) == ("stuck", "no way")
    if status == "failed":
        assert last["message"] == "why"


def test_a_result_is_text_or_json() -> None:
    events = [STARTED, replied(use(0), use(1))]
    ends = [run_events.ToolCallFinished(call(at), ToolOutcome(result=result)) for at, result in ((0, "it"), (1, [1]))]
    shown, _ = written(*events, *ends)
    assert [event["content"] for event in shown if event["type"] == "TOOL_CALL_RESULT"] == ["it", "[1]"]

"""What a span says: names, numbers and kinds, and nothing of the conversation."""

from typing import Any

from perdure.contracts.run.turn import ModelTurn, TurnRequest, Usage
from perdure.contracts.tool import Effect, ToolCall, ToolOutcome, error_outcome
from perdure.decisions.telemetry import (
    event_attributes,
    input_message,
    request_attributes,
    request_content,
    result_attributes,
    result_content,
    run_attributes,
    run_content,
    span_name,
)

CALL = ToolCall(step=3, tool="charge", tool_use_id="toolu_1", arguments={"card": "4711"}, effect=Effect.once)
USAGE = Usage(input=5, output=2, cache_read=100, cache_write=10)
TURN = ModelTurn(
    content=[{"type": "text", "text": "a secret"}], stop_reason="tool_use", model="m", usage=USAGE, duration_ms=1
)


def test_a_call_is_named_by_its_tool_and_keeps_its_arguments_to_itself() -> None:
    said = request_attributes("call_tool", CALL)
    assert (span_name("call_tool", CALL), said["gen_ai.tool.name"]) == ("execute_tool charge", "charge")
    assert "4711" not in str(said)


def test_a_turn_counts_what_the_cache_took_part_in_as_read() -> None:
    said = result_attributes(TURN)
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (115, 2)
    assert said["gen_ai.usage.cache_read.input_tokens"] == 100
    assert said["gen_ai.response.finish_reasons"] == ("tool_use",)
    assert "a secret" not in str(said)


def test_a_turn_is_a_chat_by_the_convention_and_other_work_is_not() -> None:
    request = TurnRequest(turn=1, length=1, head="h", definition="d")
    assert request_attributes("plan", request)["gen_ai.operation.name"] == "chat"
    assert (span_name("plan", request), request_attributes("open_run", None)) == ("plan", {})


def test_an_outcome_that_is_an_error_tells_its_kind_and_not_its_words() -> None:
    assert result_attributes(ToolOutcome(result="a secret")) == {"perdure.outcome": "ok"}
    assert result_attributes(error_outcome("denied", "a secret")) == {
        "perdure.outcome": "error",
        "error.type": "denied",
    }


def test_an_event_tells_its_numbers_and_words_and_no_sentence() -> None:
    event = {"event": "agent.tool.retry", "tool": "charge", "attempt": 2, "delay_seconds": None, "why": "card was 4711"}
    assert event_attributes(event) == {"perdure.tool": "charge", "perdure.attempt": 2}


def test_a_span_names_its_run() -> None:
    assert run_attributes("run:a") == {"perdure.run_id": "a", "temporalWorkflowID": "run:a"}


def test_content_is_read_by_the_convention_and_without_thinking() -> None:
    content: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "so"},
        {"type": "tool_use", "id": "t", "name": "look", "input": {"at": "x"}},
    ]
    (message,) = result_content(TURN.evolve(content=content))["gen_ai.output.messages"]
    call = {"type": "tool_call", "id": "t", "name": "look", "arguments": {"at": "x"}}
    assert message["parts"] == [{"type": "text", "content": "so"}, call]
    assert request_content(CALL) == {"gen_ai.tool.call.arguments": {"card": "4711"}}
    assert result_content(ToolOutcome(result="ok")) == {"gen_ai.tool.call.result": "ok"}
    assert (request_content(None), result_content(None)) == ({}, {})


def test_a_message_to_a_model_is_read_by_the_convention_and_media_are_only_named() -> None:
    content: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "found"}]},
        {"type": "tool_result", "tool_use_id": "u", "content": "none"},
        {"type": "image", "source": {"type": "base64", "data": "aGVsbG8="}},
        {"type": "text", "text": "go on"},
    ]
    assert input_message({"role": "user", "content": content}) == {
        "role": "user",
        "parts": [
            {"type": "tool_call_response", "id": "t", "response": [{"type": "text", "content": "found"}]},
            {"type": "tool_call_response", "id": "u", "response": "none"},
            {"type": "image"},
            {"type": "text", "content": "go on"},
        ],
    }
    assert run_content({"payload": {"goal": "look"}}) == {
        "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "look"}]}]
    }

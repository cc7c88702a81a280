"""What is counted, and that labels are bounded whatever was said."""

from perdure.contracts.failures import Escalation, RunFailure, ToolFault
from perdure.contracts.run.turn import Usage
from perdure.contracts.tool import ToolOutcome, error_outcome
from perdure.decisions.telemetry import Count, count_event, count_tokens, count_tool_call


def test_every_event_is_counted_by_its_name() -> None:
    assert count_event("agent.loop.detected", {"tier": "hard"}) == (
        Count("perdure_events", {"event": "agent.loop.detected"}),
    )


def test_a_retry_is_counted_by_its_tool() -> None:
    assert count_event("agent.tool.retry", {"tool": "charge", "step": 4})[1] == Count(
        "perdure_tool_retries", {"tool": "charge"}
    )


def test_the_end_of_a_run_is_counted_with_its_reason() -> None:
    for name, reason in (
        ("completed", ""),
        ("cancelled", ""),
        ("escalated", Escalation.step_budget),
        ("failed", RunFailure.rate_limited),
    ):
        (_, ended) = count_event(f"agent_run.{name}", {"reason": reason or None})
        assert ended == Count("perdure_runs", {"status": name, "reason": reason})


def test_an_unknown_reason_or_kind_counts_as_other() -> None:
    assert count_event("agent_run.failed", {"reason": "it was a Tuesday"})[1].labels["reason"] == "other"
    assert count_tool_call("charge", error_outcome("tuesday", "no"))[0].labels["error"] == "other"


def test_a_call_is_counted_as_what_became_of_it() -> None:
    ok, refused = (
        count_tool_call("charge", ToolOutcome(result=1)),
        count_tool_call("charge", error_outcome(ToolFault.denied, "no")),
    )
    assert ok == (Count("perdure_tool_calls", {"tool": "charge", "status": "ok", "error": ""}),)
    assert refused == (Count("perdure_tool_calls", {"tool": "charge", "status": "error", "error": "denied"}),)


def test_tokens_are_counted_by_direction_and_none_is_not_counted() -> None:
    assert count_tokens("m", Usage(input=7, output=3)) == (
        Count("perdure_tokens", {"model": "m", "direction": "input"}, 7),
        Count("perdure_tokens", {"model": "m", "direction": "output"}, 3),
    )


def test_a_token_that_is_written_for_an_hour_is_counted_once() -> None:
    counts = count_tokens("m", Usage(cache_write=10, cache_write_1h=7))
    assert {count.labels["direction"]: count.by for count in counts} == {"cache_write": 3, "cache_write_1h": 7}

"""Metrics of runs, with names, help texts, buckets and labels, and the attributes of spans.

Labels are bounded: no ids, and no word that a model or an outside system chose. Attributes follow OpenTelemetry's
conventions for generative AI, with `perdure.` for the rest; they hold names, numbers and kinds, and no text of the
conversation.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.contracts.failures import Escalation, RunFailure, ToolFault
from perdure.contracts.run.state import RunStatus
from perdure.contracts.run.turn import ModelTurn, Usage
from perdure.contracts.tool import ToolCall, ToolOutcome
from perdure.decisions.ids import run_id_of_workflow

OTHER = "other"

EVENTS = "perdure_events"
RUNS = "perdure_runs"
TOOL_CALLS = "perdure_tool_calls"
TOOL_RETRIES = "perdure_tool_retries"
TOKENS = "perdure_tokens"
TOOL_DURATION = "perdure_tool_duration"
MODEL_DURATION = "perdure_model_duration"
MODEL_COST = "perdure_model_cost_usd"
BUDGET_REFUSALS = "perdure_budget_refusals"

HELP: Mapping[str, str] = {
    EVENTS: "Structured events, by name.",
    RUNS: "Runs that have ended, by status and reason.",
    TOOL_CALLS: "Tool calls that have ended, by outcome.",
    TOOL_RETRIES: "Attempts of tool calls beyond the first.",
    TOKENS: "Tokens that models read and wrote.",
    TOOL_DURATION: "Seconds that attempts of tool calls took.",
    MODEL_DURATION: "Seconds that attempts of model turns took.",
    MODEL_COST: "US dollars that model turns cost, where the price is known.",
    BUDGET_REFUSALS: "Calls and runs that a budget did not cover, by its name and measure.",
}

# For Prometheus; durations are in seconds. A cost has no counter, as counters are whole numbers: its sum is the money.
BUCKETS: Mapping[str, tuple[float, ...]] = {
    TOOL_DURATION: (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
    MODEL_DURATION: (0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300),
    MODEL_COST: (0.0001, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5),
}

_REASONS = frozenset((*Escalation, *RunFailure))
_FAULTS = frozenset(ToolFault)
_ENDS = {
    f"agent_run.{status}": status
    for status in (RunStatus.completed, RunStatus.escalated, RunStatus.failed, RunStatus.cancelled)
}

MODEL_TURNS = ("plan", "reflect", "summarize")
_WORD = re.compile(r"[\w.:@+-]{1,100}")
_FACTS = {
    "step": "perdure.step",
    "turn": "perdure.turn",
    "model": "gen_ai.request.model",
    "provider": "gen_ai.provider.name",
}


@dataclass(frozen=True)
class Count:
    name: str
    labels: Mapping[str, str]
    by: int = 1


def count_event(name: str, figures: Mapping[str, Any]) -> tuple[Count, ...]:
    """Count an event; a retry also by its tool, and the end of a run also by its status."""
    event = Count(EVENTS, {"event": name})
    if name == "agent.tool.retry":
        return event, Count(TOOL_RETRIES, {"tool": str(figures["tool"])})
    if status := _ENDS.get(name):
        return event, Count(RUNS, {"status": status, "reason": _one_of(_REASONS, figures.get("reason"))})
    return (event,)


def count_tool_call(tool: str, outcome: ToolOutcome) -> tuple[Count, ...]:
    """Count a finished call by its outcome. An error kind from outside that is not known is `other`."""
    error = _one_of(_FAULTS, outcome.error.kind if outcome.error else "")
    return (Count(TOOL_CALLS, {"tool": tool, "status": outcome.status, "error": error}),)


def count_tokens(model: str, usage: Usage) -> tuple[Count, ...]:
    """Count each token once, by its direction."""
    short = {"cache_write": usage.cache_write - usage.cache_write_1h}
    return tuple(
        Count(TOKENS, {"model": model, "direction": direction}, tokens)
        for direction, tokens in {**usage.model_dump(exclude={"is_estimated", "searches"}), **short}.items()
        if tokens
    )


def _one_of(known: Collection[str], word: str | None) -> str:
    if not word:
        return ""
    return word if word in known else OTHER


def span_name(activity_type: str, request: Any) -> str:
    return f"execute_tool {request.tool}" if isinstance(request, ToolCall) else activity_type


def run_attributes(workflow_id: str) -> dict[str, Any]:
    return {"perdure.run_id": run_id_of_workflow(workflow_id), "temporalWorkflowID": workflow_id}


def request_attributes(activity_type: str, request: Any) -> dict[str, Any]:
    if isinstance(request, ToolCall):
        return {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": request.tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": request.tool_use_id,
            "perdure.effect": request.effect.value,
        }
    if activity_type in MODEL_TURNS:
        return {"gen_ai.operation.name": "chat"}
    return {}


def request_content(request: Any) -> dict[str, Any]:
    """Return the arguments of a call, if they are in its request."""
    return {"gen_ai.tool.call.arguments": request.arguments} if isinstance(request, ToolCall) else {}


def result_content(result: Any) -> dict[str, Any]:
    """Return the result of a call, or the text and calls of a model's reply: what it thinks is left out."""
    if isinstance(result, ToolOutcome):
        return {"gen_ai.tool.call.result": result.error.message if result.error else result.result}
    if isinstance(result, ModelTurn):
        parts = [part for block in result.content if (part := _message_part(block))]
        return {"gen_ai.output.messages": [{"role": "assistant", "parts": parts, "finish_reason": result.stop_reason}]}
    return {}


def system_content(system: Sequence[str]) -> list[dict[str, Any]]:
    """Return the parts of a system prompt, as `gen_ai.system_instructions` has them."""
    return [{"type": "text", "content": text} for text in system]


def input_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message to a model, as `gen_ai.input.messages` has it: of media only that they are there."""
    return {"role": message["role"], "parts": [part for block in message["content"] if (part := _message_part(block))]}


def run_content(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the goal of a run, and its outcome, from the event of its end."""
    texts = {
        "gen_ai.input.messages": ("user", event["payload"].get("goal")),
        "gen_ai.output.messages": ("assistant", event["payload"].get("outcome")),
    }
    return {
        name: [{"role": role, "parts": [{"type": "text", "content": text}]}]
        for name, (role, text) in texts.items()
        if text
    }


def _message_part(block: Mapping[str, Any]) -> dict[str, Any] | None:
    match block:
        case {"type": "text", "text": text}:
            return {"type": "text", "content": text}
        case {"type": "tool_use", "id": use, "name": name, "input": arguments}:
            return {"type": "tool_call", "id": use, "name": name, "arguments": arguments}
        case {"type": "tool_result", "tool_use_id": use, "content": str(text)}:
            return {"type": "tool_call_response", "id": use, "response": text}
        case {"type": "tool_result", "tool_use_id": use, "content": [*blocks]}:
            parts = [part for each in blocks if (part := _message_part(each))]
            return {"type": "tool_call_response", "id": use, "response": parts}
        case {"type": "image" | "document" as kind}:
            return {"type": kind}
        case _:
            return None


def fact_attributes(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {_FACTS[name]: value for name, value in facts.items() if name in _FACTS}


def result_attributes(result: Any) -> dict[str, Any]:
    if isinstance(result, ToolOutcome):
        error = {"error.type": result.error.kind} if result.error else {}
        return {"perdure.outcome": result.status, **error}
    attributes: dict[str, Any] = {"perdure.outcome": "ok"}
    if isinstance(usage := getattr(result, "usage", None), Usage):
        attributes |= {
            # The convention counts cache reads and writes as input too.
            "gen_ai.usage.input_tokens": usage.input + usage.cache_read + usage.cache_write,
            "gen_ai.usage.output_tokens": usage.output,
            "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
            "gen_ai.usage.cache_creation.input_tokens": usage.cache_write,
        }
    if model := getattr(result, "model", None):
        attributes["gen_ai.response.model"] = model
    if stop := getattr(result, "stop_reason", None):
        attributes["gen_ai.response.finish_reasons"] = (stop,)
    if (cost := getattr(result, "cost_usd", None)) is not None:
        attributes["perdure.cost_usd"] = cost
    return attributes


def event_attributes(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event's numbers and single words. Sentences are left out: they may quote the conversation."""
    return {
        f"perdure.{name}": value
        for name, value in figures.items()
        if name != "event" and (isinstance(value, int | float) or (isinstance(value, str) and _WORD.fullmatch(value)))
    }

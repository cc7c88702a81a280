"""The attributes of spans: OpenTelemetry's conventions for generative AI, and `perdure.` for the rest.

They hold names, numbers and kinds, and no text of the conversation.
"""

import re
from collections.abc import Mapping
from typing import Any

from contracts.run.turn import Usage
from contracts.tool import ToolCall, ToolOutcome
from decisions.ids import run_id_of_workflow

MODEL_TURNS = ("plan", "reflect", "summarize")
_WORD = re.compile(r"[\w.:@+-]{1,100}")
_FACTS = {"step": "perdure.step", "turn": "perdure.turn", "model": "gen_ai.request.model"}


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
        return {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "anthropic"}
    return {}


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

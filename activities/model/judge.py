"""A model that judges by a rubric: the call with its one tool, the answer, and what it cost."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from temporalio import activity

from activities.project import Project
from activities.providers.options import short_options
from activities.providers.port import Model, ModelCall
from activities.providers.prices import call_cost
from activities.providers.rate_limit import RateLimitedError
from activities.telemetry.metrics import record_facts
from activities.temporal import own_workflow_id
from contracts.agent import Definition, ToolSchema
from contracts.run.turn import Usage
from decisions.run.compaction import complete_usage, estimate_content

VERDICT = "verdict"  # the name of the tool


@dataclass(frozen=True)
class Judgement:
    """A model's answer. `verdicts` are the arguments of its uses of the tool, none if it has not used it."""

    verdicts: tuple[dict[str, Any], ...]
    model: str
    usage: Usage
    cost_usd: float | None


@dataclass(frozen=True)
class JudgeCase:
    """A text to judge. `prompt` is a file of `prompts/`; `fields` are the properties of a verdict, all required.

    The server may be silent for `patience` seconds, and the reply may take `limit` seconds in all.
    """

    prompt: str
    text: str
    fields: dict[str, Any]
    model: str
    patience: float
    limit: float
    on_held: Callable[[str], object] = lambda _: None


async def ask_judge(model: Model, project: Project, definition: Definition, case: JudgeCase) -> Judgement:
    """Ask a model for a verdict on behalf of a run with this definition. Raises as `Model.reply` does."""
    call = _build_call(definition, case)
    record_facts(model=case.model)
    try:
        reply = await model.reply(call)
    except RateLimitedError:
        record_facts(held=True)
        raise
    prompt = sum(estimate_content(message["content"]) for message in call.messages)
    usage = complete_usage(reply.usage, prompt, reply.content)
    name = reply.asked or case.model
    uses = (block["input"] for block in reply.content if block.get("type") == "tool_use" and block["name"] == VERDICT)
    verdicts = tuple(use for use in uses if isinstance(use, dict))
    return Judgement(verdicts, name, usage, call_cost(usage, project.price_of(name)))


def _build_call(definition: Definition, case: JudgeCase) -> ModelCall:
    schema = {"type": "object", "properties": case.fields, "required": [*case.fields], "additionalProperties": False}
    judge = Definition(
        agent=definition.agent,
        model=case.model,
        options=short_options(definition, case.model),
        system=files("activities").joinpath(f"prompts/{case.prompt}").read_text(encoding="utf-8"),
        tools=(ToolSchema(name=VERDICT, description="Give your verdict.", input_schema=schema),),
    )
    return ModelCall(
        definition=judge,
        messages=[{"role": "user", "content": [{"type": "text", "text": case.text}]}],
        force=VERDICT,
        on_held=case.on_held,
        caller=f"{own_workflow_id()}/{activity.info().activity_id}",
        patience=case.patience,
        limit=case.limit,
    )

"""Settings of model calls in a request, and what each Claude model takes of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from temporalio.exceptions import ApplicationError

from perdure.contracts.agent import Definition
from perdure.contracts.failures import RunFailure
from perdure.contracts.model_settings import ModelOptions

_THREE = ("low", "medium", "high")
_FOUR = (*_THREE, "max")
_FIVE = (*_THREE, "xhigh", "max")
MIN_TOP_P_THINKING = 0.95
MAX_SHORT_TOKENS = 2048  # tokens of a summary or a verdict
_WIRE_NAMES = {
    "budget_tokens": "thinking",
    "output_config": "effort",
    "anthropic-beta": "betas",
    "reasoning_effort": "effort",
    "max_completion_tokens": "max_tokens",
}


@dataclass(frozen=True)
class ModelAbilities:
    """The settings that a model takes. `no_thinking` is the type of request that turns thinking off."""

    efforts: tuple[str, ...] = _FIVE
    no_thinking: str | None = "disabled"
    has_adaptive: bool = True
    has_budget: bool = False
    has_sampling: bool = False
    thinks_by_default: bool = True
    can_force_tools: bool = True


_ALWAYS_THINKS = ModelAbilities(no_thinking=None, can_force_tools=False)
# Read in November 2026 from the Claude Platform Docs: "Effort", "Thinking", and the pages "What's new" and "Migration
# guide" of each model since generation 5; for 4.5 to 4.8 also from "Adaptive thinking" of the Amazon Bedrock guide.
# Nothing of it was tried. If the docs are silent about a setting, it counts as taken, and the server decides.
_BY_NAMES = {
    "claude-sonnet-4-5 claude-haiku-4-5": ModelAbilities(
        efforts=(), has_adaptive=False, has_budget=True, has_sampling=True, thinks_by_default=False
    ),
    "claude-opus-4-5": ModelAbilities(
        efforts=_THREE, has_adaptive=False, has_budget=True, has_sampling=True, thinks_by_default=False
    ),
    "claude-sonnet-4-6 claude-opus-4-6": ModelAbilities(
        efforts=_FOUR, has_budget=True, has_sampling=True, thinks_by_default=False
    ),
    "claude-opus-4-7 claude-opus-4-8": ModelAbilities(thinks_by_default=False),
    "claude-sonnet-5 claude-opus-5 claude-haiku-5-5": ModelAbilities(),
    "claude-sonnet-5-5": ModelAbilities(no_thinking="between_tools", can_force_tools=False),
    "claude-fable-5 claude-mythos-5": ModelAbilities(no_thinking=None),
    "claude-opus-5-5 claude-fable-5-1 claude-mythos-5-1 claude-fable-5-2 claude-mythos-5-2": _ALWAYS_THINKS,
}
CLAUDE_ABILITIES: Mapping[str, ModelAbilities] = MappingProxyType(
    {name: abilities for names, abilities in _BY_NAMES.items() for name in names.split()}
)
# Clouds add a region, a vendor, a date and a version: `eu.anthropic.claude-haiku-4-5-20251001-v1:0`.
_CLOUD_NAME = re.compile(r"(?:[a-z-]+\.)*(claude-[a-z0-9-]+?)(?:[-@]\d{8})?(?:-v\d+(?::\d+)?)?")


# By the names of the models' makers, read in November 2026 and not tried.
_READS_PDF = re.compile(r"(?:.*[./])?(?:claude-|gpt-(?:4o|4\.1|[5-9])|o[13](?!-mini)|o4|gemini-)")
_SEES = re.compile(rf"{_READS_PDF.pattern}|.*(?:vision|llava|pixtral|\bvl\b|\dvl\b)", re.IGNORECASE)


def abilities_of(model: str) -> ModelAbilities | None:
    """Return what a Claude model takes, None for another model."""
    match = _CLOUD_NAME.fullmatch(model)
    return CLAUDE_ABILITIES.get(match[1]) if match else None


def visible_blocks(model: str, options: ModelOptions, *, is_chat: bool = False) -> tuple[str, ...]:
    """Return the types of media blocks that are sent to the model: as set, or as known of its name.

    In the Chat Completions API, PDF is sent to hosted models only.
    """
    if isinstance(options.sees, bool):
        sees = options.sees
    else:
        is_listed = any(name == model or name.endswith(f":{model}") for name in options.sees or ())
        sees = is_listed or _SEES.match(model) is not None
    reads_pdf = sees and (not is_chat or _READS_PDF.match(model) is not None)
    return (*(["image"] if sees else []), *(["document"] if reads_pdf else []))


def find_unusable(model: str, options: ModelOptions) -> dict[str, str]:
    """Return the settings that the model does not take, with the reasons. An unknown model takes all."""
    reasons: dict[str, str] = {}
    if isinstance(options.thinking, int) and options.thinking >= options.max_tokens:
        reasons["thinking"] = f"a budget of {options.thinking} must be below max_tokens, {options.max_tokens}"
    abilities = abilities_of(model)
    if abilities is None:
        return reasons
    for name, reason in (
        ("thinking", _reject_thinking(options, abilities)),
        ("effort", _reject_effort(options, abilities)),
        ("temperature", _reject_temperature(options, abilities)),
        ("top_p", _reject_top_p(options, abilities)),
    ):
        if reason:
            reasons[name] = f"{model} {reason}"
    return reasons


def find_unusable_in_chat(options: ModelOptions) -> dict[str, str]:
    """Return the settings that have no form in the Chat Completions API."""
    reasons = {
        "thinking": "has no thinking setting: set effort" if options.thinking else "",
        "betas": "has no betas: leave them out" if options.betas else "",
        "cache": "caches prompts for as long as it likes: set auto" if options.cache not in (None, "auto") else "",
    }
    return {name: f"the Chat Completions API {reason}" for name, reason in reasons.items() if reason}


def _reject_thinking(options: ModelOptions, abilities: ModelAbilities) -> str:
    match options.thinking:
        case "off" if abilities.no_thinking is None:
            return 'always thinks: leave it out, or set effort = "low"'
        case "off" if abilities.thinks_by_default and options.effort in ("xhigh", "max"):
            return "can be without thinking at effort high or lower"
        case "adaptive" if not abilities.has_adaptive:
            return "has no adaptive thinking: set a budget in tokens"
        case int() if not abilities.has_budget:
            return 'takes no thinking budget: set "adaptive", and effort'
        case _:
            return ""


def _reject_effort(options: ModelOptions, abilities: ModelAbilities) -> str:
    if options.effort is None or options.effort in abilities.efforts:
        return ""
    return f"takes effort {', '.join(abilities.efforts)}" if abilities.efforts else "takes no effort"


def _reject_temperature(options: ModelOptions, abilities: ModelAbilities) -> str:
    if options.temperature is None:
        return ""
    if not abilities.has_sampling:
        return "takes no temperature: leave it out"
    return "takes no temperature while it thinks: leave one out" if options.is_thinking else ""


def _reject_top_p(options: ModelOptions, abilities: ModelAbilities) -> str:
    if options.top_p is None:
        return ""
    if not abilities.has_sampling:
        return "takes no top_p: leave it out"
    if options.temperature is not None:
        return "takes temperature or top_p, not both"
    return f"thinks at a top_p of at least {MIN_TOP_P_THINKING}" if _is_below(options) else ""


def _is_below(options: ModelOptions) -> bool:
    return options.is_thinking and options.top_p is not None and options.top_p < MIN_TOP_P_THINKING


def usable_options(model: str, options: ModelOptions) -> ModelOptions:
    """Return the options without those that the model does not take: a fallback may take fewer than the first model."""
    unusable: dict[str, Any] = dict.fromkeys(find_unusable(model, options))
    return options.evolve(**unusable)


def short_options(definition: Definition, model: str) -> ModelOptions:
    """Return the options of a summary or a verdict: short, and without thinking, which newer models do by default."""
    limit, thinking = min(MAX_SHORT_TOKENS, definition.options.max_tokens), "off" if abilities_of(model) else None
    return ModelOptions.model_validate(
        {"max_tokens": limit, "thinking": thinking, "headers": definition.options.headers}
    )


def name_setting(refusal: ApplicationError, options: ModelOptions) -> ApplicationError:
    """Return the refusal of a request with the name of the setting that it is about, if the server names one."""
    names = {**dict.fromkeys(options.extra, "extra"), **{name: name for name in options.model_fields_set}}
    names |= {word: name for word, name in _WIRE_NAMES.items() if name in names}
    setting = next((name for word, name in names.items() if re.search(rf"\b{re.escape(word)}\b", refusal.message)), "")
    if not setting or refusal.type != RunFailure.model_refused:
        return refusal
    message = f"{refusal.message} (see {setting} of [model], or of the agent)"
    return ApplicationError(message, *refusal.details, type=refusal.type, non_retryable=refusal.non_retryable)


def can_force_tools(model: str, options: ModelOptions) -> bool:
    """Return False if the API refuses a forced tool: for some models always, for the others while they think."""
    abilities = abilities_of(model)
    return not usable_options(model, options).is_thinking and (abilities is None or abilities.can_force_tools)


def build_options(model: str, options: ModelOptions) -> dict[str, Any]:
    """Return the arguments of the SDK's call for the options that the model takes."""
    options = usable_options(model, options)
    arguments: dict[str, Any] = {"max_tokens": options.max_tokens}
    if options.thinking is not None:
        arguments["thinking"] = _thinking_form(model, options.thinking)
    if options.effort is not None:
        arguments["output_config"] = {"effort": options.effort}
    headers = options.headers | ({"anthropic-beta": ",".join(options.betas)} if options.betas else {})
    extra = {name: _merge(value, arguments.get(name)) for name, value in options.extra.items()}
    extra |= options.model_dump(include={"temperature", "top_p"})  # the SDK has no arguments for them
    return arguments | ({"extra_headers": headers} if headers else {}) | ({"extra_body": extra} if extra else {})


def _thinking_form(model: str, thinking: str | int) -> dict[str, Any]:
    match thinking:
        case int(budget):
            return {"type": "enabled", "budget_tokens": budget}
        case "off":
            abilities = abilities_of(model)
            return {"type": (abilities.no_thinking if abilities else None) or "disabled"}
        case _:  # newer models return no text unless they are asked for it
            return {"type": "adaptive", "display": "summarized"}


def _merge(extra: Any, own: Any) -> Any:
    """Return `own` with the members of `extra` that it does not have."""
    if isinstance(extra, dict) and isinstance(own, dict):
        return {**extra, **{name: _merge(extra.get(name), value) for name, value in own.items()}}
    return extra if own is None else own

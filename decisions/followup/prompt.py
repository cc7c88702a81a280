"""`prompt`: a person answers, by `perdure answer` or in the Web UI."""

from typing import Any

from pydantic import Field

from decisions.followup.kind import Asked, Kind, KindInput


class PromptInput(KindInput):
    text: str = Field(min_length=1, max_length=4000)
    options: tuple[str, ...] = Field(default=(), max_length=20)


def told(prompt: PromptInput, result: dict[str, Any]) -> str:
    who = result.get("by") or "A person"
    return f"{who} was asked: {prompt.text}\n\nThe answer: {result['text']}"


KIND = Kind(
    name="prompt",
    about="a person's answer: {text, options?, timeoutMs?}",
    input=PromptInput,
    asks=lambda prompt: Asked(prompt.text, prompt.options),
    format_result=told,
)

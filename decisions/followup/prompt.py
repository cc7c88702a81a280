"""`prompt`: a person answers, by `perdure answer` or in the Web UI."""

from typing import Any

from pydantic import Field

from decisions.followup.kind import KindInput, PromptQuestion, TaskKind


class PromptInput(KindInput):
    text: str = Field(min_length=1, max_length=4000)
    options: tuple[str, ...] = Field(default=(), max_length=20)


def format_answer(prompt: PromptInput, result: dict[str, Any]) -> str:
    who = result.get("by") or "A person"
    return f"{who} was asked: {prompt.text}\n\nThe answer: {result['text']}"


KIND = TaskKind(
    name="prompt",
    about="a person's answer: {text, options?, timeoutMs?}",
    input=PromptInput,
    asks=lambda prompt: PromptQuestion(prompt.text, prompt.options),
    format_result=format_answer,
)

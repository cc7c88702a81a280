"""The kinds of task that there are."""

from typing import Any

from pydantic import ValidationError

from contracts.followup import Task
from contracts.value import printable
from decisions import kind_notify, kind_prompt, kind_reply, kind_wait
from decisions.kind import Kind, KindInput

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (kind_reply.KIND, kind_reply.ANY, kind_prompt.KIND, kind_wait.KIND, kind_notify.KIND)
}


def refusal(name: str, given: dict[str, Any]) -> str | None:
    """Why no task can be made of this kind and input; None where it can."""
    if name not in KINDS:
        return f"there is no kind {name[:100]!r}; the kinds are: {', '.join(KINDS)}"
    try:
        KINDS[name].input.model_validate(given)
    except ValidationError as error:
        return f"input of {KINDS[name].name}: {first_of(error)}"
    return None


def read(task: Task) -> tuple[Kind, KindInput]:
    """A task that was taken: its kind, and its input as that reads it."""
    kind = KINDS[task.kind]
    return kind, kind.input.model_validate(task.input)


def first_of(error: ValidationError) -> str:
    """The first fault in one line, without the input."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "input"
    return printable(f"{where}: {first['msg'].removeprefix('Value error, ')}")

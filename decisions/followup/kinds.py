"""The kinds of task that there are."""

from typing import Any

from pydantic import ValidationError

from contracts.followup import Task
from decisions.errors import fault_line
from decisions.followup import notify, prompt, reply, wait
from decisions.followup.kind import Kind, KindInput

KINDS: dict[str, Kind] = {kind.name: kind for kind in (reply.KIND, reply.ANY, prompt.KIND, wait.KIND, notify.KIND)}


def refusal(name: str, given: dict[str, Any], now: int) -> str | None:
    """Why no task can be made of this kind and input at `now` (ms since 1970); None if one can."""
    if name not in KINDS:
        return f"there is no kind {name[:100]!r}; the kinds are: {', '.join(KINDS)}"
    try:
        wanted = KINDS[name].input.model_validate(given)
    except ValidationError as error:
        return f"input of {KINDS[name].name}: {fault_line(error)}"
    why = KINDS[name].rejects(wanted, now)
    return f"input of {KINDS[name].name}: {why}" if why else None


def read(task: Task) -> tuple[Kind, KindInput]:
    """A task that was taken: its kind, and its input as that reads it."""
    kind = KINDS[task.kind]
    return kind, kind.input.model_validate(task.input)

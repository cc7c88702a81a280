"""The table of task kinds."""

from typing import Any

from pydantic import ValidationError

from contracts.followup import Task
from decisions.errors import format_validation_error
from decisions.followup import notify, prompt, reply, wait
from decisions.followup.kind import KindInput, TaskKind

KINDS: dict[str, TaskKind] = {kind.name: kind for kind in (reply.KIND, reply.ANY, prompt.KIND, wait.KIND, notify.KIND)}


def kind_rejection_reason(name: str, arguments: dict[str, Any], now: int) -> str | None:
    """Return the reason, if any, to reject a task of this kind and input at `now` (ms since 1970)."""
    if name not in KINDS:
        return f"there is no kind {name[:100]!r}; the kinds are: {', '.join(KINDS)}"
    try:
        parsed = KINDS[name].input.model_validate(arguments)
    except ValidationError as error:
        return f"input of {KINDS[name].name}: {format_validation_error(error)}"
    reason = KINDS[name].rejects(parsed, now)
    return f"input of {KINDS[name].name}: {reason}" if reason else None


def parse_task(task: Task) -> tuple[TaskKind, KindInput]:
    """Return the kind of an accepted task, and its input as that kind parses it."""
    kind = KINDS[task.kind]
    return kind, kind.input.model_validate(task.input)

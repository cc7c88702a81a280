"""`task.md`: a task as a page, from the state of its run and its delegations (D8).

Only the owner of a page is ever read back.
"""

from collections.abc import Mapping, Sequence

from contracts.delegation import DelegationState, DelegationStatus, SubtaskState, SubtaskStatus
from contracts.mail.delivery import Ack, InboxMessage
from contracts.run.state import RunStatus, RunView
from decisions.text.formatting import truncate

MAX_SUMMARY = 500  # characters of a subtask's result
MAX_GOAL = 4000

_SUBTASKS: Mapping[SubtaskStatus, str] = {
    SubtaskStatus.waiting: "pending",
    SubtaskStatus.running: "dispatched",
    SubtaskStatus.done: "done",
}


def status_of(letter: InboxMessage, view: RunView | None, delegations: Sequence[DelegationState]) -> str:
    """Return planning, in-progress, executing, aggregating, done or failed."""
    if letter.ending is not None:
        return "done" if letter.ending.ack is Ack.succeeded else "failed"
    if view is not None and view.status is RunStatus.completed:
        return "done"
    if view is not None and view.status in (RunStatus.failed, RunStatus.cancelled, RunStatus.timed_out):
        return "failed"
    if any(delegation.status is DelegationStatus.running for delegation in delegations):
        return "executing"
    if delegations:
        return "aggregating"
    return "planning" if view is None or view.turns == 0 else "in-progress"


def render_task_page(
    letter: InboxMessage, task: str, view: RunView | None, delegations: Sequence[DelegationState], result: str
) -> str:
    """Return the page. `task` is the message's body; `result` is the outcome or failure, empty while it runs."""
    mode = "coordinating" if delegations else "direct"
    head = [
        ("from", letter.sender),
        ("mode", mode),
        ("status", status_of(letter, view, delegations)),
        ("run_id", letter.run_id or ""),
    ]
    lines = [*_identity_lines(letter), *_yaml_fields(head), "---", "", "# Task", ""]
    lines += [task[:MAX_GOAL].rstrip() + ("\n\n…" if len(task) > MAX_GOAL else ""), ""]
    for number, delegation in enumerate(delegations, 1):
        title = "## Subtasks" if len(delegations) == 1 else f"## Subtasks {number}"
        lines += [title, "", "| subtask | agent | status |", "| --- | --- | --- |"]
        lines += [
            f"| {_escape_cell(sub.id)} | {_escape_cell(sub.agent)} | {_SUBTASKS.get(sub.status, 'failed')} |"
            for sub in delegation.subtasks
        ]
        lines.append("")
    results = [sub for delegation in delegations for sub in delegation.subtasks if sub.outcome]
    if results:
        lines += ["## Subtask results", "", *(line for sub in results for line in _result_lines(sub))]
    if result:
        lines += ["## Result", "", result.rstrip(), ""]
    return "\n".join(lines)


def is_of_another(page: bytes, letter: InboxMessage) -> bool:
    """Return whether another task owns the page, as tasks of two plans may share a name. Other files have no owner."""
    own = "\n".join([*_identity_lines(letter), ""]).encode(errors="replace")
    return page.startswith(b"---\ntask_id: ") and not page.startswith(own)


def _identity_lines(letter: InboxMessage) -> list[str]:
    """Return the first lines of a task's page, which no other task's page has."""
    ids = (("task_id", letter.task_id), ("subtask_id", letter.subtask_id or ""), ("plan_id", letter.plan_id))
    return ["---", *_yaml_fields(ids)]


def _yaml_fields(fields: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{name}: {_quote_scalar(value)}" for name, value in fields if value]


def _result_lines(subtask: SubtaskState) -> list[str]:
    files = [f"- {path}" for path in subtask.artifacts]
    return [f"### {subtask.id}", "", truncate(subtask.outcome, MAX_SUMMARY), "", *([*files, ""] if files else [])]


def _escape_cell(text: str) -> str:
    return truncate(text, 200).replace("|", "\\|")


def _quote_scalar(text: str) -> str:
    """Return the text as a YAML scalar."""
    if text and all(char.isalnum() or char in "-_." for char in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{truncate(escaped, 500)}"'

"""`task.md`: a task as a page, from the state of its run and its delegations (D8).

Only the owner of a page is ever read back.
"""

from collections.abc import Mapping, Sequence

from contracts.delegation import DelegationState, DelegationStatus, SubtaskState, SubtaskStatus
from contracts.mail.delivery import Ack, Letter
from contracts.run.state import RunStatus, RunView
from decisions.text.formatting import cut

MOST_SUMMARY = 500  # characters of a subtask's result
MOST_GOAL = 4000

_SUBTASKS: Mapping[SubtaskStatus, str] = {
    SubtaskStatus.waiting: "pending",
    SubtaskStatus.running: "dispatched",
    SubtaskStatus.done: "done",
}


def status_of(letter: Letter, view: RunView | None, delegations: Sequence[DelegationState]) -> str:
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


def page(letter: Letter, task: str, view: RunView | None, delegations: Sequence[DelegationState], result: str) -> str:
    """Return the page. `task` is the message's body; `result` is the outcome or failure, empty while it runs."""
    mode = "coordinating" if delegations else "direct"
    head = [
        ("from", letter.sender),
        ("mode", mode),
        ("status", status_of(letter, view, delegations)),
        ("run_id", letter.run_id or ""),
    ]
    lines = [*_about(letter), *_members(head), "---", "", "# Task", ""]
    lines += [task[:MOST_GOAL].rstrip() + ("\n\n…" if len(task) > MOST_GOAL else ""), ""]
    for number, delegation in enumerate(delegations, 1):
        title = "## Subtasks" if len(delegations) == 1 else f"## Subtasks {number}"
        lines += [title, "", "| subtask | agent | status |", "| --- | --- | --- |"]
        lines += [
            f"| {_cell(sub.id)} | {_cell(sub.agent)} | {_SUBTASKS.get(sub.status, 'failed')} |"
            for sub in delegation.subtasks
        ]
        lines.append("")
    results = [sub for delegation in delegations for sub in delegation.subtasks if sub.outcome]
    if results:
        lines += ["## Subtask results", "", *(line for sub in results for line in _result(sub))]
    if result:
        lines += ["## Result", "", result.rstrip(), ""]
    return "\n".join(lines)


def is_of_another(page: bytes, letter: Letter) -> bool:
    """Return whether another task owns the page, as tasks of two plans may share a name. Other files have no owner."""
    own = "\n".join([*_about(letter), ""]).encode(errors="replace")
    return page.startswith(b"---\ntask_id: ") and not page.startswith(own)


def _about(letter: Letter) -> list[str]:
    """Return the first lines of a task's page, which no other task's page has."""
    ids = (("task_id", letter.task_id), ("subtask_id", letter.subtask_id or ""), ("plan_id", letter.plan_id))
    return ["---", *_members(ids)]


def _members(fields: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{name}: {_quoted(value)}" for name, value in fields if value]


def _result(subtask: SubtaskState) -> list[str]:
    files = [f"- {path}" for path in subtask.artifacts]
    return [f"### {subtask.id}", "", cut(subtask.outcome, MOST_SUMMARY), "", *([*files, ""] if files else [])]


def _cell(text: str) -> str:
    return cut(text, 200).replace("|", "\\|")


def _quoted(text: str) -> str:
    """Return the text as a YAML scalar."""
    if text and all(char.isalnum() or char in "-_." for char in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{cut(escaped, 500)}"'

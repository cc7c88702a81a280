"""The events of a delegation in a run's history, and how they are shown."""

from dataclasses import dataclass, field
from typing import ClassVar

from perdure.client.records.event_reader import Event, failure_message, first_value
from perdure.client.run_events import ActivityFailed, FeatureEvent, RunEvent, SubtaskMove
from perdure.contracts.run.limits import SubtaskStatus
from perdure.features.delegation.contract import DelegationRequest, DelegationState, DelegationStatus
from perdure.features.delegation.rules import begin_delegation, failed_subtasks
from perdure.terminal.console import fit_line
from perdure.terminal.event_lines import PLAIN_PREVIEW_LENGTH, EventLines, format_line, result_mark
from perdure.terminal.progress import format_count

DELEGATION = "delegation"


@dataclass(frozen=True)
class DelegationStarted(FeatureEvent):
    """Subtasks were handed to peers. Each becomes a run, whose id is in `runs`, unless its peer lives outside."""

    type: ClassVar = "delegation_started"
    activity: ClassVar = DELEGATION
    request: DelegationRequest
    runs: dict[str, str] = field(default_factory=dict)

    @property
    def step(self) -> int:
        return self.request.step

    @property
    def doing(self) -> str:
        return f"{self._count} · step {self.step}"

    @property
    def subtasks(self) -> tuple[SubtaskMove, ...]:
        return tuple(
            SubtaskMove(task.id, task.agent, self.runs.get(task.id, ""), SubtaskStatus.waiting)
            for task in self.request.subtasks
        )

    @property
    def _count(self) -> str:
        return format_count(len(self.request.subtasks), "subtask")

    def lines(self, width: int | None) -> EventLines:  # noqa: ARG002 - as every event
        yield format_line(f"  [cyan]⇉[/] delegates {self._count}  [dim]step {self.step}[/]")
        for subtask in self.request.subtasks:
            after = f", after {', '.join(subtask.depends_on)}" if subtask.depends_on else ""
            yield format_line("    ", f"{subtask.id} · {subtask.agent}{after}", "dim")


@dataclass(frozen=True)
class DelegationFinished(FeatureEvent):
    type: ClassVar = "delegation_finished"
    activity: ClassVar = DELEGATION
    state: DelegationState

    @property
    def subtasks(self) -> tuple[SubtaskMove, ...]:
        return tuple(
            SubtaskMove(task.id, task.agent, task.run_id, task.status, task.outcome) for task in self.state.subtasks
        )

    def lines(self, width: int | None) -> EventLines:
        state, failed = self.state, len(failed_subtasks(self.state))
        part = f": {failed} of {format_count(len(state.subtasks), 'subtask')} failed" if failed else ""
        is_good = state.status is DelegationStatus.done
        yield format_line(f"  {result_mark(is_good=is_good)} delegation {state.status}{part}")
        room = PLAIN_PREVIEW_LENGTH if width is None else width - 5
        for subtask in state.subtasks:
            yield format_line("    ", fit_line(f"{subtask.id} {subtask.status}: {subtask.outcome}", room), "dim")


def read_delegation(event: Event) -> list[RunEvent]:
    """Return the run events of an event about the child workflow."""
    match event["type"]:
        case "start_child_workflow_execution_initiated":
            request = DelegationRequest.model_validate(first_value(event["input"]))
            runs = {task.id: task.run_id for task in begin_delegation(request).subtasks if task.run_id}
            return [DelegationStarted(request, runs)]
        case "child_workflow_execution_completed":
            return [DelegationFinished(DelegationState.model_validate(first_value(event["result"])))]
        case "start_child_workflow_execution_failed" | "child_workflow_execution_started":
            return []  # it runs, started by the run that this one resumes
        case kind:
            end = kind.removeprefix("child_workflow_execution_").replace("_", " ")
            return [ActivityFailed(DELEGATION, failure_message(event.get("failure") or {}) or end)]

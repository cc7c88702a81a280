"""A follow-up in the events of the run that created it, and how it is shown."""

from dataclasses import dataclass
from typing import ClassVar

from perdure.client.records.event_reader import Event, first_value
from perdure.client.run_events import FeatureEvent, RunEvent
from perdure.contracts.tool import ToolOutcome
from perdure.decisions.ids import FOLLOW_UP_PREFIX
from perdure.features.follow_ups.contract import FollowUpCommands
from perdure.terminal.event_lines import EventLines, format_line


@dataclass(frozen=True)
class FollowUpCommanded(FeatureEvent):
    """A follow-up was created, or got a task, or both. It is shown and answered by its `id`, as a run is."""

    type: ClassVar = "follow_up_commanded"
    activity: ClassVar = "follow-up"
    id: str
    created: bool
    task: str | None
    """The name of its new task."""

    def lines(self, width: int | None) -> EventLines:  # noqa: ARG002 - as every event
        task = f", task {self.task}" if self.task else ""
        yield format_line("  [cyan]⇢[/] ", f"follow-up {self.id}{'' if self.created else ' goes on'}{task}")


def read_command(event: Event) -> list[RunEvent]:
    """Return the run event of commands that were accepted."""
    if ToolOutcome.model_validate(first_value(event.get("result"))).status != "ok":
        return []
    commands = FollowUpCommands.model_validate(event["request"])
    create, task = commands.create, commands.task
    name = create.data.workflow_id if create else task.data.workflow_id if task else ""
    return [FollowUpCommanded(FOLLOW_UP_PREFIX + name, create is not None, task.data.task_id if task else None)]

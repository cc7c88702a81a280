"""The typed shell of `FollowUp`, and its contracts, for other programs (`perdure.stubs`)."""

from typing import Any

from temporalio import workflow

from perdure.contracts.run.signals import CancelRequest, HumanInput
from perdure.features.follow_ups.contract import (
    CancelCommand,
    CreateCommand,
    FollowUpState,
    LifecycleEvent,
    TaskCommand,
    TaskResolved,
)

__all__ = [
    "CancelCommand",
    "CreateCommand",
    "FollowUp",
    "FollowUpState",
    "LifecycleEvent",
    "TaskCommand",
    "TaskResolved",
]


@workflow.defn(name="FollowUp")
class FollowUp:
    """Tasks that resolve later; its workflow id is `follow_up_workflow_id(…)`. Result: `evt.workflow.resolved`."""

    @workflow.run
    async def run(self, command: CreateCommand) -> LifecycleEvent:
        raise NotImplementedError

    @workflow.signal
    def task_create(self, command: TaskCommand) -> None:
        raise NotImplementedError

    @workflow.signal
    def task_resolved(self, event: TaskResolved) -> None:
        raise NotImplementedError

    @workflow.signal
    def human_input(self, answer: HumanInput) -> None:
        raise NotImplementedError

    @workflow.signal
    def cancel(self, command: CancelCommand | CancelRequest | None = None) -> None:
        raise NotImplementedError

    @workflow.update
    def create_task(self, command: TaskCommand) -> dict[str, Any]:
        raise NotImplementedError

    @workflow.update
    def answer(self, answer: HumanInput) -> dict[str, Any]:
        raise NotImplementedError

    @workflow.query
    def state(self) -> FollowUpState:
        raise NotImplementedError

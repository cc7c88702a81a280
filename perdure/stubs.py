"""Typed shells of Perdure's public workflows, for Python programs that start, signal, update and query them.

A shell has the names and types of its workflow, and no behavior: `workflow.execute_child_workflow(AgentRun.run, …)`.
docs/reference/workflow.md describes each name.
"""

from typing import TYPE_CHECKING, Any

from temporalio import workflow

from perdure.contracts.conversation import (
    ConversationStart,
    DropRequest,
    ForgetRequest,
    Forgotten,
    LaneView,
    SteerRequest,
    SubmitRequest,
    Submitted,
)
from perdure.contracts.run.events import (
    CompletedEvent,
    EscalatedEvent,
    ResumeEvent,
    StartEvent,
    StartPayload,
    ToolResultEvent,
)
from perdure.contracts.run.journal import Journal
from perdure.contracts.run.signals import CancelRequest, Decision, HumanInput
from perdure.contracts.run.state import RunView
from perdure.contracts.run.transcript import TranscriptPage, TranscriptQuery
from perdure.decisions.ids import conversation_workflow_id, follow_up_workflow_id, run_workflow_id
from perdure.registry import features, load

if TYPE_CHECKING:  # the names of features: they are imported when they are first used
    from perdure.features.follow_ups.stub import (
        CancelCommand,
        CreateCommand,
        FollowUp,
        FollowUpState,
        LifecycleEvent,
        TaskCommand,
        TaskResolved,
    )
else:

    def __getattr__(name: str) -> Any:
        """Return a shell of a feature's workflow, or one of its contracts."""
        targets = (target for feature in features().values() for target in feature.stubs)
        if (target := next((target for target in targets if target.endswith(f":{name}")), None)) is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return load(target)


__all__ = [
    "AgentRun",
    "CancelCommand",
    "CancelRequest",
    "CompletedEvent",
    "Conversation",
    "ConversationStart",
    "CreateCommand",
    "Decision",
    "DropRequest",
    "EscalatedEvent",
    "FollowUp",
    "FollowUpState",
    "ForgetRequest",
    "Forgotten",
    "HumanInput",
    "Journal",
    "LaneView",
    "LifecycleEvent",
    "ResumeEvent",
    "RunView",
    "StartEvent",
    "StartPayload",
    "SteerRequest",
    "SubmitRequest",
    "Submitted",
    "TaskCommand",
    "TaskResolved",
    "ToolResultEvent",
    "TranscriptPage",
    "TranscriptQuery",
    "conversation_workflow_id",
    "follow_up_workflow_id",
    "run_workflow_id",
]


@workflow.defn(name="AgentRun")
class AgentRun:
    """A run; its workflow id is `run_workflow_id(…)`.

    Cancelled runs end Canceled; failed ones with an ApplicationError whose type is a `RunFailure`.
    """

    @workflow.run
    async def run(self, start: StartEvent | ResumeEvent) -> CompletedEvent | EscalatedEvent:
        raise NotImplementedError

    @workflow.signal
    def tool_result(self, event: ToolResultEvent) -> None:
        raise NotImplementedError

    @workflow.signal
    def cancel(self, request: CancelRequest | None = None) -> None:
        raise NotImplementedError

    @workflow.signal
    def human_input(self, answer: HumanInput) -> None:
        raise NotImplementedError

    @workflow.signal
    def steer(self, message: SteerRequest) -> None:
        raise NotImplementedError

    @workflow.update
    def answer(self, answer: HumanInput) -> dict[str, Any]:
        raise NotImplementedError

    @workflow.update
    def deliver_result(self, event: ToolResultEvent) -> dict[str, Any]:
        raise NotImplementedError

    @workflow.update
    def accept_policy(self, acceptance: HumanInput) -> dict[str, Any]:
        raise NotImplementedError

    @workflow.query
    def state(self) -> RunView:
        raise NotImplementedError

    @workflow.query
    def journal(self) -> Journal:
        raise NotImplementedError

    @workflow.query
    def transcript(self, page: TranscriptQuery | None = None) -> TranscriptPage:
        raise NotImplementedError


@workflow.defn(name="Conversation")
class Conversation:
    """A lane; its workflow id is `conversation_workflow_id(…)`. Start it with the update `submit`."""

    @workflow.run
    async def run(self, start: ConversationStart | None = None) -> None:
        raise NotImplementedError

    @workflow.signal
    def request(self, request: SubmitRequest) -> None:
        raise NotImplementedError

    @workflow.signal
    def cancel_turn(self, request: CancelRequest | None = None) -> None:
        raise NotImplementedError

    @workflow.signal
    def cancel(self, request: CancelRequest | None = None) -> None:
        raise NotImplementedError

    @workflow.signal
    def drop(self, request: DropRequest) -> None:
        raise NotImplementedError

    @workflow.signal
    def human_input(self, answer: HumanInput) -> None:
        raise NotImplementedError

    @workflow.update
    async def submit(self, request: SubmitRequest) -> Submitted:
        raise NotImplementedError

    @workflow.update
    def forget(self, request: ForgetRequest | None = None) -> Forgotten:
        raise NotImplementedError

    @workflow.query
    def lane(self) -> LaneView:
        raise NotImplementedError

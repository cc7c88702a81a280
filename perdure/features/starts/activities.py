"""The activities of an event that begins work: reading it, and submitting the turn."""

from functools import partial
from typing import Self

from temporalio import activity
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from perdure.activities.parts import WorkerParts
from perdure.activities.project import Project
from perdure.activities.rule_values import RuleReading
from perdure.activities.temporal import submit_to_lane
from perdure.contracts.conversation import Headers, LaneFault, SubmitRequest, Submitted
from perdure.contracts.failures import RunFailure
from perdure.features.starts.contract import InboundRequest, PreparedStart, StartedTurn
from perdure.features.starts.rules import StartRule, UnusableEventError, event_facts

_PERMANENT = (LaneFault.invalid_input, LaneFault.request_reused)


def starts_of(project: Project) -> tuple[StartRule, ...]:
    """Return the events that begin work in a project."""
    rules: tuple[StartRule, ...] = project.parts.get("starts", ())
    return rules


class InboundStarts:
    def __init__(self, client: Client, project: Project) -> None:
        self._client = client
        self._project = project

    @classmethod
    def of(cls, parts: WorkerParts) -> Self:
        return cls(parts.client, parts.project)

    @activity.defn
    async def prepare_start(self, request: InboundRequest) -> PreparedStart:
        """Read the goal and the conversation from the event. Raises ApplicationError if it can begin nothing."""
        rule = next((rule for rule in starts_of(self._project) if rule.name == request.start), None)
        if rule is None:
            raise _unusable(f"there is no [[start]] named {request.start} in this worker's perdure.toml")
        try:
            work, facts = partial(rule.prepare, request.event), event_facts(request.event)
            prepared = await RuleReading().run(work, rule.expressions, facts)
        except UnusableEventError as error:
            raise _unusable(str(error)) from None
        headers = Headers(user_id=request.event.user, request_client=request.sender.door)
        return prepared.evolve(headers=headers)

    @activity.defn
    async def submit_start(self, turn: StartedTurn) -> Submitted:
        """Submit the turn; the lane recognizes a repeat. A full lane is asked again until it accepts."""
        request = SubmitRequest.model_validate(turn.request)
        try:
            return await submit_to_lane(self._client, activity.info().task_queue, turn.conversation, request)
        except WorkflowUpdateFailedError as refused:
            cause = refused.cause
            is_permanent = isinstance(cause, ApplicationError) and cause.type in _PERMANENT
            reason = cause.message if isinstance(cause, ApplicationError) else str(cause)
            message = f"conversation {turn.conversation} rejects the event: {reason}"
            raise ApplicationError(message, type="RejectedEvent", non_retryable=is_permanent) from None


def _unusable(reason: str) -> ApplicationError:
    return ApplicationError(reason, type=RunFailure.invalid_input, non_retryable=True)

"""`Inbound`: an event from outside begins a run or a turn of a conversation, and its answer goes back."""

from typing import Any

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError

from perdure.contracts.conversation import Ended, SubmitRequest, Submitted, TurnEnd
from perdure.contracts.failures import RunFailure
from perdure.contracts.run.events import StartEvent, StartPayload
from perdure.contracts.run.signals import EndedRun
from perdure.decisions import ids
from perdure.decisions.run.outcome import event_text
from perdure.decisions.text.formatting import truncate
from perdure.features.follow_ups.activities import FollowUps
from perdure.features.follow_ups.contract import NotifyRequest, Outbound
from perdure.features.starts.activities import InboundStarts
from perdure.features.starts.contract import InboundReport, InboundRequest, PreparedStart, StartedTurn
from perdure.features.starts.rules import answer_message, inbound_request_id, inbound_run_id
from perdure.workflows.execution import FILES, SENDING, start_watch
from perdure.workflows.handlers import read_argument
from perdure.workflows.search_attributes import ShownAttributes

NOT_BEGUN = "NotBegun"  # the event began nothing: a dead letter
_UNUSABLE_STARTS = (RunFailure.invalid_input, RunFailure.unknown_agent, RunFailure.bad_project)


@workflow.defn
class Inbound:
    """An event that begins work. Input: an `InboundRequest`. Result: an `InboundReport`.

    It fails with `NotBegun` if the event could begin nothing, and with `NotDelivered` if its answer was not accepted.
    """

    def __init__(self) -> None:
        self._attributes = ShownAttributes()
        self._has_ended = False

    @workflow.run
    async def run(self, *args: Any) -> InboundReport:
        request = read_argument(InboundRequest, args)
        prepared = await self._prepare(request)
        if prepared.goal is None:
            return InboundReport()
        run_id, ended = await (self._take_turn if prepared.conversation else self._start_run)(request, prepared)
        place = request.event.reply_to if prepared.answers else None
        if place is not None:
            await self._send_answer(answer_message(place, ended.said))
        return InboundReport(run_id=run_id, status=ended.end or "gone", answer="sent" if place else "none")

    async def _prepare(self, request: InboundRequest) -> PreparedStart:
        try:
            return await workflow.execute_activity_method(
                InboundStarts.prepare_start, request, summary=f"read {request.event.kind}", **FILES
            )
        except ActivityError as error:
            raise _not_begun(error) from None

    async def _start_run(self, request: InboundRequest, prepared: PreparedStart) -> tuple[str, Ended]:
        run_id = inbound_run_id(request)
        payload = StartPayload(goal=prepared.goal or "", agent=prepared.agent)
        try:
            event = await workflow.execute_child_workflow(
                "AgentRun",
                StartEvent(type="agentic.start", payload=payload, sender=request.sender),
                id=ids.run_workflow_id(run_id),
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
                search_attributes=self._attributes.of_child(payload),
                static_summary=truncate(f"{request.start}: {request.event.kind}", 200),
            )
        except WorkflowAlreadyStartedError:  # by an earlier delivery of the event
            return run_id, await start_watch(ids.run_workflow_id(run_id), f"until run {run_id} ends")
        except ChildWorkflowError as error:
            cause = error.cause
            if isinstance(cause, ApplicationError) and cause.type in _UNUSABLE_STARTS:
                raise _not_begun(error) from None
            return run_id, Ended(end=TurnEnd.failed, said=str(cause))
        return run_id, Ended(end=_end_of(event), said=event_text(event))

    async def _take_turn(self, request: InboundRequest, prepared: PreparedStart) -> tuple[str, Ended]:
        submit = SubmitRequest(
            request_id=inbound_request_id(request),
            goal=prepared.goal,
            agent=prepared.agent,
            origin=prepared.headers,
            sender=request.sender,
        )
        turn = StartedTurn(conversation=prepared.conversation or "", request=submit.model_dump(mode="json"))
        summary = f"submit to {truncate(turn.conversation, 60)}"
        try:
            submitted: Submitted = await workflow.execute_activity_method(
                InboundStarts.submit_start, turn, summary=summary, **FILES
            )
        except ActivityError as error:
            raise _not_begun(error) from None
        return submitted.run_id, await self._wait_for_turn(submitted.run_id)

    async def _wait_for_turn(self, run_id: str) -> Ended:
        """Wait for the end of a turn, which it signals; only a turn that is cut off is found by looking."""
        workflow_id, summary = ids.run_workflow_id(run_id), f"until run {run_id} ends"
        watch = start_watch(workflow_id, summary)
        await workflow.wait_condition(lambda: self._has_ended or watch.done())
        if watch.done():
            return await watch
        watch.cancel()
        return await start_watch(workflow_id, summary, is_ending=True)

    async def _send_answer(self, message: Outbound) -> None:
        execution = workflow.info().first_execution_run_id
        request = NotifyRequest(task_id="answer", number=1, execution=execution, message=message)
        outcome = await workflow.execute_activity_method(
            FollowUps.notify, request, summary=f"answer in {truncate(message.channel_id, 60)}", **SENDING
        )
        if outcome.error is not None:
            raise ApplicationError(outcome.error.message, type="NotDelivered", non_retryable=True)

    @workflow.signal(description="For runs: the turn that it has begun ends")
    def run_ended(self, *args: Any) -> None:
        read_argument(EndedRun, args)
        self._has_ended = True


def _end_of(event: dict[str, Any]) -> TurnEnd:
    return TurnEnd.completed if event["type"] == "agent.completed" else TurnEnd.escalated


def _not_begun(error: ActivityError | ChildWorkflowError) -> ApplicationError:
    message = error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause)
    return ApplicationError(message, type=NOT_BEGUN, non_retryable=True)

"""The start of a notice by a run, which does not wait for its delivery."""

from contextlib import suppress

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from perdure.contracts.people import NoticeKind
from perdure.contracts.run.signals import Question
from perdure.contracts.run.state import Ending, RunState
from perdure.features.notices.contract import NoticeReport, NoticeRequest
from perdure.features.notices.rules import end_request, question_request, request_id


async def announce_question(state: RunState, question: Question, kind: NoticeKind) -> None:
    """Start the notice that a question is open or has expired, if a channel wants it."""
    await _announce(state, question_request(state, question, kind))


async def announce_end(state: RunState, ending: Ending | None) -> None:
    """Start the notice of a run's end, if a channel wants it."""
    await _announce(state, end_request(state, ending))


async def _announce(state: RunState, request: NoticeRequest | None) -> None:
    if request is not None:
        await start_notice(request_id(state, request.notice), request)


async def start_notice(workflow_id: str, request: NoticeRequest) -> None:
    """Start `Notify`, unless it was started before. It outlives this workflow and is not stopped with it."""
    with suppress(WorkflowAlreadyStartedError):
        await workflow.start_child_workflow(
            "Notify",
            request,
            id=workflow_id,
            result_type=NoticeReport,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            parent_close_policy=ParentClosePolicy.ABANDON,
            cancellation_type=ChildWorkflowCancellationType.ABANDON,
            static_summary=request.notice.title,
        )

"""The start of a notice by a run, which does not wait for its delivery."""

from contextlib import suppress

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from contracts.people.notice import NoticeReport, NoticeRequest
from contracts.run.state import RunState
from decisions.people.notice import request_id


async def announce(state: RunState, request: NoticeRequest | None) -> None:
    """Start the notice of a run, if a channel wants it."""
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

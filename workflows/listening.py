"""What the user of a run says while it is at work (`steer`)."""

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from contracts.conversation import Steered
from decisions import ids, loop
from decisions.transcript import said_part
from workflows.live_run import LiveRun


async def listen(run: LiveRun) -> None:
    """It enters the conversation, and a run that was about to finish goes on with it.

    The lane is told, so that it does not say it again in the next turn.
    """
    said, run.said = run.said, []
    run.state = loop.reopened(run.state)
    for each in said:
        run.transcript.append(said_part(each.text))
    if run.state.is_turn and run.state.conversation_id is not None:
        lane = workflow.get_external_workflow_handle(ids.conversation_workflow_id(run.state.conversation_id))
        for each in said:
            try:
                await lane.signal("steered", Steered(request_id=each.request_id).model_dump())
            except ApplicationError as gone:
                workflow.logger.warning("the lane is gone: %s", gone.message)

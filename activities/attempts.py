"""What became of the attempt before this one: did it fail, or was it lost with its worker?"""

from temporalio import activity
from temporalio.api.enums.v1 import TimeoutType
from temporalio.client import Client

WORKER_SHUTDOWN = "WorkerShutdown"  # the type of the failure with which a worker that stops gives up its activities


async def was_lost(client: Client) -> bool:
    """Whether the attempt before this one ended with its worker, and not by a failure of its own."""
    info = activity.info()
    if info.attempt == 1:
        return False
    run = client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
    for pending in (await run.describe()).raw_description.pending_activities:
        if pending.activity_id == info.activity_id:
            failure = pending.last_failure
            died = failure.timeout_failure_info.timeout_type == TimeoutType.TIMEOUT_TYPE_HEARTBEAT
            return died or failure.application_failure_info.type == WORKER_SHUTDOWN
    return False

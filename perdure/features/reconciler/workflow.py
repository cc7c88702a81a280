"""`Reconcile`: one check of the runs of a task queue. Its schedule starts one every five minutes."""

from typing import Any

from temporalio import workflow

from perdure.decisions.ids import notice_workflow_id
from perdure.decisions.text import formatting
from perdure.features.notices.announce import start_notice
from perdure.features.reconciler.activities import Reconciler
from perdure.features.reconciler.contract import ReconcileReport, ReconcileRequest
from perdure.features.reconciler.rules import render_report
from perdure.workflows.execution import HEARTBEAT, MAX_RECONCILE_TIME, RECONCILE_RETRIES


@workflow.defn
class Reconcile:
    """Check the runs of a task queue. Result: a `ReconcileReport`.

    In the stores it continues at the place where the last one stopped.
    """

    @workflow.run
    async def run(self, *_: Any) -> ReconcileReport:
        # Read as a request: the part of the last report that counts here, whichever version wrote it.
        last = workflow.get_last_completion_result(ReconcileRequest)
        report: ReconcileReport = await workflow.execute_activity_method(
            Reconciler.reconcile,
            last or ReconcileRequest(),
            start_to_close_timeout=MAX_RECONCILE_TIME,
            heartbeat_timeout=HEARTBEAT,
            retry_policy=RECONCILE_RETRIES,
            summary="check runs, claims, waits and stores",
        )
        workflow.set_current_details(formatting.escape_markdown(render_report(report)))
        day = f"{workflow.now():%Y-%m-%d}"  # a run that is stuck is announced once a day
        for request in report.notices:
            stuck = f"{notice_workflow_id(request.notice.run_id, request.notice.kind)}:{day}"
            await start_notice(request.id or stuck, request)
        return report

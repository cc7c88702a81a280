"""The floor: the least that a workflow on this server can do for T(n, s). No state, no transcript, no care."""

from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from bench.work import Marks, Work, text
from perdure.converter import data_converter
from perdure.process.worker import HEARTBEAT_THROTTLE
from perdure.process.workflows import poller_behavior, workflow_runner
from perdure.settings.file import WorkerSettings

TIMEOUT = timedelta(seconds=60)
RAW = "raw:"  # what its workflow ids begin with


@workflow.defn
class RawMin:
    def __init__(self) -> None:
        self._asked = 0
        self._answered = 0

    @workflow.run
    async def run(self, work: Work) -> int:
        for turn in range(work.steps):
            call = await workflow.execute_activity("model", turn, start_to_close_timeout=TIMEOUT, result_type=dict)
            await workflow.execute_activity(
                "tool", args=[call["turn"], work.size], start_to_close_timeout=TIMEOUT, result_type=str
            )
        for number in range(1, work.questions + 1):
            self._asked = number
            await workflow.wait_condition(lambda: self._answered >= self._asked)
            await workflow.execute_activity(
                "model", work.steps + number, start_to_close_timeout=TIMEOUT, result_type=dict
            )
        return work.steps

    @workflow.signal
    def human_input(self, _: dict[str, Any]) -> None:
        self._answered += 1

    @workflow.query
    def asked(self) -> int:
        return self._asked


class Activities:
    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    @activity.defn
    async def model(self, turn: int) -> dict[str, Any]:
        self._marks.model_called()
        return {"tool": "bulk", "turn": turn}

    @activity.defn
    async def tool(self, turn: int, size: int) -> str:
        self._marks.tool_called()
        return text(turn, size)


def build(client: Client, queue: str, marks: Marks) -> Worker:
    """As the product builds its own."""
    activities, sizes = Activities(marks), WorkerSettings()
    return Worker(
        client,
        task_queue=queue,
        workflows=[RawMin],
        activities=[activities.model, activities.tool],
        workflow_runner=runner(),
        max_concurrent_activities=sizes.max_concurrent_activities,
        workflow_task_poller_behavior=poller_behavior(sizes),
        activity_task_poller_behavior=poller_behavior(sizes),
        sticky_queue_schedule_to_start_timeout=sizes.sticky_timeout,
        graceful_shutdown_timeout=sizes.grace,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
    )


def runner() -> SandboxedWorkflowRunner:
    """The SDK's sandbox; what passes through the product's passes through it, and `bench`, so that it pays no more."""
    ours = workflow_runner(data_converter)
    return SandboxedWorkflowRunner(ours.restrictions.with_passthrough_modules("bench", "perdure"))

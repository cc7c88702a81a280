"""A workflow of an unknown type, which ends at once instead of waiting for a worker that has the type."""

from collections.abc import Sequence
from typing import NoReturn

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError


@workflow.defn(dynamic=True)
class UnknownWorkflow:
    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> NoReturn:  # noqa: ARG002 - Temporal's signature
        name = workflow.info().workflow_type
        raise ApplicationError(
            f"there is no workflow type {name!r}; agent runs are of type AgentRun",
            type="UnknownWorkflowType",
            non_retryable=True,
        )

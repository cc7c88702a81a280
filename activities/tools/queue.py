"""The kind `queue`: the workflow schedules another worker's activity; this module stores its large results."""

import asyncio
from dataclasses import dataclass
from typing import Any

from temporalio import activity
from temporalio.client import Client

from activities.effects.attempts import heartbeating
from activities.project import Project
from activities.security.redaction import redact_model
from activities.tools.interface import CallContext
from activities.tools.outcome import fit_result
from contracts.agent import ToolSchema
from contracts.tool import LargeResult, ToolOutcome, ToolRoute
from decisions.ids import run_id_of_workflow


@dataclass(eq=False, repr=False)
class QueueTool:
    """Offers the tool; the workflow makes its calls."""

    route: ToolRoute
    schema: ToolSchema

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:  # noqa: ARG002 - a tool's
        raise AssertionError(f"{self.route.name} is called by the workflow")


class QueueResults:
    def __init__(self, client: Client, project: Project) -> None:
        self._client = client
        self._project = project

    @activity.defn
    async def keep_result(self, large: LargeResult) -> ToolOutcome:
        """Store the result that the run holds as an artifact, and return an excerpt."""
        info = activity.info()
        async with heartbeating(lambda: {"step": large.step, "tool": large.tool}):
            run = self._client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
            result = await run.query("result", large)
            outcome = redact_model(ToolOutcome(result=result), self._project.secrets)
            workspace = self._project.workspace(run_id_of_workflow(info.workflow_id or ""))
            return await asyncio.to_thread(fit_result, outcome, large, workspace)

"""`AgentRun` after changes that its old histories do not know of: unguarded, and guarded as docs/upgrading.md has it.

A module of its own, which imports no more than a workflow may: the sandbox loads it anew for each run.
"""

from datetime import timedelta
from typing import Any

from temporalio import workflow

from perdure.workflows.agent_run.agent_run import AgentRun

PATCH = "pause-at-start"
PAUSE = timedelta(milliseconds=50)


@workflow.defn(name="AgentRun")
class Unguarded(AgentRun):
    """A timer where an old history has none: incompatible code."""

    @workflow.run
    async def run(self, *args: Any) -> dict[str, Any]:
        await workflow.sleep(PAUSE, summary="a pause that older runs never made")
        return await super().run(*args)


@workflow.defn(name="AgentRun")
class Patched(AgentRun):
    """Release 1: new runs take the new path, old ones the old path."""

    @workflow.run
    async def run(self, *args: Any) -> dict[str, Any]:
        if workflow.patched(PATCH):
            await workflow.sleep(PAUSE, summary="a pause that older runs never made")
        return await super().run(*args)


@workflow.defn(name="AgentRun")
class Deprecated(AgentRun):
    """Release 2, once no run without the patch is left: only the new path, histories with the mark still fit."""

    @workflow.run
    async def run(self, *args: Any) -> dict[str, Any]:
        workflow.deprecate_patch(PATCH)
        await workflow.sleep(PAUSE, summary="a pause that older runs never made")
        return await super().run(*args)

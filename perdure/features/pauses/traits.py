"""The facts by which pauses select a run, read from the server."""

from temporalio.client import Client

from perdure.client.run_list import RunInfo, read_start
from perdure.contracts.agent import DEFAULT_AGENT
from perdure.decisions import ids
from perdure.features.pauses.rules import RunTraits


async def find_traits(client: Client, workflow_id: str, execution: str | None = None) -> RunTraits:
    """Return what pauses select a run by. Raises RPCError."""
    described = await client.get_workflow_handle(workflow_id, run_id=execution).describe()
    run = RunInfo(ids.run_id_of_workflow(workflow_id), described)
    root = described.raw_description.workflow_execution_info.root_execution
    began = described
    if root.workflow_id and root.workflow_id != workflow_id:
        began = await client.get_workflow_handle(root.workflow_id, run_id=root.run_id).describe()
    runs = {run.run_id, ids.run_id_of_workflow(began.id)}
    schedule = RunInfo(ids.run_id_of_workflow(began.id), began).schedule
    return RunTraits(frozenset(runs), run.agent or await _read_agent(client, run), schedule)


async def _read_agent(client: Client, run: RunInfo) -> str:
    """Return the agent that a run's start names: a namespace may have no search attributes."""
    if run.execution.workflow_type != "AgentRun":
        return ""
    start, _ = await read_start(client, run)
    payload = start.get("payload") if isinstance(start, dict) else None
    return str(payload.get("agent") or DEFAULT_AGENT) if isinstance(payload, dict) else ""

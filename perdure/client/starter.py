"""The sender that started a run, from the first event of its history."""

from temporalio.client import Client
from temporalio.service import RPCError

from contracts.sender import SentBy
from decisions.sender import sent_by
from perdure.client.run_list import RunInfo


async def find_starter(client: Client, run: RunInfo) -> SentBy | None:
    """Return the sender, unless the start is past retention. Raises UnknownKeyError."""
    execution = client.get_workflow_handle(run.execution.id, run_id=run.first_execution)
    try:
        first = await anext(execution.fetch_history_events(page_size=1))
    except RPCError:
        return None
    started = first.workflow_execution_started_event_attributes
    inputs = await client.data_converter.decode(started.input.payloads[:1])
    return sent_by(inputs[0] if inputs else None, started.identity)

"""Who started a run, as the first event of its history has it."""

from temporalio.client import Client
from temporalio.service import RPCError

from contracts.sender import SentBy
from decisions.sender import sent_by
from perdure.client.run_list import Found


async def starter_of(client: Client, found: Found) -> SentBy | None:
    """Return None where the server has forgotten the start. Raises codec.UnknownKey."""
    execution = client.get_workflow_handle(found.execution.id, run_id=found.first_execution)
    try:
        begun = await anext(execution.fetch_history_events(page_size=1))
    except RPCError:
        return None
    started = begun.workflow_execution_started_event_attributes
    given = await client.data_converter.decode(started.input.payloads[:1])
    return sent_by(given[0] if given else None, started.identity)

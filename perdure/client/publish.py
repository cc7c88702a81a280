"""External events: published with their sender."""

from temporalio.client import Client

from activities.followup import topic
from contracts.topic import Event
from perdure.client.door import stamp_sender


async def publish_external_event(client: Client, task_queue: str, event: Event) -> str:
    """Publish an event to its topic and return the topic's workflow id. Raises NotAwaitedError, RPCError."""
    return await topic.signal_event(client, task_queue, stamp_sender(event))

"""External events: published with their sender."""

from temporalio.client import Client

from activities.followup import topic
from contracts.topic import Event
from perdure.client.door import stamp


async def publish(client: Client, task_queue: str, event: Event) -> str:
    """Publish an event to its topic and return the topic's workflow id. Raises NotAwaited, RPCError."""
    return await topic.publish(client, task_queue, stamp(event))

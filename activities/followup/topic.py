"""How an event, or a task that waits for one, gets to the topic where they meet: whichever comes first opens it."""

from collections.abc import Mapping
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy

from contracts.topic import Event, Subscription, TopicInput
from decisions import ids
from decisions.followup.topic import event_id, too_large, topic_of
from decisions.text.formatting import cut, markdown


class NotAwaited(Exception):
    """No task can wait for this event, or it is not one to pass on. The message says why."""


async def publish(client: Client, task_queue: str, event: Event) -> str:
    """Brings an event to its topic, and returns that one's workflow id. Raises NotAwaited, RPCError."""
    key = topic_of(event)
    if key is None:
        raise NotAwaited("it replies to no message, so nothing awaits it")
    if why := too_large(event):
        raise NotAwaited(f"{why}: leave out what of `raw` is not needed")
    known = event.model_copy(update={"id": event_id(event)})
    return await _signal(client, task_queue, key, "event", known.model_dump(mode="json", exclude_none=True))


async def subscribe(client: Client, task_queue: str, key: str, subscription: Subscription) -> None:
    await _signal(client, task_queue, key, "subscribe", subscription.model_dump(mode="json"))


async def _signal(client: Client, task_queue: str, key: str, name: str, body: Mapping[str, Any]) -> str:
    workflow_id = ids.topic_workflow_id(key)
    await client.start_workflow(
        "EventTopic",
        TopicInput(key=key).model_dump(mode="json"),
        id=workflow_id,
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary=markdown(cut(f"events of {key}", 200)),
        start_signal=name,
        start_signal_args=[body],
    )
    return workflow_id

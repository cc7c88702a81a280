"""Signals to a topic, where events meet the tasks that wait for them. The first signal starts the topic."""

from collections.abc import Mapping
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy

from contracts.topic import Event, Subscription, TopicInput
from decisions import ids
from decisions.followup.topic import event_id, event_size_error, topic_of
from decisions.text.formatting import escape_markdown, truncate


class NotAwaitedError(Exception):
    """No task can wait for this event, or it is too large. The message is the reason."""


async def signal_event(client: Client, task_queue: str, event: Event) -> str:
    """Signal an event to its topic. Return the topic's workflow id. Raises NotAwaitedError, RPCError."""
    key = topic_of(event)
    if key is None:
        raise NotAwaitedError("it replies to no message, so nothing awaits it")
    if problem := event_size_error(event):
        raise NotAwaitedError(f"{problem}: leave out what of `raw` is not needed")
    body = event.model_copy(update={"id": event_id(event)})
    return await _signal_topic(client, task_queue, key, "event", body.model_dump(mode="json", exclude_none=True))


async def signal_subscription(client: Client, task_queue: str, key: str, subscription: Subscription) -> None:
    await _signal_topic(client, task_queue, key, "subscribe", subscription.model_dump(mode="json"))


async def _signal_topic(client: Client, task_queue: str, key: str, name: str, body: Mapping[str, Any]) -> str:
    workflow_id = ids.topic_workflow_id(key)
    await client.start_workflow(
        "EventTopic",
        TopicInput(key=key).model_dump(mode="json"),
        id=workflow_id,
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary=escape_markdown(truncate(f"events of {key}", 200)),
        start_signal=name,
        start_signal_args=[body],
    )
    return workflow_id

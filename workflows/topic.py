"""`EventTopic`: matches outside events with the tasks that wait for them, in either order (E4).

Signals append, the loop delivers. The end is decided and returned in one activation, so that nothing can arrive in
between; a later event starts the topic again.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError

from contracts.followup import TaskResolved
from contracts.topic import Event, Subscription, TopicInput, TopicState
from decisions.followup import topic
from decisions.text import formatting
from workflows.handlers import ValidatedWorkflow, ignore_if_invalid, invalid_input, now_ms, read_argument, start_type
from workflows.rotation import Rotation, continue_as_new


@workflow.defn
class EventTopic(ValidatedWorkflow[TopicState]):
    """Matches events from outside with the tasks that wait for them.

    Input: `{"key"}`. Ends after its time to live, not before its last open subscription does.
    """

    UNKNOWN_SIGNAL = "no such signal; there are event and subscribe"

    @workflow.init
    def __init__(self, *args: Any) -> None:
        self._rotation = Rotation()
        super().__init__(_begin_topic, args)

    @workflow.run
    async def run(self, *args: Any) -> TopicState:  # noqa: ARG002 - read by __init__; Temporal wants both alike
        while True:
            state = self.context
            self._rotation.decide()
            workflow.set_current_details(_format_details(state))
            if (due := next(topic.pending_deliveries(state, now_ms()), None)) is not None:
                await self._deliver_event(*due)
            elif topic.is_topic_over(state, now_ms()):
                return state.model_copy(update={"events": (), "marks": (), "known": ()})
            elif self._rotation.is_due:
                continue_as_new(state)
            else:
                await self._wait_for_change(state)

    async def _wait_for_change(self, state: TopicState) -> None:
        seconds = min(topic.next_look(state, now_ms()) - now_ms(), topic.TIME_TO_LIVE) / 1000 + 0.001
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self.context is not state or self._rotation.is_undecided,
                timeout=seconds,
                timeout_summary="the topic's time to live",
            )

    async def _deliver_event(self, subscription: Subscription, event: Event) -> None:
        self.context = topic.record_delivery(self.context, subscription, event)
        body = TaskResolved(task_id=subscription.task_id, event=event).model_dump(mode="json", exclude_none=True)
        try:
            await workflow.get_external_workflow_handle(subscription.subscriber).signal("task_resolved", body)
        except FailureError:
            self.context = topic.end_subscriptions(self.context, subscription.subscriber)

    @workflow.signal(description="An event of the source: evt.adapter.message.created")
    @ignore_if_invalid
    def event(self, *args: Any) -> None:
        event = read_argument(Event, args)
        if reason := topic.event_size_error(event):
            raise invalid_input(reason)
        self.context = topic.record_event(self.context, event, now_ms())

    @workflow.signal(description='Add a task that waits for an event: {"subscriber", "taskId", "expiresAt"?}')
    @ignore_if_invalid
    def subscribe(self, *args: Any) -> None:
        self.context = topic.record_subscription(self.context, read_argument(Subscription, args), now_ms())

    def note(self, notice: str) -> None:
        ignored = (*self.context.ignored, notice)[-topic.MAX_NOTED :]
        self.context = self.context.model_copy(update={"ignored": ignored})

    @workflow.query(description="Events, subscriptions, and deliveries")
    def state(self, *_: Any) -> TopicState:
        return self.context


def _begin_topic(args: Sequence[Any]) -> TopicState:
    """Return a new topic, or that of an earlier execution. Raises ApplicationError `InvalidInput`."""
    if start_type(args) == "topic.continue":
        return read_argument(TopicState, args)
    return topic.open_topic(read_argument(TopicInput, args).key, now_ms())


def _format_details(state: TopicState) -> str:
    lines = [f"**{formatting.escape_markdown(formatting.truncate(state.key, 200))}** · {len(state.events)} events"]
    lines += [f"- `{waiting.subscriber}` waits, task {waiting.task_id}" for waiting in state.subscriptions[-20:]]
    if state.late:
        lines.append(f"\n**Late** {formatting.escape_markdown(formatting.truncate(', '.join(state.late), 400))}")
    return "\n".join(lines)

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
from workflows.handlers import ValidatedWorkflow, ignoring_refusals, invalid, read, type_of_start


@workflow.defn
class EventTopic(ValidatedWorkflow[TopicState]):
    """Matches events from outside with the tasks that wait for them.

    Input: `{"key"}`. Ends after its time to live, not before its last open subscription does.
    """

    UNKNOWN_SIGNAL = "no such signal; there are event and subscribe"

    @workflow.init
    def __init__(self, *args: Any) -> None:
        super().__init__(_begin, args)

    @workflow.run
    async def run(self, *args: Any) -> TopicState:  # noqa: ARG002 - read by __init__; Temporal wants both alike
        while True:
            state = self.context
            workflow.set_current_details(_details(state))
            due = next(topic.todo(state, _now()), None)
            if due is not None:
                await self._deliver(*due)
            elif topic.is_over(state, _now()):
                return state.model_copy(update={"events": (), "marks": (), "known": ()})
            elif workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(state)
            else:
                await self._wait(state)

    async def _wait(self, state: TopicState) -> None:
        seconds = min(topic.next_look(state, _now()) - _now(), topic.TIME_TO_LIVE) / 1000 + 0.001
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self.context is not state, timeout=seconds, timeout_summary="the topic's time to live"
            )

    async def _deliver(self, subscription: Subscription, event: Event) -> None:
        self.context = topic.told(self.context, subscription, event)
        body = TaskResolved(task_id=subscription.task_id, event=event).model_dump(mode="json", exclude_none=True)
        try:
            await workflow.get_external_workflow_handle(subscription.subscriber).signal("task_resolved", body)
        except FailureError:
            self.context = topic.gone(self.context, subscription.subscriber)

    @workflow.signal(description="An event of the source: evt.adapter.message.created")
    @ignoring_refusals
    def event(self, *args: Any) -> None:
        event = read(Event, args)
        if reason := topic.too_large(event):
            raise invalid(reason)
        self.context = topic.received(self.context, event, _now())

    @workflow.signal(description='Add a task that waits for an event: {"subscriber", "taskId", "expiresAt"?}')
    @ignoring_refusals
    def subscribe(self, *args: Any) -> None:
        self.context = topic.subscribed(self.context, read(Subscription, args), _now())

    def ignore(self, signal: str, reason: str) -> None:
        super().ignore(signal, reason)
        ignored = (*self.context.ignored, formatting.notice(signal, reason))[-topic.MOST_NOTED :]
        self.context = self.context.model_copy(update={"ignored": ignored})

    @workflow.query(description="Events, subscriptions, and deliveries")
    def state(self, *_: Any) -> TopicState:
        return self.context


def _begin(args: Sequence[Any]) -> TopicState:
    """Return a new topic, or that of an earlier execution. Raises ApplicationError `InvalidInput`."""
    if type_of_start(args) == "topic.continue":
        return topic.carried(read(TopicState, args))
    return topic.opened(read(TopicInput, args).key, _now())


def _now() -> int:
    """Return the milliseconds since 1970."""
    return int(workflow.time() * 1000)


def _details(state: TopicState) -> str:
    lines = [f"**{formatting.markdown(formatting.cut(state.key, 200))}** · {len(state.events)} events"]
    lines += [f"- `{waiting.subscriber}` waits, task {waiting.task_id}" for waiting in state.subscriptions[-20:]]
    if state.late:
        lines.append(f"\n**Late** {formatting.markdown(formatting.cut(', '.join(state.late), 400))}")
    return "\n".join(lines)

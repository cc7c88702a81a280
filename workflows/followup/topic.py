"""`EventTopic`: where an outside event and the tasks that wait for it meet, whichever comes first (E4).

Signals append, the loop delivers. What is over is decided and returned in one activation, so that nothing can arrive
in between; an event that comes after it opens the topic anew.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, FailureError

from contracts.followup import TaskResolved
from contracts.topic import Event, Subscription, TopicInput, TopicState
from decisions.followup import topic
from decisions.text import formatting
from workflows.handlers import ignoring_refusals, invalid, read


@workflow.defn
class EventTopic:
    """Where an event from outside and the task that waits for it meet.

    Input: `{"key"}`. Ends after its time to live, not before its last open subscription does.
    """

    @workflow.init
    def __init__(self, *args: Any) -> None:
        try:
            self._known: TopicState | ApplicationError = _begin(args)
        except ApplicationError as refused:
            self._known = refused

    @workflow.run
    async def run(self, *args: Any) -> TopicState:  # noqa: ARG002 - read by __init__; Temporal wants both alike
        while True:
            state = self._state
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

    @property
    def _state(self) -> TopicState:
        if isinstance(self._known, ApplicationError):
            raise self._known
        return self._known

    async def _wait(self, state: TopicState) -> None:
        seconds = min(topic.next_look(state, _now()) - _now(), topic.TIME_TO_LIVE) / 1000 + 0.001
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._known is not state, timeout=seconds, timeout_summary="the topic's time to live"
            )

    async def _deliver(self, subscription: Subscription, event: Event) -> None:
        self._known = topic.told(self._state, subscription, event)
        body = TaskResolved(task_id=subscription.task_id, event=event).model_dump(mode="json", exclude_none=True)
        try:
            await workflow.get_external_workflow_handle(subscription.subscriber).signal("task_resolved", body)
        except FailureError:
            self._known = topic.gone(self._state, subscription.subscriber)

    @workflow.signal(description="An event of the source: evt.adapter.message.created")
    @ignoring_refusals
    def event(self, *args: Any) -> None:
        event = read(Event, args)
        if why := topic.too_large(event):
            raise invalid(why)
        self._known = topic.received(self._state, event, _now())

    @workflow.signal(description='A task waits here: {"subscriber", "taskId", "expiresAt"?}')
    @ignoring_refusals
    def subscribe(self, *args: Any) -> None:
        self._known = topic.subscribed(self._state, read(Subscription, args), _now())

    @workflow.signal(dynamic=True)
    def unknown_signal(self, name: str, args: Sequence[RawValue]) -> None:  # noqa: ARG002 - Temporal's signature
        self.ignore(formatting.cut(name, 80), "no such signal; there are event and subscribe")

    def ignore(self, signal: str, why: str) -> None:
        workflow.logger.warning("%s ignored: %s", signal, why)
        if isinstance(self._known, TopicState):
            notice = formatting.notice(signal, why)
            ignored = (*self._known.ignored, notice)[-topic.MOST_NOTED :]
            self._known = self._known.model_copy(update={"ignored": ignored})

    @workflow.query(description="Events, subscriptions, and what has been delivered")
    def state(self, *_: Any) -> TopicState:
        return self._state


def _begin(args: Sequence[Any]) -> TopicState:
    """A new topic, or what an earlier execution carried over. Raises ApplicationError InvalidInput."""
    if len(args) == 1 and isinstance(args[0], dict) and args[0].get("type") == "topic.continue":
        return topic.carried(read(TopicState, args))
    return topic.opened(read(TopicInput, args).key, _now())


def _now() -> int:
    """Milliseconds since 1970."""
    return int(workflow.time() * 1000)


def _details(state: TopicState) -> str:
    lines = [f"**{formatting.markdown(formatting.cut(state.key, 200))}** · {len(state.events)} events"]
    lines += [f"- `{each.subscriber}` waits, task {each.task_id}" for each in state.subscriptions[-20:]]
    if state.late:
        lines.append(f"\n**Late** {formatting.markdown(formatting.cut(', '.join(state.late), 400))}")
    return "\n".join(lines)

"""`FollowUp`: tasks that resolve later; when they have, a new request enters a lane.

The loop asks `perdure.features.follow_ups.rules.state` for the next move and makes it. Handlers validate signals and
updates and change the state, for which the loop waits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from perdure.activities.telemetry.attributes import AGENT_STATUS, CONVERSATION_ID, WAITING_FOR, format_keyword
from perdure.contracts.run.signals import CancelRequest, EndedRun, HumanInput
from perdure.contracts.run.state import RunStatus
from perdure.decisions import ids
from perdure.decisions.run.recovery import FailureKind
from perdure.decisions.text import formatting
from perdure.features.follow_ups.activities import FollowUps
from perdure.features.follow_ups.contract import (
    CancelCommand,
    CloseFollowUp,
    CreateCommand,
    Event,
    FollowUpFailure,
    FollowUpState,
    FollowUpStatus,
    KnownEvents,
    NotifyRequest,
    ResumeWork,
    SubscribeRequest,
    Subscription,
    TaskCommand,
    TaskResolved,
    TopicInput,
    TopicState,
)
from perdure.features.follow_ups.rules import state as followup
from perdure.features.follow_ups.rules import topic, view
from perdure.workflows.activities import Activities
from perdure.workflows.execution import (
    FILES,
    MAX_STOP_TIME,
    SENDING,
    WATCHING,
    Cancellation,
    Policy,
    classify_failure,
    execute_activity,
)
from perdure.workflows.handlers import (
    ValidatedWorkflow,
    cancel_reason,
    ignore_if_invalid,
    invalid_input,
    now_ms,
    read_argument,
    read_optional_argument,
    require_continue_as_new,
    start_type,
)
from perdure.workflows.rotation import Rotation, continue_as_new
from perdure.workflows.search_attributes import ShownAttributes

_ENDS = {  # as statuses of runs, among which a follow-up is listed
    FollowUpStatus.resolved: RunStatus.completed,
    FollowUpStatus.failed: RunStatus.failed,
    FollowUpStatus.cancelled: RunStatus.cancelled,
}

Q = TypeVar("Q")
R = TypeVar("R")

CONTINUE = "followup.continue"
MAX_EVENTS_SHOWN = 50
MAX_TIMER_MS = 30 * 24 * 3600 * 1000  # milliseconds; the loop waits again for a later deadline


@workflow.defn
class FollowUp(ValidatedWorkflow[FollowUpState]):
    """Tasks that resolve later, and then resume the work.

    Input: the `cmd.workflow.create` command. Result: the `evt.workflow.resolved` event.

    Cancelled ones end Canceled. Those without tasks end Failed with `NoTasks`, and those whose lane refuses the request
    for good with `RejectedError`.
    """

    UNKNOWN_SIGNAL = "no such signal; there are task_create, task_resolved, human_input and cancel"

    @workflow.init
    def __init__(self, *args: Any) -> None:
        self._cancellation = Cancellation()
        self._watches: dict[str, asyncio.Task[None]] = {}  # by run
        self._rotation = Rotation()
        self._sending: asyncio.Task[None] | None = None
        self._refused: str | None = None  # the reason why the lane refuses the request that resumes the work
        self._shown = ShownAttributes()
        super().__init__(_begin_follow_up, args)
        with suppress(ApplicationError):  # a rejected start has no state
            self._report_change(self._state if start_type(args) == CONTINUE else None)

    @property
    def _state(self) -> FollowUpState:
        return self.context

    @_state.setter
    def _state(self, new: FollowUpState) -> None:
        """Set the next state, if it differs, and report the change."""
        if new != self.context:
            before, self.context = self.context, new
            self._report_change(before)

    def _report_change(self, before: FollowUpState | None) -> None:
        """Log each event of a change, which a replay does not repeat, keep the latest in the state, and show it."""
        events = tuple(view.lifecycle_events(before, self._state, now_ms()))
        for event in events:
            workflow.logger.info(event.type, extra={"event": event.model_dump(mode="json", exclude_none=True)})
        if events:
            stored = (*self._state.events, *(view.without_result(event) for event in events))
            self.context = self._state.evolve(events=stored[-MAX_EVENTS_SHOWN:])
        self._shown.update(lambda hides: _attributes_of(self._state, is_confidential=hides))
        workflow.set_current_details(view.format_follow_up_details(self._state))

    @workflow.run
    async def run(self, *args: Any) -> dict[str, Any]:  # noqa: ARG002 - Temporal requires the signature of `__init__`
        try:
            rotates = await self._cancellation.shield(self._run_loop(), lambda: MAX_STOP_TIME)
        except asyncio.CancelledError:
            self._state = followup.cancel_follow_up(self._state, now_ms())
            rotates = False
        if rotates and self._cancellation.reason is None:
            continue_as_new(self._state)
        return await self._cancellation.shield(self._finish_follow_up())

    async def _run_loop(self) -> bool:
        """Make moves until it is over (False) or continues as new (True). Raises CancelledError at a cancel.

        A message that is being sent is not stopped: its outcome would be unknown.
        """
        try:
            return await self._make_moves()
        finally:
            if self._sending is not None:
                await self._sending

    async def _make_moves(self) -> bool:
        while True:
            self._cancellation.raise_if_cancelled()
            self._watch_turns()
            self._raise_send_error()
            self._state = followup.advance_follow_up(self._state, now_ms())
            self._rotation.decide()
            if self._rotation.is_due and self._sending is None:
                return True
            match followup.next_follow_up_move(self._state, is_sending=self._sending is not None):
                case followup.Subscribe() as move:
                    await self._subscribe_task(move)
                case followup.Send() as move:
                    self._state = followup.begin_follow_up_task(self._state, move.task.task_id, now_ms())
                    self._sending = asyncio.create_task(self._send_message(move))
                case followup.WaitForTasks(until):
                    await self._wait_for_change(until)
                case followup.Resume():
                    await self._resume_work()
                    return False
                case followup.EndFollowUp():
                    return False

    async def _subscribe_task(self, move: followup.Subscribe) -> None:
        task = move.task
        self._state = followup.begin_follow_up_task(self._state, task.task_id, now_ms())
        request = SubscribeRequest(topic=move.topic, task_id=task.task_id, expires_at=task.expires_at)
        await self._execute_cancellable(FollowUps.subscribe_task, request, f"wait: {task.description}")
        self._state = followup.block_task(self._state, task.task_id, now_ms())

    async def _send_message(self, move: followup.Send) -> None:
        """Send a message while the loop runs: a receiver that is down must not hold up the other tasks."""
        task = move.task
        if self._state.quiet:
            self._state = followup.skip_send(self._state, task.task_id, now_ms())
            return
        request = NotifyRequest(
            task_id=task.task_id, number=move.number, execution=self._state.execution, message=move.message
        )
        outcome = await self._execute(FollowUps.notify, request, f"send: {task.description}", SENDING)
        self._state = followup.record_send(self._state, task.task_id, outcome, now_ms())

    def _raise_send_error(self) -> None:
        """Raise the error of a finished send, which its own task would hide."""
        if self._sending is not None and self._sending.done():
            self._sending.result()
            self._sending = None

    async def _resume_work(self) -> None:
        state = self._state
        work = ResumeWork(
            session_id=state.definition.resume_target.session_id,
            request=view.resume_request(state),
            execution=state.execution,
            created_by=state.created_by,
        )
        try:
            await self._execute_cancellable(FollowUps.resume_work, work, f"resume in {work.session_id}")
        except ActivityError as error:
            self._refused = error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause)

    async def _execute_cancellable(
        self, activity: Callable[[Any, Q], Awaitable[None]], request: Q, summary: str
    ) -> None:
        """Run an activity that a cancel stops. Raises CancelledError if it was stopped between two attempts."""
        try:
            await self._cancellation.cancellable(self._execute(activity, request, summary))
        except ActivityError as error:
            if classify_failure(error) is FailureKind.cancelled:
                raise asyncio.CancelledError from None
            raise

    async def _execute(
        self, activity: Callable[[Any, Q], Awaitable[R]], request: Q, summary: str, policy: Policy = FILES
    ) -> R:
        return await execute_activity(self._cancellation, activity, request, formatting.truncate(summary, 80), policy)

    async def _wait_for_change(self, until: int | None) -> None:
        state = self._state
        about = view.follow_up_waiting_for(state) or "the end of the turn"
        changed = workflow.wait_condition(
            lambda: (
                self._state is not state
                or (self._sending is not None and self._sending.done())
                or self._rotation.is_undecided
            ),
            timeout=None if until is None else min(max(until - now_ms(), 0), MAX_TIMER_MS) / 1000 + 0.001,
            timeout_summary=about,
        )
        with suppress(TimeoutError):
            await self._cancellation.cancellable(changed)

    def _watch_turns(self) -> None:
        """Watch each run that may still create tasks to its end."""
        for run_id in self._state.runs:
            if run_id not in self._watches:
                self._watches[run_id] = asyncio.create_task(self._watch_turn(run_id))

    async def _watch_turn(self, run_id: str) -> None:
        workflow_id, summary = ids.run_workflow_id(run_id), f"until run {run_id[:60]} ends"
        with suppress(ActivityError):  # the run has signalled its end, and nothing else ends the wait
            await self._execute(Activities.watch_run, workflow_id, summary, WATCHING)
        self._state = followup.remove_creator_run(self._state, run_id)

    async def _finish_follow_up(self) -> dict[str, Any]:
        """Release its topics, and return or raise the end as Temporal should show it."""
        state = self._state
        is_cancelled = state.state is FollowUpStatus.cancelled
        by_signal = is_cancelled and workflow.cancellation_reason() is None
        request = CloseFollowUp(
            subscriptions=tuple(
                SubscribeRequest(topic=topic, task_id=task.task_id, expires_at=0)
                for task, topic in followup.subscribed_topics(state)
            ),
            cancel=(self._cancellation.reason or "cancelled") if by_signal else None,
        )
        if request.subscriptions or by_signal:
            await workflow.execute_activity_method(
                FollowUps.close_follow_up, request, summary="nothing is waited for any more", **FILES
            )
        if is_cancelled:
            raise asyncio.CancelledError
        if not state.tasks:
            message = "the turn that created this follow-up has ended, and it has no tasks"
            raise ApplicationError(message, type=FollowUpFailure.no_tasks, non_retryable=True)
        if self._refused is not None:
            raise ApplicationError(self._refused, type=FollowUpFailure.refused, non_retryable=True)
        return view.resolved_event(state).model_dump(mode="json", exclude_none=True)

    @workflow.signal(description="Add a task: the cmd.workflow.task.create command")
    @ignore_if_invalid
    def task_create(self, *args: Any) -> None:
        self._add_task(args)

    @workflow.update(description="Add a task: the cmd.workflow.task.create command; refused with the reason")
    def create_task(self, *args: Any) -> dict[str, Any]:
        return {"workflowId": self._state.workflow_id, "taskId": self._add_task(args)}

    def _add_task(self, args: Sequence[Any]) -> str:
        data = self._parse_task(args).data
        self._state = followup.add_task(self._state, data, now_ms())
        return data.task_id

    @create_task.validator
    def _task_fits(self, *args: Any) -> None:
        self._parse_task(args)

    def _parse_task(self, args: Sequence[Any]) -> TaskCommand:
        command = read_argument(TaskCommand, args)
        halted = "the follow-up is being cancelled" if self._cancellation.reason is not None else None
        if reason := halted or followup.task_rejection_reason(self._state, command.data, now_ms()):
            raise invalid_input(reason)
        return command

    @workflow.signal(description='An event for a task, or its result: {"taskId", "event" | "result", "resolvedBy"?}')
    @ignore_if_invalid
    def task_resolved(self, *args: Any) -> None:
        self._state, reason = followup.resolve_task(self._state, read_argument(TaskResolved, args), now_ms())
        if reason is not None:
            raise invalid_input(reason)

    @workflow.signal(description="For runs: one that may create tasks ends")
    @ignore_if_invalid
    def run_ended(self, *args: Any) -> None:
        run_id = read_argument(EndedRun, args).run_id
        self._state = followup.remove_creator_run(self._state, run_id)
        if (watch := self._watches.get(run_id)) is not None:
            watch.cancel()

    @workflow.signal(description='Answer an open question: {"text", "question_id"?, "by"?}')
    @ignore_if_invalid
    def human_input(self, *args: Any) -> None:
        self._take_answer(args)

    @workflow.update(description='Answer an open question: {"text", "question_id"?, "by"?}; refused with the reason')
    def answer(self, *args: Any) -> dict[str, Any]:
        asked = self._take_answer(args)
        return {"workflowId": self._state.workflow_id, "question_id": asked, "accepted": True}

    def _take_answer(self, args: Sequence[Any]) -> str:
        answer = self._parse_answer(args)
        asked = answer.question_id or followup.open_prompts(self._state)[0].task_id
        self._state = followup.answer_prompt(self._state, answer, now_ms())
        return asked

    @answer.validator
    def _answer_fits(self, *args: Any) -> None:
        self._parse_answer(args)

    def _parse_answer(self, args: Sequence[Any]) -> HumanInput:
        answer = read_argument(HumanInput, args)
        if reason := followup.prompt_rejection_reason(self._state, answer):
            raise invalid_input(reason)
        return answer

    @workflow.signal(description='Cancel it, and resume nothing: cmd.workflow.cancel, or {"reason"?, "by"?}')
    @ignore_if_invalid
    def cancel(self, *args: Any) -> None:
        self._cancellation.request(_cancel_reason(self._state, args))

    def note(self, notice: str) -> None:
        self._state = self._state.evolve(ignored=self._state.ignored.add(notice))

    @workflow.query(description="The tasks, their states and results, and the latest lifecycle events")
    def state(self, *_: Any) -> FollowUpState:
        return self._state


def _attributes_of(state: FollowUpState, *, is_confidential: bool) -> TypedSearchAttributes:
    """Return the attributes of a follow-up, with the statuses of runs, among which it is listed."""
    waits = RunStatus.waiting_on_human if followup.open_prompts(state) else RunStatus.waiting_on_tool
    status = _ENDS.get(state.state, waits if state.tasks else RunStatus.queued)
    pairs: list[SearchAttributePair[Any]] = [
        SearchAttributePair(AGENT_STATUS, status.value),
        SearchAttributePair(CONVERSATION_ID, format_keyword(state.definition.resume_target.session_id)),
    ]
    if about := view.follow_up_waiting_for(state, is_confidential=is_confidential):
        pairs.append(SearchAttributePair(WAITING_FOR, about))
    return TypedSearchAttributes(pairs)


def _begin_follow_up(args: Sequence[Any]) -> FollowUpState:
    """Return the follow-up of a command or of an earlier execution. Raises ApplicationError `InvalidInput`."""
    if start_type(args) == CONTINUE:
        state = read_argument(FollowUpState, args)
        require_continue_as_new()
        return state
    command, info = read_argument(CreateCommand, args), workflow.info()
    name = command.data.workflow_id
    if info.workflow_id != ids.follow_up_workflow_id(name):
        raise invalid_input(f"follow-up {name} has to be started as wf:{name}")
    return followup.open_follow_up(command, now_ms(), info.first_execution_run_id)


def _cancel_reason(state: FollowUpState, args: Sequence[Any]) -> str:
    if start_type(args) is not None:
        data = read_argument(CancelCommand, args).data
        if reason := followup.misdirection_reason(state, data.workflow_id):
            raise invalid_input(reason)
        return data.reason or "cmd.workflow.cancel"
    return cancel_reason(read_optional_argument(CancelRequest, args), "cancel signal")


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
    async def run(self, *args: Any) -> TopicState:  # noqa: ARG002 - Temporal requires the signature of `__init__`
        while True:
            state = self.context
            self._rotation.decide()
            workflow.set_current_details(_format_details(state))
            if (due := next(topic.pending_deliveries(state, now_ms()), None)) is not None:
                await self._deliver_event(*due)
            elif topic.is_topic_over(state, now_ms()):
                return state.evolve(events=(), marks=(), known=KnownEvents())
            elif self._rotation.is_due:
                continue_as_new(state)
            else:
                await self._wait_for_change(state)

    async def _wait_for_change(self, state: TopicState) -> None:
        seconds = min(topic.next_check(state, now_ms()) - now_ms(), topic.TIME_TO_LIVE) / 1000 + 0.001
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
        self.context = self.context.evolve(ignored=self.context.ignored.add(notice))

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

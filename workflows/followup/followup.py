"""`FollowUp`: tasks that resolve later; when they have, a new request enters a lane.

The loop asks `decisions.followup.state` for the next move and makes it. Handlers validate signals and updates and
change the state, for which the loop waits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from activities.followup.followup import FollowUps
from activities.run.status import RunWatcher
from contracts.followup import (
    CancelCommand,
    CloseFollowUp,
    FollowUpFailure,
    FollowUpState,
    FollowUpStatus,
    NotifyRequest,
    ResumeWork,
    SubscribeRequest,
    TaskCommand,
    TaskResolved,
)
from contracts.run.signals import CancelRequest, HumanInput
from decisions import ids
from decisions.followup import state as followup
from decisions.followup import view
from decisions.run.recovery import FailureKind
from decisions.text import formatting
from workflows import cancellation
from workflows.execution import execute_activity
from workflows.failures import classify_failure
from workflows.followup.context import FollowUpContext, begin_follow_up, now_ms
from workflows.handlers import (
    ValidatedWorkflow,
    cancel_reason,
    ignore_if_invalid,
    invalid_input,
    read_argument,
    read_optional_argument,
    start_type,
)
from workflows.policies import FILES, SENDING, WATCHING, Policy

Q = TypeVar("Q")
R = TypeVar("R")

CONCURRENT_SENDS = "sends-beside"  # the patch since which the loop does not wait for a message that it sends
MAX_TIMER_MS = 30 * 24 * 3600 * 1000  # milliseconds; the loop waits again for a later deadline


@workflow.defn
class FollowUp(ValidatedWorkflow[FollowUpContext]):
    """Tasks that resolve later, and then resume the work.

    Input: the `cmd.workflow.create` command. Result: the `evt.workflow.resolved` event.

    Cancelled ones end Canceled. Those without tasks end Failed with `NoTasks`, and those whose lane refuses the request
    for good with `RejectedError`.
    """

    UNKNOWN_SIGNAL = "no such signal; there are task_create, task_resolved, human_input and cancel"

    @workflow.init
    def __init__(self, *args: Any) -> None:
        self._watched: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        self._refused: str | None = None  # the reason why the lane refuses the request that resumes the work
        super().__init__(begin_follow_up, args)

    @workflow.run
    async def run(self, *args: Any) -> dict[str, Any]:  # noqa: ARG002 - read by __init__; Temporal wants both alike
        try:
            rotates = await self.context.cancellation.shield(self._run_loop(), cancellation.MAX_STOP_TIME)
        except asyncio.CancelledError:
            self.context.set_state(followup.cancel_follow_up(self.context.state, now_ms()))
            rotates = False
        if rotates and self.context.cancellation.reason is None:
            workflow.continue_as_new(self.context.state)
        return await self.context.cancellation.shield(self._finish_follow_up())

    async def _run_loop(self) -> bool:
        """Make moves until it is over (False) or the history is long (True). Raises CancelledError at a cancel.

        A message that is being sent is not stopped: its outcome would be unknown.
        """
        try:
            return await self._make_moves()
        finally:
            if self._sending is not None:
                await self._sending

    async def _make_moves(self) -> bool:
        while True:
            self.context.cancellation.raise_if_cancelled()
            self._watch_turns()
            self._raise_send_error()
            self.context.set_state(followup.advance_follow_up(self.context.state, now_ms()))
            if workflow.info().is_continue_as_new_suggested() and self._sending is None:
                return True
            match followup.next_follow_up_move(self.context.state, is_sending=self._sending is not None):
                case followup.Subscribe() as move:
                    await self._subscribe_task(move)
                case followup.Send() as move:
                    self.context.set_state(
                        followup.begin_follow_up_task(self.context.state, move.task.task_id, now_ms())
                    )
                    if workflow.patched(CONCURRENT_SENDS):
                        self._sending = asyncio.create_task(self._send_message(move))
                    else:
                        await self._send_message(move)
                case followup.WaitForTasks(until):
                    await self._wait_for_change(until)
                case followup.Resume():
                    await self._resume_work()
                    return False
                case followup.EndFollowUp():
                    return False

    async def _subscribe_task(self, move: followup.Subscribe) -> None:
        task = move.task
        self.context.set_state(followup.begin_follow_up_task(self.context.state, task.task_id, now_ms()))
        request = SubscribeRequest(topic=move.topic, task_id=task.task_id, expires_at=task.expires_at)
        await self._execute_cancellable(FollowUps.subscribe_task, request, f"wait: {task.description}")
        self.context.set_state(followup.block_task(self.context.state, task.task_id, now_ms()))

    async def _send_message(self, move: followup.Send) -> None:
        """Send a message while the loop runs: a receiver that is down must not hold up the other tasks."""
        task = move.task
        request = NotifyRequest(
            task_id=task.task_id, number=move.number, execution=self.context.state.execution, message=move.message
        )
        outcome = await self._execute(FollowUps.notify, request, f"send: {task.description}", SENDING)
        self.context.set_state(followup.record_send(self.context.state, task.task_id, outcome, now_ms()))

    def _raise_send_error(self) -> None:
        """Raise the error of a finished send, which its own task would hide."""
        if self._sending is not None and self._sending.done():
            self._sending.result()
            self._sending = None

    async def _resume_work(self) -> None:
        request = view.resume_request(self.context.state)
        state = self.context.state
        session = state.definition.resume_target.session_id
        work = ResumeWork(session_id=session, request=request, execution=state.execution, created_by=state.created_by)
        try:
            await self._execute_cancellable(FollowUps.resume_work, work, f"resume in {work.session_id}")
        except ActivityError as error:
            self._refused = error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause)

    async def _execute_cancellable(
        self, activity: Callable[[Any, Q], Awaitable[None]], request: Q, summary: str
    ) -> None:
        """Run an activity that a cancel stops. Raises CancelledError if it was stopped between two attempts."""
        try:
            await self.context.cancellation.cancellable(self._execute(activity, request, summary))
        except ActivityError as error:
            if classify_failure(error) is FailureKind.cancelled:
                raise asyncio.CancelledError from None
            raise

    async def _execute(
        self, activity: Callable[[Any, Q], Awaitable[R]], request: Q, summary: str, policy: Policy = FILES
    ) -> R:
        return await execute_activity(
            self.context.cancellation, activity, request, formatting.truncate(summary, 80), policy
        )

    async def _wait_for_change(self, until: int | None) -> None:
        state = self.context.state
        about = view.follow_up_waiting_for(state) or "the end of the turn"
        changed = workflow.wait_condition(
            lambda: self.context.state is not state or (self._sending is not None and self._sending.done()),
            timeout=None if until is None else min(max(until - now_ms(), 0), MAX_TIMER_MS) / 1000 + 0.001,
            timeout_summary=about,
        )
        with suppress(TimeoutError):
            await self.context.cancellation.cancellable(changed)

    def _watch_turns(self) -> None:
        """Watch each run that may still create tasks to its end."""
        for run_id in self.context.state.runs:
            if run_id not in self._watched:
                self._watched.add(run_id)
                asyncio.create_task(self._watch_turn(run_id))  # noqa: RUF006 - the event loop of a workflow keeps it

    async def _watch_turn(self, run_id: str) -> None:
        workflow_id, summary = ids.run_workflow_id(run_id), f"until run {run_id[:60]} ends"
        await self._execute(RunWatcher.watch_run, workflow_id, summary, WATCHING)
        self.context.set_state(followup.remove_creator_run(self.context.state, run_id))

    async def _finish_follow_up(self) -> dict[str, Any]:
        """Release its topics, and return or raise the end as Temporal should show it."""
        state = self.context.state
        is_cancelled = state.state is FollowUpStatus.cancelled
        by_signal = is_cancelled and workflow.cancellation_reason() is None
        request = CloseFollowUp(
            subscriptions=tuple(
                SubscribeRequest(topic=topic, task_id=task.task_id, expires_at=0)
                for task, topic in followup.subscribed_topics(state)
            ),
            cancel=(self.context.cancellation.reason or "cancelled") if by_signal else None,
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
        self._add_task(self._parse_task(args))

    @workflow.update(description="Add a task: the cmd.workflow.task.create command; refused with the reason")
    def create_task(self, *args: Any) -> dict[str, Any]:
        command = self._parse_task(args)
        self._add_task(command)
        return {"workflowId": self.context.state.workflow_id, "taskId": command.data.task_id}

    @create_task.validator
    def _task_fits(self, *args: Any) -> None:
        self._parse_task(args)

    def _parse_task(self, args: Sequence[Any]) -> TaskCommand:
        command = read_argument(TaskCommand, args)
        halted = "the follow-up is being cancelled" if self.context.cancellation.reason is not None else None
        if reason := halted or followup.task_rejection_reason(self.context.state, command.data, now_ms()):
            raise invalid_input(reason)
        return command

    def _add_task(self, command: TaskCommand) -> None:
        self.context.set_state(followup.add_task(self.context.state, command.data, now_ms()))

    @workflow.signal(description='An event for a task, or its result: {"taskId", "event" | "result", "resolvedBy"?}')
    @ignore_if_invalid
    def task_resolved(self, *args: Any) -> None:
        state, reason = followup.resolve_task(self.context.state, read_argument(TaskResolved, args), now_ms())
        self.context.set_state(state)
        if reason is not None:
            raise invalid_input(reason)

    @workflow.signal(description='Answer an open question: {"text", "question_id"?, "by"?}')
    @ignore_if_invalid
    def human_input(self, *args: Any) -> None:
        self.context.set_state(followup.answer_prompt(self.context.state, self._parse_answer(args), now_ms()))

    @workflow.update(description='Answer an open question: {"text", "question_id"?, "by"?}; refused with the reason')
    def answer(self, *args: Any) -> dict[str, Any]:
        answer = self._parse_answer(args)
        asked = answer.question_id or followup.open_prompts(self.context.state)[0].task_id
        self.context.set_state(followup.answer_prompt(self.context.state, answer, now_ms()))
        return {"workflowId": self.context.state.workflow_id, "question_id": asked, "accepted": True}

    @answer.validator
    def _answer_fits(self, *args: Any) -> None:
        self._parse_answer(args)

    def _parse_answer(self, args: Sequence[Any]) -> HumanInput:
        answer = read_argument(HumanInput, args)
        if reason := followup.prompt_rejection_reason(self.context.state, answer):
            raise invalid_input(reason)
        return answer

    @workflow.signal(description='Cancel it, and resume nothing: cmd.workflow.cancel, or {"reason"?, "by"?}')
    @ignore_if_invalid
    def cancel(self, *args: Any) -> None:
        self.context.cancellation.request(_cancel_reason(self.context.state, args))

    def ignore(self, signal: str, reason: str) -> None:
        self.context.ignore(signal, reason)

    @workflow.query(description="The tasks, their states and results, and the latest lifecycle events")
    def state(self, *_: Any) -> FollowUpState:
        return self.context.state


def _cancel_reason(state: FollowUpState, args: Sequence[Any]) -> str:
    if start_type(args) is not None:
        data = read_argument(CancelCommand, args).data
        if reason := followup.misdirection_reason(state, data.workflow_id):
            raise invalid_input(reason)
        return data.reason or "cmd.workflow.cancel"
    return cancel_reason(read_optional_argument(CancelRequest, args), "cancel signal")

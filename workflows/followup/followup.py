"""`FollowUp`: tasks that resolve later; when they have, a new request enters a lane.

The loop asks `decisions.followup.state` for the next move and makes it. Handlers validate signals and updates and
change the state, for which the loop waits.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

from activities.followup.followup import FollowUps
from activities.run.status import Standings
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
from contracts.tool import ToolOutcome
from decisions import ids
from decisions.followup import state as followup
from decisions.followup import view
from decisions.text import formatting
from workflows import cancellation
from workflows.encryption import readable
from workflows.failures import Fate, fate
from workflows.followup.context import LiveFollowUp, begin, now
from workflows.handlers import ignoring_refusals, invalid, read, read_optional
from workflows.policies import FILES, SENDING, WAIT_FOR_END, WATCHING

SENDS_BESIDE = "sends-beside"  # the patch of sends that go on beside the loop; before it, the loop waited for each
LONGEST_TIMER = 30 * 24 * 3600 * 1000  # milliseconds; what is further away than any timer reaches is looked at again


@workflow.defn
class FollowUp:
    """Tasks that resolve later, and then resume the work.

    Input: the `cmd.workflow.create` command. Result: the `evt.workflow.resolved` event.

    Cancelled ones end Canceled, those that had nothing to wait for Failed with `NoTasks`, and those whose lane will
    never take the work with `Refused`.
    """

    @workflow.init
    def __init__(self, *args: Any) -> None:
        self._watched: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        self._refused: str | None = None  # why the lane will never take the request that resumes the work
        try:
            self._begun: LiveFollowUp | ApplicationError = begin(args)
        except ApplicationError as refused:
            self._begun = refused

    @workflow.run
    async def run(self, *args: Any) -> dict[str, Any]:  # noqa: ARG002 - read by __init__; Temporal wants both alike
        try:
            rotates = await self._live.halt.outlast(self._work(), cancellation.MOST_WAIT)
        except asyncio.CancelledError:
            self._live.become(followup.cancelled(self._live.state, now()))
            rotates = False
        if rotates and self._live.halt.reason is None:
            workflow.continue_as_new(self._live.state)
        return await self._live.halt.outlast(self._end())

    @property
    def _live(self) -> LiveFollowUp:
        if isinstance(self._begun, ApplicationError):
            raise self._begun
        return self._begun

    async def _work(self) -> bool:
        """Moves until it is over (False) or the history is long (True). Raises CancelledError at a halt.

        A message that is going out is not cut off: how that ended would not be known.
        """
        try:
            return await self._moves()
        finally:
            if self._sending is not None:
                await self._sending

    async def _moves(self) -> bool:
        while True:
            self._live.halt.check()
            self._watch_turns()
            self._take_in_sent()
            self._live.become(followup.advanced(self._live.state, now()))
            if workflow.info().is_continue_as_new_suggested() and self._sending is None:
                return True
            match followup.next_move(self._live.state, is_sending=self._sending is not None):
                case followup.Subscribe() as move:
                    await self._subscribe(move)
                case followup.Send() as move:
                    self._live.become(followup.begun(self._live.state, move.task.task_id, now()))
                    if workflow.patched(SENDS_BESIDE):
                        self._sending = asyncio.create_task(self._send(move))
                    else:
                        await self._send(move)
                case followup.Wait(until):
                    await self._wait(until)
                case followup.Resume():
                    await self._resume()
                    return False
                case followup.End():
                    return False

    async def _subscribe(self, move: followup.Subscribe) -> None:
        task = move.task
        self._live.become(followup.begun(self._live.state, task.task_id, now()))
        request = SubscribeRequest(topic=move.topic, task_id=task.task_id, expires_at=task.expires_at)
        await self._do(FollowUps.subscribe_task, request, f"wait: {task.description}")
        self._live.become(followup.blocked(self._live.state, task.task_id, now()))

    async def _send(self, move: followup.Send) -> None:
        """It goes on beside the loop: what nobody takes for minutes must not hold up the other tasks."""
        task = move.task
        request = NotifyRequest(
            task_id=task.task_id, number=move.number, execution=self._live.state.execution, message=move.message
        )
        outcome: ToolOutcome = await self._scheduled(FollowUps.notify, request, f"send: {task.description}", SENDING)
        self._live.become(followup.sent(self._live.state, task.task_id, outcome, now()))

    def _take_in_sent(self) -> None:
        """What a send raised is raised here: beside the loop nobody would hear of it."""
        if self._sending is not None and self._sending.done():
            self._sending.result()
            self._sending = None

    async def _resume(self) -> None:
        request = view.resume_request(self._live.state)
        state = self._live.state
        session = state.definition.resume_target.session_id
        work = ResumeWork(session_id=session, request=request, execution=state.execution, created_by=state.created_by)
        try:
            await self._do(FollowUps.resume_work, work, f"resume in {work.session_id}")
        except ActivityError as error:
            self._refused = error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause)

    async def _do(self, what: Any, request: Any, summary: str) -> None:
        """Raises CancelledError where a halt ended it between two attempts."""
        try:
            await self._live.halt.stoppable(self._scheduled(what, request, summary))
        except ActivityError as error:
            if fate(error) is Fate.cancelled:
                raise asyncio.CancelledError from None
            raise

    async def _scheduled(self, what: Any, request: Any, summary: str, policy: dict[str, Any] = FILES) -> Any:
        """Tried until it comes through: none of these does harm when it is repeated."""
        return await readable(
            self._live.halt,
            lambda: workflow.execute_activity_method(
                what, request, cancellation_type=WAIT_FOR_END, summary=formatting.cut(summary, 80), **policy
            ),
        )

    async def _wait(self, until: int | None) -> None:
        state = self._live.state
        about = view.waiting_for(state) or "the end of the turn"
        changed = workflow.wait_condition(
            lambda: self._live.state is not state or (self._sending is not None and self._sending.done()),
            timeout=None if until is None else min(max(until - now(), 0), LONGEST_TIMER) / 1000 + 0.001,
            timeout_summary=about,
        )
        with suppress(TimeoutError):
            await self._live.halt.stoppable(changed)

    def _watch_turns(self) -> None:
        """Each run that may still create tasks is watched to its end."""
        for run_id in self._live.state.runs:
            if run_id not in self._watched:
                self._watched.add(run_id)
                asyncio.create_task(self._watch(run_id))  # noqa: RUF006 - the event loop of a workflow keeps it

    async def _watch(self, run_id: str) -> None:
        await readable(
            self._live.halt,
            lambda: workflow.execute_activity_method(
                Standings.watch_run, ids.run_workflow_id(run_id), summary=f"until run {run_id[:60]} ends", **WATCHING
            ),
        )
        self._live.become(followup.turn_ended(self._live.state, run_id))

    async def _end(self) -> dict[str, Any]:
        """Frees its topics, and ends as Temporal should show it."""
        state = self._live.state
        is_cancelled = state.state is FollowUpStatus.cancelled
        by_signal = is_cancelled and workflow.cancellation_reason() is None
        request = CloseFollowUp(
            subscriptions=tuple(
                SubscribeRequest(topic=topic, task_id=task.task_id, expires_at=0)
                for task, topic in followup.topics(state)
            ),
            cancel=(self._live.halt.reason or "cancelled") if by_signal else None,
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
        return view.ended(state).model_dump(mode="json", exclude_none=True)

    @workflow.signal(description="One task more: the cmd.workflow.task.create command")
    @ignoring_refusals
    def task_create(self, *args: Any) -> None:
        self._add(self._checked_task(args))

    @workflow.update(description="One task more: the cmd.workflow.task.create command; refused with the reason")
    def create_task(self, *args: Any) -> dict[str, Any]:
        command = self._checked_task(args)
        self._add(command)
        return {"workflowId": self._live.state.workflow_id, "taskId": command.data.task_id}

    @create_task.validator
    def _task_fits(self, *args: Any) -> None:
        self._checked_task(args)

    def _checked_task(self, args: Sequence[Any]) -> TaskCommand:
        command = read(TaskCommand, args)
        halted = "the follow-up is being cancelled" if self._live.halt.reason is not None else None
        if why := halted or followup.refusal(self._live.state, command.data, now()):
            raise invalid(why)
        return command

    def _add(self, command: TaskCommand) -> None:
        self._live.become(followup.added(self._live.state, command.data, now()))

    @workflow.signal(description='An event for a task, or its result: {"taskId", "event" | "result", "resolvedBy"?}')
    @ignoring_refusals
    def task_resolved(self, *args: Any) -> None:
        new, why = followup.took(self._live.state, read(TaskResolved, args), now())
        self._live.become(new)
        if why is not None:
            raise invalid(why)

    @workflow.signal(description='Answer an open question: {"text", "question_id"?, "by"?}')
    @ignoring_refusals
    def human_input(self, *args: Any) -> None:
        self._live.become(followup.answered(self._live.state, self._checked_answer(args), now()))

    @workflow.update(description='Answer an open question: {"text", "question_id"?, "by"?}; refused with the reason')
    def answer(self, *args: Any) -> dict[str, Any]:
        answer = self._checked_answer(args)
        asked = answer.question_id or followup.questions(self._live.state)[0].task_id
        self._live.become(followup.answered(self._live.state, answer, now()))
        return {"workflowId": self._live.state.workflow_id, "question_id": asked, "accepted": True}

    @answer.validator
    def _answer_fits(self, *args: Any) -> None:
        self._checked_answer(args)

    def _checked_answer(self, args: Sequence[Any]) -> HumanInput:
        answer = read(HumanInput, args)
        if why := followup.answer_refusal(self._live.state, answer):
            raise invalid(why)
        return answer

    @workflow.signal(description='Cancel it, and resume nothing: cmd.workflow.cancel, or {"reason"?, "by"?}')
    @ignoring_refusals
    def cancel(self, *args: Any) -> None:
        self._live.halt.request(_reason(self._live.state, args))

    @workflow.signal(dynamic=True)
    def unknown_signal(self, name: str, args: Sequence[RawValue]) -> None:  # noqa: ARG002 - Temporal's signature
        known = "there are task_create, task_resolved, human_input and cancel"
        self.ignore(formatting.cut(name, 80), f"no such signal; {known}")

    def ignore(self, signal: str, why: str) -> None:
        if isinstance(self._begun, LiveFollowUp):
            self._begun.ignore(signal, why)

    @workflow.query(description="Its tasks, their states and results, and the latest lifecycle events")
    def state(self, *_: Any) -> FollowUpState:
        return self._live.state


def _reason(state: FollowUpState, args: Sequence[Any]) -> str:
    if len(args) == 1 and isinstance(args[0], dict) and "type" in args[0]:
        data = read(CancelCommand, args).data
        if why := followup.misdirected(state, data.workflow_id):
            raise invalid(why)
        return data.reason or "cmd.workflow.cancel"
    request = read_optional(CancelRequest, args)
    return (request.reason or "cancel signal") + (f" by {request.by}" if request.by else "")

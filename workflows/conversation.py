"""`Conversation`: a lane. One run at a time, first come, first served (B8).

Handlers judge and append, without waiting; the loop starts the turns and watches them. A turn may outlast many
executions of its lane, so it is started as a child that is left alone when the lane continues as new.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, WorkflowIDReusePolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
)
from temporalio.workflow import ChildWorkflowHandle, ParentClosePolicy

from activities.attributes import CONVERSATION_ID
from activities.conversation import Conversations
from activities.observation import count
from activities.outcome import of_event, of_failure
from activities.standing import Standings
from contracts.conversation import (
    MAX_ID_LENGTH,
    ConversationStart,
    DropRequest,
    Ended,
    LaneFault,
    LaneState,
    LaneView,
    Queued,
    Steered,
    SteerRequest,
    SubmitRequest,
    TurnAnswer,
    Word,
)
from contracts.failures import RunFailure
from contracts.mailbox import TurnEnded
from contracts.signals import CancelRequest, HumanInput
from decisions import conversation as lane
from decisions import ids, metrics
from decisions.narrate import SHOWN, cut, markdown
from workflows.halt import Halt
from workflows.handlers import ignoring_refusals, invalid, read, read_optional
from workflows.policies import ANSWER, LOOK_BACK, WATCHING

Run = ChildWorkflowHandle[Any, Any]
NEVER_BEGAN = (RunFailure.invalid_input, RunFailure.unknown_agent, RunFailure.bad_project)


@dataclass(frozen=True)
class _PassOn:
    """Hand on what is meant for the turn that runs."""

    answer: HumanInput


class _Due(Enum):
    """What a lane can have to do."""

    errand = auto()
    turn_is_over = auto()
    end = auto()
    stop_of_turn = auto()
    leave = auto()
    turn = auto()


@workflow.defn
class Conversation:
    """A lane: one run at a time, in the order of its requests.

    Input: `{"conversation_id"}`. It stays open for later requests.
    """

    @workflow.init
    def __init__(self, *args: Any) -> None:
        self._halt = Halt()
        self._errands: list[lane.Errand | _PassOn] = []
        self._turn: asyncio.Task[Ended] | None = None
        self._is_stopping = False
        self._goes_on = _is_carried(args)  # from an earlier execution
        try:
            self._begun: LaneState | ApplicationError = _begin(args)
        except ApplicationError as refused:
            self._begun = refused

    @workflow.run
    async def run(self, *args: Any) -> None:  # noqa: ARG002 - read by __init__; Temporal wants both alike
        if workflow.info().typed_search_attributes.get(CONVERSATION_ID) is None:
            workflow.upsert_search_attributes([CONVERSATION_ID.value_set(cut(self._lane.conversation_id, 200))])
        await self._halt.outlast(self._work())
        if self._halt.reason is not None:
            raise asyncio.CancelledError
        if not lane.is_over(self._lane):  # a request may have come just now
            workflow.continue_as_new(self._lane)

    @property
    def _lane(self) -> LaneState:
        if isinstance(self._begun, ApplicationError):
            raise self._begun
        return self._begun

    @_lane.setter
    def _lane(self, state: LaneState) -> None:
        self._begun = state
        workflow.set_current_details(lane.details(state))

    async def _work(self) -> None:
        """Until the history is long, it closes, or it has been cancelled and its turn has ended."""
        if not self._goes_on and not self._lane.closes:  # of what closes after itself no turn is left
            await self._look_back()
        if self._lane.active is not None:
            self._turn = asyncio.create_task(self._watched(self._lane.active.queued))
        while True:
            await workflow.wait_condition(lambda: self._due is not None)
            if self._due is _Due.leave:
                return
            if self._due is _Due.end:
                await self._give_up(self._halt.reason or "")
                return
            await self._see_to(self._due)

    async def _see_to(self, due: _Due | None) -> None:
        match due:
            case _Due.errand:
                await self._run_errand()
            case _Due.turn_is_over:
                self._close_turn()
            case _Due.stop_of_turn:
                self._stop_turn(self._halt.reason or "")
            case _Due.turn:
                await self._dispatch()
            case _:
                raise AssertionError(f"{due} is nothing to do")

    @property
    def _due(self) -> _Due | None:
        """What is to be done now: the most urgent of it."""
        if self._errands or self._lane.words:
            return _Due.errand
        if self._turn is not None and self._turn.done():
            return _Due.turn_is_over
        if self._halt.reason is not None and not (self._turn is not None and self._is_stopping):
            return _Due.end if self._turn is None else _Due.stop_of_turn
        if self._is_long() or lane.is_over(self._lane):
            return _Due.leave
        return _Due.turn if self._turn is None and self._lane.queue else None

    async def _look_back(self) -> None:
        """An earlier lane that was terminated may have left its turn open, and there must not be two."""
        try:
            turn: Queued | None = await workflow.execute_activity_method(
                Conversations.open_turn, self._lane.conversation_id, summary="look for an open turn", **LOOK_BACK
            )
        except ActivityError as error:
            workflow.logger.warning("nobody knows whether a turn is open: %s", error.cause)
            return
        if turn is not None:
            self._lane = lane.found_open(self._lane, turn)

    def _is_long(self) -> bool:
        """Never after a cancel: the request would be lost, since it belongs to this execution."""
        return self._halt.reason is None and workflow.info().is_continue_as_new_suggested()

    async def _dispatch(self) -> None:
        """Starts the next turn. Its id follows from the request, so a request that comes again starts nothing."""
        self._lane = lane.begun(self._lane)
        message = self._lane.active.queued if self._lane.active else None
        if message is None:
            raise AssertionError("nothing waits")
        run: Run | None = None
        try:
            run = await workflow.start_child_workflow(
                "AgentRun",
                lane.begin_event(self._lane, message).model_dump(mode="json", exclude_defaults=True),
                id=ids.run_workflow_id(message.run_id),
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                parent_close_policy=ParentClosePolicy.ABANDON,
                static_summary=markdown(cut(message.request.text, SHOWN)),
            )
        except WorkflowAlreadyStartedError:
            self._tell_failed_dispatch(message, "it was started before")
            self._lane = lane.repeated(self._lane)
        self._turn = asyncio.create_task(self._heard(message, run) if run else self._watched(message))

    async def _heard(self, message: Queued, run: Run) -> Ended:
        try:
            event = await run
        except ChildWorkflowError as error:
            end = of_failure(error.cause)
            if isinstance(error.cause, ApplicationError) and error.cause.type in NEVER_BEGAN:
                self._tell_failed_dispatch(message, error.cause.message)
            return end
        return of_event(event)

    async def _watched(self, message: Queued) -> Ended:
        """For a turn that was started by an earlier execution of this lane."""
        ended: Ended = await workflow.execute_activity_method(
            Standings.watch_run,
            ids.run_workflow_id(message.run_id),
            summary=f"wait for run {message.run_id}",
            **WATCHING,
        )
        return ended

    def _tell_failed_dispatch(self, message: Queued, why: str) -> None:
        """A run that could not begin never blocks the lane (B12)."""
        name = "agent_run.dispatch_next_failed"
        figures = {"run_id": message.run_id, "request_id": message.request.request_id, "why": cut(why, 300)}
        told = {"event": name, "conversation_id": self._lane.conversation_id, **figures}
        workflow.logger.warning(name, extra={"event": told})
        count(workflow.metric_meter(), metrics.of_event(name, figures))

    def _close_turn(self) -> None:
        if self._turn is None:
            raise AssertionError("no turn is over")
        over, self._turn = self._turn.result(), None
        self._lane = lane.ended(self._lane, over.end, over.said, workflow.now())

    def _stop_turn(self, reason: str) -> None:
        self._is_stopping = True
        self._errands.append(lane.Cancel(self._active_id or "", reason))

    async def _give_up(self, reason: str) -> None:
        for message in self._lane.queue:
            self._lane = lane.dropped(self._lane, message.request.request_id, reason, workflow.now()) or self._lane
        while self._lane.words:
            await self._tell(self._lane.words[0])

    async def _run_errand(self) -> None:
        if self._errands:
            await self._do(self._errands.pop(0))
        else:
            await self._tell(self._lane.words[0])

    async def _do(self, errand: lane.Errand | _PassOn) -> None:
        match errand:
            case lane.Cancel(run_id, reason):
                await self._signal(run_id, "cancel", CancelRequest(reason=reason[:2000]))
            case lane.Steer(message):
                body = SteerRequest(request_id=message.request.request_id, text=lane.spoken(message.request))
                await self._signal(self._active_id, "steer", body)
            case lane.Answer(message):
                await self._answer(message)
            case _PassOn(answer):
                await self._signal(self._active_id, "human_input", answer)

    @property
    def _active_id(self) -> str | None:
        return self._lane.active.queued.run_id if self._lane.active else None

    async def _signal(self, run_id: str | None, name: str, body: CancelRequest | SteerRequest | HumanInput) -> None:
        """A run that has just ended hears it no more, and need not."""
        if run_id is None or run_id != self._active_id:
            return
        run = workflow.get_external_workflow_handle(ids.run_workflow_id(run_id))
        try:
            await run.signal(name, body.model_dump(mode="json", exclude_none=True))
        except ApplicationError as closed:
            self._lane = lane.noticed(self._lane, f"{name}: run {run_id} has ended: {closed.message}")

    async def _tell(self, word: Word) -> None:
        """A mailbox that is gone hears it no more; one that missed it looks by itself."""
        body = TurnEnded(request_id=word.request_id, run_id=word.run_id, end=word.end)
        mailbox = workflow.get_external_workflow_handle(ids.mailbox_workflow_id(word.mailbox))
        try:
            await mailbox.signal("turn_ended", body.model_dump(mode="json", exclude_none=True))
        except ApplicationError as gone:
            self._lane = lane.noticed(self._lane, f"turn_ended: mailbox {word.mailbox} is gone: {gone.message}")
        self._lane = self._lane.model_copy(update={"words": self._lane.words[1:]})

    async def _answer(self, message: Queued) -> None:
        request, took = message.request, False
        if (run_id := self._active_id) is not None:
            answer = TurnAnswer(
                run_id=run_id,
                question_id=request.question_id or "",
                text=request.text,
                request_id=request.request_id,
            )
            try:
                took = await workflow.execute_activity_method(
                    Conversations.answer_turn, answer, summary=f"answer {cut(answer.question_id, 40)}", **ANSWER
                )
            except ActivityError as error:
                workflow.logger.warning("the answer of request %s did not arrive: %s", request.request_id, error.cause)
        self._lane = lane.answered(self._lane, message, workflow.now(), took=took)

    @workflow.update(description='A request: {"request_id", "goal"}, with "when_busy"? queue, reject, steer, interrupt')
    def submit(self, *args: Any) -> dict[str, Any]:
        admission = self._admitted(args)
        self._lane = admission.state
        if admission.errand is not None:
            self._errands.append(admission.errand)
        return admission.answer.model_dump(mode="json")

    @submit.validator
    def _is_taken(self, *args: Any) -> None:
        self._admitted(args)

    def _admitted(self, args: Sequence[Any]) -> lane.Accepted:
        if self._halt.reason is not None:
            raise _refused(LaneFault.lane_closing, f"the conversation is being cancelled: {self._halt.reason}")
        admission = lane.admit(self._lane, read(SubmitRequest, args), workflow.now())
        if isinstance(admission, lane.Refusal):
            raise _refused(admission.kind, admission.why)
        return admission

    @workflow.signal(description="As the update `submit`, for senders that need no answer")
    @ignoring_refusals
    def request(self, *args: Any) -> None:
        self.submit(*args)

    @workflow.signal(description='Cancel the running turn: {"reason"?, "by"?}; the next request follows')
    @ignoring_refusals
    def cancel_turn(self, *args: Any) -> None:
        self._cancel_turn(args)

    @workflow.signal(description="As `cancel_turn`")
    @ignoring_refusals
    def cancel(self, *args: Any) -> None:
        self._cancel_turn(args)

    def _cancel_turn(self, args: Sequence[Any]) -> None:
        request = read_optional(CancelRequest, args)
        by = f" by {request.by}" if request.by else ""
        reason = (request.reason or "cancelled in its conversation") + by
        self._errands.append(lane.Cancel(self._must_run(), reason))

    @workflow.signal(description='Take a request out of the queue: {"request_id", "by"?}')
    @ignoring_refusals
    def drop(self, *args: Any) -> None:
        request = read(DropRequest, args)
        left = lane.dropped(self._lane, request.request_id, request.by or "", workflow.now())
        if left is None:
            raise invalid(f"no request {cut(request.request_id, 80)} waits")
        self._lane = left

    @workflow.signal(description="Answer the open question of the running turn; it is handed on")
    @ignoring_refusals
    def human_input(self, *args: Any) -> None:
        answer = read(HumanInput, args)
        self._must_run()
        self._errands.append(_PassOn(answer))

    def _must_run(self) -> str:
        """The turn that runs."""
        if (run_id := self._active_id) is None:
            raise invalid("no turn runs")
        return run_id

    @workflow.signal(description="For runs: what was said while they were at work is taken")
    @ignoring_refusals
    def steered(self, *args: Any) -> None:
        self._lane = lane.steered(self._lane, read(Steered, args).request_id, workflow.now())

    @workflow.signal(dynamic=True)
    def unknown_signal(self, name: str, args: Sequence[RawValue]) -> None:  # noqa: ARG002 - Temporal's signature
        self.ignore(cut(name, 80), "no such signal; there are request, drop, cancel_turn, cancel and human_input")

    def ignore(self, signal: str, why: str) -> None:
        workflow.logger.warning("%s ignored: %s", signal, why)
        if isinstance(self._begun, LaneState):
            self._lane = lane.refused(self._begun, f"{signal}: {why}")

    @workflow.query(description="What runs, what waits, how the latest requests ended", name="lane")
    def _view(self, *_: Any) -> LaneView:
        return lane.view(self._lane)


def _begin(args: Sequence[Any]) -> LaneState:
    """Raises ApplicationError `InvalidInput`."""
    if _is_carried(args):
        return read(LaneState, args)
    own = workflow.info().workflow_id
    named = ids.conversation_id_of(own)
    if not 0 < len(named) <= MAX_ID_LENGTH or own != ids.conversation_workflow_id(named):
        raise invalid(f"the workflow id is conversation:<id>, and the id has 1 to {MAX_ID_LENGTH} characters")
    start = read_optional(ConversationStart, args)
    if start.conversation_id not in (None, named):
        raise invalid(f"conversation_id: this is the conversation {named!r}")
    return LaneState(conversation_id=named, closes=start.closes)


def _is_carried(args: Sequence[Any]) -> bool:
    return len(args) == 1 and isinstance(args[0], dict) and args[0].get("type") == "conversation.continue"


def _refused(kind: LaneFault, why: str) -> ApplicationError:
    retry = {"retry_after_seconds": lane.RETRY_AFTER} if kind in (LaneFault.lane_full, LaneFault.lane_busy) else {}
    return ApplicationError(why, retry, type=kind, non_retryable=True)

"""`Conversation`: a lane. It runs one request at a time, first come, first served (B8).

The loop asks `perdure.decisions.lane` for the next move and makes it. Handlers validate and append. Only
`submit` waits: for the start of the run, if its request is next.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowHandle, ParentClosePolicy

from perdure.activities.run.outcome import end_from_event, end_from_failure
from perdure.activities.telemetry.attributes import CONVERSATION_ID, format_keyword
from perdure.activities.telemetry.metrics import add_counts
from perdure.contracts.conversation import (
    MAX_ID_LENGTH,
    ConversationStart,
    DropRequest,
    Ended,
    ForgetRequest,
    Forgotten,
    LaneFault,
    LaneState,
    LaneView,
    Queued,
    Steered,
    SteerRequest,
    SubmitRequest,
    Submitted,
    Turn,
    TurnAnswer,
)
from perdure.contracts.failures import RunFailure
from perdure.contracts.run.signals import CancelRequest, EndedRun, HumanInput
from perdure.decisions import ids, lane, telemetry
from perdure.decisions.lane import (
    AwaitEvent,
    BeginTurn,
    DeliverToTurn,
    DropAll,
    EndExecution,
    LaneFacts,
    LaneMove,
    RecordTurn,
    StopTurn,
    lane_details,
    lane_view,
    next_lane_move,
)
from perdure.decisions.text.formatting import MAX_SUMMARY_CALL, escape_markdown, truncate
from perdure.workflows.activities import Activities
from perdure.workflows.execution import ANSWERING_TURNS, FINDING_OPEN_TURN, Cancellation, start_watch
from perdure.workflows.handlers import (
    ValidatedWorkflow,
    cancel_reason,
    ignore_if_invalid,
    invalid_input,
    read_argument,
    read_optional_argument,
    start_type,
)
from perdure.workflows.rotation import Rotation, continue_as_new, is_history_long
from perdure.workflows.search_attributes import ShownAttributes


class LaneContext:
    def __init__(self, state: LaneState, *, goes_on: bool) -> None:
        self.goes_on = goes_on  # from an earlier execution, which knew every turn
        self.cancellation = Cancellation()
        self.rotation = Rotation()
        self.deliveries: deque[lane.TurnDelivery] = deque()
        self.turn: asyncio.Task[Ended] | None = None
        self.turn_is_stopping = False
        self.ending: str | None = None  # the run that has signalled its end last
        self.attributes = ShownAttributes()
        self.starting: str | None = None  # the run whose start the server has not confirmed
        self.set_state(state)

    def set_state(self, state: LaneState) -> None:
        """Set the next state, and show it in the Web UI's current details."""
        self.state = state
        workflow.set_current_details(lane_details(state))

    def next_move(self) -> LaneMove:
        facts = LaneFacts(
            delivery=self.deliveries[0] if self.deliveries else None,
            turn_is_over=self.turn is not None and self.turn.done(),
            turn_is_stopping=self.turn_is_stopping,
            cancelled=self.cancellation.reason,
            history_is_long=is_history_long(),
            leaves_build=self.rotation.leaves_build,
        )
        return next_lane_move(self.state, facts)

    @property
    def is_due(self) -> bool:
        return self.rotation.is_undecided or not isinstance(self.next_move(), AwaitEvent)

    def is_about_to_begin(self, run_id: str) -> bool:
        """Return whether this request becomes the turn now, and its run may not have started yet."""
        stays = self.cancellation.reason is None and not self.rotation.leaves_build
        return self.starting == run_id or (stays and lane.is_next(self.state, run_id))

    @property
    def active_id(self) -> str | None:
        return self.state.active.queued.run_id if self.state.active else None

    def running_id(self) -> str:
        """Return the run that is the turn. Raises ApplicationError `InvalidInput` if no turn runs."""
        if (run_id := self.active_id) is None:
            raise invalid_input("no turn runs")
        return run_id

    def close_turn(self) -> None:
        if self.turn is None:
            raise AssertionError("no turn is watched")
        over, self.turn = self.turn.result(), None
        self.set_state(lane.end_turn(self.state, over.end, over.said, workflow.now()))


def begin_lane(args: Sequence[Any]) -> LaneContext:
    """Return a new lane, or that of an earlier execution. Raises ApplicationError `InvalidInput`."""
    if start_type(args) == "conversation.continue":
        return LaneContext(read_argument(LaneState, args), goes_on=True)
    own = workflow.info().workflow_id
    named = ids.conversation_id_of(own)
    if not 0 < len(named) <= MAX_ID_LENGTH or own != ids.conversation_workflow_id(named):
        raise invalid_input(f"the workflow id is conversation:<id>, and the id has 1 to {MAX_ID_LENGTH} characters")
    start = read_optional_argument(ConversationStart, args)
    if start.conversation_id not in (None, named):
        raise invalid_input(f"conversation_id: this is the conversation {named!r}")
    return LaneContext(LaneState(conversation_id=named, closes=start.closes), goes_on=False)


ChildRun = ChildWorkflowHandle[Any, Any]
NEVER_BEGAN = (RunFailure.invalid_input, RunFailure.unknown_agent, RunFailure.bad_project)


async def resume_turn(live: LaneContext) -> None:
    """Watch the turn that an earlier execution, or an earlier lane, has left open."""
    if not live.goes_on and not live.state.closes:  # a lane that closes after its turn leaves none open
        await _find_open_turn(live)
    if live.state.active is not None:
        _watch_turn(live, live.state.active.queued)


async def _find_open_turn(live: LaneContext) -> None:
    """Find the turn that a terminated lane may have left open, as there must not be two."""
    try:
        turn = await workflow.execute_activity_method(
            Activities.open_turn, live.state.conversation_id, summary="look for an open turn", **FINDING_OPEN_TURN
        )
    except ActivityError as error:
        workflow.logger.warning("the look for an open turn failed: %s", error.cause)
        return
    if turn is not None:
        live.set_state(lane.adopt_open_turn(live.state, turn))


async def begin_turn(live: LaneContext, message: Queued) -> None:
    """Start the run of the first request. Its id derives from the request, so a repeated request starts nothing."""
    live.set_state(lane.begin_next_turn(live.state))
    live.starting = message.run_id
    begin = lane.begin_event(live.state, message)
    try:
        run: ChildRun = await workflow.start_child_workflow(
            "AgentRun",
            begin.model_dump(mode="json", exclude_defaults=True),
            id=ids.run_workflow_id(message.run_id),
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            parent_close_policy=ParentClosePolicy.ABANDON,
            search_attributes=live.attributes.of_child(begin.payload),
            static_summary=escape_markdown(truncate(message.request.text, MAX_SUMMARY_CALL)),
        )
    except WorkflowAlreadyStartedError:
        _report_failed_dispatch(live, message, "it was started before")
        live.set_state(lane.mark_repeat(live.state))
        _watch_turn(live, message)
    else:
        live.turn = asyncio.create_task(_wait_for_end(live, message, run))
    finally:
        live.starting = None


def _watch_turn(live: LaneContext, message: Queued) -> None:
    """Watch a run that this execution has no handle for."""
    live.turn = asyncio.create_task(_watch_to_end(live, message.run_id))


async def _watch_to_end(live: LaneContext, run_id: str) -> Ended:
    """Wait for the run's end. It signals that it ends, and is looked at rarely before."""
    workflow_id, summary = ids.run_workflow_id(run_id), f"wait for run {run_id}"
    watch = start_watch(workflow_id, summary, is_ending=live.ending == run_id)
    await workflow.wait_condition(lambda: watch.done() or live.ending == run_id)
    if not watch.done():
        watch.cancel()
        with suppress(ActivityError):
            return await watch
        return await start_watch(workflow_id, summary, is_ending=True)
    return await watch


async def _wait_for_end(live: LaneContext, message: Queued, run: ChildRun) -> Ended:
    try:
        event = await run
    except ChildWorkflowError as error:
        end = end_from_failure(error.cause).turn_end
        if isinstance(error.cause, ApplicationError) and error.cause.type in NEVER_BEGAN:
            _report_failed_dispatch(live, message, error.cause.message)
        return end
    return end_from_event(event).turn_end


def _report_failed_dispatch(live: LaneContext, message: Queued, reason: str) -> None:
    """Log and count a run that could not begin, which does not block the lane (B12)."""
    name = "agent_run.dispatch_next_failed"
    figures = {"run_id": message.run_id, "request_id": message.request.request_id, "why": truncate(reason)}
    event = {"event": name, "conversation_id": live.state.conversation_id, **figures}
    workflow.logger.warning(name, extra={"event": event})
    add_counts(workflow.metric_meter(), telemetry.count_event(name, figures))


async def deliver_to_turn(live: LaneContext, delivery: lane.TurnDelivery) -> None:
    """Send the run that is the turn what has arrived for it."""
    match delivery:
        case lane.CancelTurn(run_id, reason, sender):
            await _signal_turn(live, run_id, "cancel", CancelRequest(reason=reason[:2000], sender=sender))
        case lane.Steer(message):
            request = message.request
            body = SteerRequest(
                request_id=request.request_id,
                text=lane.steering_text(request),
                attachments=request.attachments,
                sender=request.sender,
            )
            await _signal_turn(live, live.active_id, "steer", body)
        case lane.AnswerQuestion(message):
            await _deliver_answer(live, message)
        case lane.PassOn(answer):
            await _signal_turn(live, live.active_id, "human_input", answer)


async def _signal_turn(
    live: LaneContext, run_id: str | None, name: str, body: CancelRequest | SteerRequest | HumanInput
) -> bool:
    """Send a signal to the turn. Return whether it has arrived: a run that has just ended does not need it."""
    if run_id is None or run_id != live.active_id:
        return False
    run = workflow.get_external_workflow_handle(ids.run_workflow_id(run_id))
    try:
        await run.signal(name, body.model_dump(mode="json", exclude_none=True))
    except ApplicationError as error:
        live.set_state(lane.add_lane_notice(live.state, f"{name}: run {run_id} has ended: {error.message}"))
        return False
    return True


async def _deliver_answer(live: LaneContext, message: Queued) -> None:
    """Ask the run to accept the answer; if it does not reply for now, send it the answer as a signal."""
    is_taken = is_left = False
    if (run_id := live.active_id) is not None:
        try:
            is_taken = await _offer_answer(run_id, message)
        except ActivityError as error:
            workflow.logger.warning("run %s takes no answers for now: %s", run_id, error.cause)
            is_left = await _signal_turn(live, run_id, "human_input", lane.answer_in_request(message.request))
    if is_left:
        live.set_state(lane.defer_turn_answer(live.state, message, workflow.now()))
    else:
        live.set_state(lane.record_turn_answer(live.state, message, workflow.now(), took=is_taken))


async def _offer_answer(run_id: str, message: Queued) -> bool:
    """Return whether the run has accepted the answer. Raises ActivityError if it does not reply: it may be wedged."""
    request = message.request
    answer = TurnAnswer(
        run_id=run_id,
        question_id=request.question_id or "",
        text=request.text,
        attachments=request.attachments,
        request_id=request.request_id,
        sender=request.sender,
        signature=request.signature,
    )
    return await workflow.execute_activity_method(
        Activities.answer_turn, answer, summary=f"answer {truncate(answer.question_id, 40)}", **ANSWERING_TURNS
    )


@workflow.defn
class Conversation(ValidatedWorkflow[LaneContext]):
    """A lane: one run at a time, in the order of its requests.

    Input: `{"conversation_id"}`. It stays open for later requests.
    """

    UNKNOWN_SIGNAL = "no such signal; there are request, drop, cancel_turn, cancel and human_input"

    @workflow.init
    def __init__(self, *args: Any) -> None:
        super().__init__(begin_lane, args)

    @workflow.run
    async def run(self, *args: Any) -> None:  # noqa: ARG002 - Temporal requires the signature of `__init__`
        live = self.context
        live.attributes.show_once(CONVERSATION_ID, format_keyword(live.state.conversation_id))
        await live.cancellation.shield(self._run_loop(live))
        if live.cancellation.reason is not None:
            raise asyncio.CancelledError
        if not lane.is_lane_over(live.state):  # a request may have come just now
            continue_as_new(live.state)

    async def _run_loop(self, live: LaneContext) -> None:
        """Make moves until the history is long, another build is current and no turn runs, or the lane is over."""
        await resume_turn(live)
        while True:
            # Awaited even if a move is due: the tasks of the last move issue their commands before the next.
            await workflow.wait_condition(lambda: live.is_due)
            live.rotation.decide()
            move = live.next_move()
            if isinstance(move, EndExecution) and workflow.all_handlers_finished():
                return
            await self._make_move(live, move)

    async def _make_move(self, live: LaneContext, move: LaneMove) -> None:
        match move:
            case DeliverToTurn(delivery):
                live.deliveries.popleft()
                await deliver_to_turn(live, delivery)
            case RecordTurn():
                live.close_turn()
            case StopTurn(delivery):
                live.turn_is_stopping = True
                await deliver_to_turn(live, delivery)
            case DropAll(reason):
                live.set_state(lane.drop_all_requests(live.state, reason, workflow.now()))
            case BeginTurn(message):
                await begin_turn(live, message)
            case EndExecution():  # an open handler has its answer by now, and has only to return it
                await workflow.wait_condition(workflow.all_handlers_finished)
            case AwaitEvent():
                pass

    @workflow.update(description='A request: {"request_id", "goal"}, with "when_busy"? queue, reject, steer, interrupt')
    async def submit(self, *args: Any) -> dict[str, Any]:
        """Return the request's run and position. If it becomes the turn now, its run has started.

        A lane that moves to another build first answers 1, as its next execution starts the run.
        """
        submitted = self._accept_request(args)
        live, run_id = self.context, submitted.run_id
        await workflow.wait_condition(lambda: not live.is_about_to_begin(run_id))
        if (moves := lane.is_next(live.state, run_id)) and live.cancellation.reason is not None:
            raise _closing_error(live)  # the lane was cancelled in the meantime, and drops its queue
        if not submitted.duplicate and (reason := lane.drop_reason(live.state, run_id)):
            raise _rejection_error(LaneFault.lane_closing, reason)
        answer = submitted.evolve(position=1 if moves else lane.queue_position(live.state, run_id))
        return answer.model_dump(mode="json")

    def _accept_request(self, args: Sequence[Any]) -> Submitted:
        admission = self._admit_request(args)
        self.context.set_state(admission.state)
        if admission.delivery is not None:
            self.context.deliveries.append(admission.delivery)
        return admission.answer

    @submit.validator
    def _is_taken(self, *args: Any) -> None:
        self._admit_request(args)

    def _admit_request(self, args: Sequence[Any]) -> lane.AcceptedRequest:
        live = self.context
        if live.cancellation.reason is not None:
            raise _closing_error(live)
        admission = lane.admit(live.state, read_argument(SubmitRequest, args), workflow.now())
        if isinstance(admission, lane.LaneRefusal):
            raise _rejection_error(admission.kind, admission.reason)
        return admission

    @workflow.signal(description="As the update `submit`, for senders that need no answer")
    @ignore_if_invalid
    def request(self, *args: Any) -> None:
        self._accept_request(args)

    @workflow.signal(description='Cancel the running turn: {"reason"?, "by"?}; the next request follows')
    @ignore_if_invalid
    def cancel_turn(self, *args: Any) -> None:
        self._cancel_turn(args)

    @workflow.signal(description="As `cancel_turn`")
    @ignore_if_invalid
    def cancel(self, *args: Any) -> None:
        self._cancel_turn(args)

    def _cancel_turn(self, args: Sequence[Any]) -> None:
        request = read_optional_argument(CancelRequest, args)
        reason = cancel_reason(request, "cancelled in its conversation")
        self.context.deliveries.append(lane.CancelTurn(self.context.running_id(), reason, request.sender))

    @workflow.signal(description='Take a request out of the queue: {"request_id", "by"?}')
    @ignore_if_invalid
    def drop(self, *args: Any) -> None:
        request = read_argument(DropRequest, args)
        left = lane.drop_request(self.context.state, request.request_id, request.by or "", workflow.now())
        if left is None:
            raise invalid_input(f"no request {truncate(request.request_id, 80)} waits")
        self.context.set_state(left)

    @workflow.update(description='Leave an ended turn out from the next turn on: {"run_id"?}, the latest by default')
    def forget(self, *args: Any) -> dict[str, Any]:
        state, turn = self._parse_forget(args)
        self.context.set_state(state)
        return Forgotten(run_id=turn.run_id, asked=turn.asked).model_dump(mode="json")

    @forget.validator
    def _may_forget(self, *args: Any) -> None:
        self._parse_forget(args)

    def _parse_forget(self, args: Sequence[Any]) -> tuple[LaneState, Turn]:
        request = read_optional_argument(ForgetRequest, args)
        forgotten = lane.forget_ended_turn(self.context.state, request.run_id)
        if forgotten is None:
            named = f"run {truncate(request.run_id, 80)} is not among" if request.run_id else "there is no turn among"
            raise _rejection_error(
                LaneFault.no_such_turn, f"{named} the latest turns that have ended; look at the conversation"
            )
        return forgotten

    @workflow.signal(description="Answer the open question of the running turn; it is handed on")
    @ignore_if_invalid
    def human_input(self, *args: Any) -> None:
        answer = read_argument(HumanInput, args)
        self.context.running_id()
        self.context.deliveries.append(lane.PassOn(answer))

    @workflow.signal(description="For runs: a message that was sent to them at work has been taken in")
    @ignore_if_invalid
    def steered(self, *args: Any) -> None:
        self.context.set_state(
            lane.record_steered(self.context.state, read_argument(Steered, args).request_id, workflow.now())
        )

    @workflow.signal(description="For runs: the turn ends")
    @ignore_if_invalid
    def run_ended(self, *args: Any) -> None:
        self.context.ending = read_argument(EndedRun, args).run_id

    def note(self, notice: str) -> None:
        self.context.set_state(lane.record_lane_refusal(self.context.state, notice))

    @workflow.query(description="The running turn, the queue, and how the latest requests ended", name="lane")
    def _lane_view(self, *_: Any) -> LaneView:
        return lane_view(self.context.state)


def _closing_error(live: LaneContext) -> ApplicationError:
    return _rejection_error(LaneFault.lane_closing, f"the conversation is being cancelled: {live.cancellation.reason}")


def _rejection_error(kind: LaneFault, reason: str) -> ApplicationError:
    retry = {"retry_after_seconds": lane.RETRY_AFTER} if kind in (LaneFault.lane_full, LaneFault.lane_busy) else {}
    return ApplicationError(reason, retry, type=kind, non_retryable=True)

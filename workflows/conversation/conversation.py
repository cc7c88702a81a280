"""`Conversation`: a lane. It runs one request at a time, first come, first served (B8).

The loop asks `decisions.conversation.rules` for the next move and makes it. Handlers validate and append. Only `submit`
waits: for the start of the run, if its request is next.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.telemetry.attributes import CONVERSATION_ID, format_keyword
from contracts.conversation import (
    DropRequest,
    ForgetRequest,
    Forgotten,
    LaneFault,
    LaneState,
    LaneView,
    Steered,
    SubmitRequest,
    Submitted,
    Turn,
)
from contracts.run.signals import CancelRequest, EndedRun, HumanInput
from decisions.conversation import lane, rules, view
from decisions.text.formatting import truncate
from workflows.conversation.context import LaneContext, begin_lane
from workflows.conversation.turn import begin_turn, deliver_errand, notify_mailbox, resume_turn
from workflows.handlers import (
    ValidatedWorkflow,
    cancel_reason,
    ignore_if_invalid,
    invalid_input,
    read_argument,
    read_optional_argument,
)
from workflows.rotation import continue_as_new


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
    async def run(self, *args: Any) -> None:  # noqa: ARG002 - read by __init__; Temporal wants both alike
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
            if isinstance(move, rules.EndExecution) and workflow.all_handlers_finished():
                return
            await self._make_move(live, move)

    async def _make_move(self, live: LaneContext, move: rules.LaneMove) -> None:
        match move:
            case rules.DeliverErrand(errand):
                live.errands.popleft()
                await deliver_errand(live, errand)
            case rules.ReportEnd(word):
                await notify_mailbox(live, word)
            case rules.RecordTurn():
                live.close_turn()
            case rules.StopTurn(errand):
                live.turn_is_told_to_stop = True
                await deliver_errand(live, errand)
            case rules.DropAll(reason):
                live.set_state(lane.drop_all_requests(live.state, reason, workflow.now()))
            case rules.BeginTurn(message):
                await begin_turn(live, message)
            case rules.EndExecution():  # an open handler has its answer by now, and has only to return it
                await workflow.wait_condition(workflow.all_handlers_finished)
            case rules.AwaitEvent():
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
        answer = submitted.model_copy(update={"position": 1 if moves else lane.queue_position(live.state, run_id)})
        return answer.model_dump(mode="json")

    def _accept_request(self, args: Sequence[Any]) -> Submitted:
        admission = self._admit_request(args)
        self.context.set_state(admission.state)
        if admission.errand is not None:
            self.context.errands.append(admission.errand)
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
        self.context.errands.append(lane.CancelTurn(self.context.running_id(), reason, request.sender))

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
        self.context.errands.append(lane.PassOn(answer))

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
        return view.lane_view(self.context.state)


def _closing_error(live: LaneContext) -> ApplicationError:
    return _rejection_error(LaneFault.lane_closing, f"the conversation is being cancelled: {live.cancellation.reason}")


def _rejection_error(kind: LaneFault, reason: str) -> ApplicationError:
    retry = {"retry_after_seconds": lane.RETRY_AFTER} if kind in (LaneFault.lane_full, LaneFault.lane_busy) else {}
    return ApplicationError(reason, retry, type=kind, non_retryable=True)

"""`Conversation`: a lane. It runs one request at a time, first come, first served (B8).

The loop asks `decisions.conversation.rules` for the next move and makes it. Handlers validate and append. Only `submit`
waits: for the start of the run, if its request is next.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.telemetry.attributes import CONVERSATION_ID
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
from contracts.run.signals import CancelRequest, HumanInput
from decisions.conversation import lane, rules, view
from decisions.text.formatting import cut
from workflows.conversation.actions import bring, tell
from workflows.conversation.context import LiveLane, begin
from workflows.conversation.turn import begin_turn, take_up_turn
from workflows.handlers import ValidatedWorkflow, cancel_reason, ignoring_refusals, invalid, read, read_optional
from workflows.search_attributes import format_keyword


@workflow.defn
class Conversation(ValidatedWorkflow[LiveLane]):
    """A lane: one run at a time, in the order of its requests.

    Input: `{"conversation_id"}`. It stays open for later requests.
    """

    UNKNOWN_SIGNAL = "no such signal; there are request, drop, cancel_turn, cancel and human_input"

    @workflow.init
    def __init__(self, *args: Any) -> None:
        super().__init__(begin, args)

    @workflow.run
    async def run(self, *args: Any) -> None:  # noqa: ARG002 - read by __init__; Temporal wants both alike
        live = self.context
        if workflow.info().typed_search_attributes.get(CONVERSATION_ID) is None:
            workflow.upsert_search_attributes([CONVERSATION_ID.value_set(format_keyword(live.state.conversation_id))])
        await live.cancellation.outlast(self._work(live))
        if live.cancellation.reason is not None:
            raise asyncio.CancelledError
        if not lane.is_over(live.state):  # a request may have come just now
            workflow.continue_as_new(live.state)

    async def _work(self, live: LiveLane) -> None:
        """Make moves until the history is long, the lane is over, or it has been cancelled and its turn has ended."""
        await take_up_turn(live)
        while True:
            # Awaited even if a move is due: the tasks of the last move issue their commands before the next.
            await workflow.wait_condition(lambda: live.is_due)
            move = live.next_move()
            if isinstance(move, rules.Leave) and workflow.all_handlers_finished():
                return
            await self._make(live, move)

    async def _make(self, live: LiveLane, move: rules.Move) -> None:
        match move:
            case rules.Bring(errand):
                live.errands.popleft()
                await bring(live, errand)
            case rules.Tell(word):
                await tell(live, word)
            case rules.CloseTurn():
                live.close_turn()
            case rules.StopTurn(errand):
                live.turn_is_told_to_stop = True
                await bring(live, errand)
            case rules.DropAll(reason):
                live.become(lane.emptied(live.state, reason, workflow.now()))
            case rules.Begin(message):
                await begin_turn(live, message)
            case rules.Leave():  # an open handler has its answer by now, and has only to return it
                await workflow.wait_condition(workflow.all_handlers_finished)
            case rules.Wait():
                pass

    @workflow.update(description='A request: {"request_id", "goal"}, with "when_busy"? queue, reject, steer, interrupt')
    async def submit(self, *args: Any) -> dict[str, Any]:
        """Return the request's run and position. If it becomes the turn now, its run has started."""
        submitted = self._take(args)
        live, run_id = self.context, submitted.run_id
        await workflow.wait_condition(lambda: not live.is_about_to_begin(run_id))
        if lane.is_next(live.state, run_id):  # the lane was cancelled in the meantime, and drops its queue
            raise _refused(LaneFault.lane_closing, f"the conversation is being cancelled: {live.cancellation.reason}")
        if not submitted.duplicate and (reason := lane.drop_reason(live.state, run_id)):
            raise _refused(LaneFault.lane_closing, reason)
        answer = submitted.model_copy(update={"position": lane.position_of(live.state, run_id)})
        return answer.model_dump(mode="json")

    def _take(self, args: Sequence[Any]) -> Submitted:
        admission = self._admitted(args)
        self.context.become(admission.state)
        if admission.errand is not None:
            self.context.errands.append(admission.errand)
        return admission.answer

    @submit.validator
    def _is_taken(self, *args: Any) -> None:
        self._admitted(args)

    def _admitted(self, args: Sequence[Any]) -> lane.Accepted:
        live = self.context
        if live.cancellation.reason is not None:
            raise _refused(LaneFault.lane_closing, f"the conversation is being cancelled: {live.cancellation.reason}")
        admission = lane.admit(live.state, read(SubmitRequest, args), workflow.now())
        if isinstance(admission, lane.Refusal):
            raise _refused(admission.kind, admission.reason)
        return admission

    @workflow.signal(description="As the update `submit`, for senders that need no answer")
    @ignoring_refusals
    def request(self, *args: Any) -> None:
        self._take(args)

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
        reason = cancel_reason(request, "cancelled in its conversation")
        self.context.errands.append(lane.Cancel(self.context.running(), reason, request.sender))

    @workflow.signal(description='Take a request out of the queue: {"request_id", "by"?}')
    @ignoring_refusals
    def drop(self, *args: Any) -> None:
        request = read(DropRequest, args)
        left = lane.dropped(self.context.state, request.request_id, request.by or "", workflow.now())
        if left is None:
            raise invalid(f"no request {cut(request.request_id, 80)} waits")
        self.context.become(left)

    @workflow.update(description='Leave an ended turn out from the next turn on: {"run_id"?}, the latest by default')
    def forget(self, *args: Any) -> dict[str, Any]:
        state, turn = self._forgotten(args)
        self.context.become(state)
        return Forgotten(run_id=turn.run_id, asked=turn.asked).model_dump(mode="json")

    @forget.validator
    def _may_forget(self, *args: Any) -> None:
        self._forgotten(args)

    def _forgotten(self, args: Sequence[Any]) -> tuple[LaneState, Turn]:
        request = read_optional(ForgetRequest, args)
        forgotten = lane.forget(self.context.state, request.run_id)
        if forgotten is None:
            named = f"run {cut(request.run_id, 80)} is not among" if request.run_id else "there is no turn among"
            raise _refused(
                LaneFault.no_such_turn, f"{named} the latest turns that have ended; look at the conversation"
            )
        return forgotten

    @workflow.signal(description="Answer the open question of the running turn; it is handed on")
    @ignoring_refusals
    def human_input(self, *args: Any) -> None:
        answer = read(HumanInput, args)
        self.context.running()
        self.context.errands.append(lane.PassOn(answer))

    @workflow.signal(description="For runs: a message that was sent to them at work has been taken in")
    @ignoring_refusals
    def steered(self, *args: Any) -> None:
        self.context.become(lane.steered(self.context.state, read(Steered, args).request_id, workflow.now()))

    def ignore(self, signal: str, reason: str) -> None:
        self.context.ignore(signal, reason)

    @workflow.query(description="The running turn, the queue, and how the latest requests ended", name="lane")
    def _view(self, *_: Any) -> LaneView:
        return view.view(self.context.state)


def _refused(kind: LaneFault, reason: str) -> ApplicationError:
    retry = {"retry_after_seconds": lane.RETRY_AFTER} if kind in (LaneFault.lane_full, LaneFault.lane_busy) else {}
    return ApplicationError(reason, retry, type=kind, non_retryable=True)

"""`AgentRun`: plan, act, reflect, until the run ends.

The loop asks `perdure.decisions.run.loop` for the next move and makes it. Handlers validate signals and updates and
store their content in the run's context. The loop waits for it there.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from perdure.contracts.conversation import SteerRequest
from perdure.contracts.run.events import ToolResultEvent
from perdure.contracts.run.journal import Journal
from perdure.contracts.run.signals import CancelRequest, EndWatcher, HumanInput
from perdure.contracts.run.state import CloseRequest, Continuation, RunStatus, RunView, Snapshot, SnapshotQuery
from perdure.contracts.run.transcript import TranscriptPage, TranscriptQuery
from perdure.contracts.tool import LargeResult
from perdure.decisions import tool_results
from perdure.decisions.run import call_state, loop, outcome
from perdure.decisions.run.journal import fill_journal
from perdure.decisions.run.outcome import end_event_name, ending_event, format_handoff
from perdure.decisions.run.state import add_watcher, drop_questions
from perdure.decisions.run.transcript import note_part
from perdure.decisions.text import formatting
from perdure.registry import load_each
from perdure.workflows.activities import Activities
from perdure.workflows.agent_run import events
from perdure.workflows.agent_run.arrivals import (
    accepted_policy,
    close_inbox,
    find_answered,
    judge_update,
    receive_answer,
    receive_message,
    receive_result,
    receive_signalled_answer,
    take_policy,
)
from perdure.workflows.agent_run.context import RunContext
from perdure.workflows.agent_run.model_turn import take_fused_turn, take_model_turn
from perdure.workflows.agent_run.start import begin_run, join_stopped_turn, open_files
from perdure.workflows.agent_run.tool_calls import make_calls
from perdure.workflows.agent_run.turn import check_outcome, close_turn, report_end, take_in_messages
from perdure.workflows.agent_run.waiting import StillWaitingError
from perdure.workflows.execution import MAX_STOP_TIME, READ_STOP_TIME, execute_activity, execute_locally_first
from perdure.workflows.handlers import (
    ValidatedWorkflow,
    cancel_reason,
    ignore_if_invalid,
    invalid_input,
    read_argument,
    read_optional_argument,
)
from perdure.workflows.rotation import is_history_long

ABANDON = workflow.HandlerUnfinishedPolicy.ABANDON  # a check of changed arguments at the end of the run


class _HistoryTooLongError(Exception):
    """The run continues as new."""


@workflow.defn
class AgentRun(ValidatedWorkflow[RunContext]):
    """A run from goal to outcome. Input: the `agentic.start` event. Result: `agent.completed` or `agent.escalated`.

    Cancelled runs end Canceled; failed ones with an ApplicationError whose type is a `RunFailure`.
    """

    UNKNOWN_SIGNAL = "no such signal; there are tool_result, human_input, steer and cancel"

    @workflow.init
    def __init__(self, *args: Any) -> None:
        super().__init__(begin_run, args)

    @workflow.run
    async def run(self, *args: Any) -> dict[str, Any]:  # noqa: ARG002 - Temporal requires the signature of `__init__`
        run = self.context
        try:
            await run.cancellation.shield(self._run_loop(run), lambda: _stop_time(run))
        except asyncio.CancelledError:
            run.state = call_state.settle_interrupted(run.state, run.effects)
        except _HistoryTooLongError:
            if run.cancellation.reason is None:
                workflow.continue_as_new(
                    Continuation(state=run.state, segments=run.segments, said=tuple(run.inbox.messages))
                )
            run.state = call_state.settle_interrupted(run.state, run.effects)
        return await run.cancellation.shield(self._finish_run(run))

    async def _run_loop(self, run: RunContext) -> None:  # noqa: C901 - a case for each move
        """Make moves until the run ends. A cancel, and the need to continue as new, end this by an exception."""
        await open_files(run)
        while True:
            run.cancellation.raise_if_cancelled()
            match loop.next_move(run.state, history_is_long=is_history_long(), is_spoken_to=bool(run.inbox.messages)):
                case loop.Listen():
                    await take_in_messages(run)
                case loop.Think():
                    await take_model_turn(run)
                case loop.Act(batch):
                    await self._act_or_rotate(run, make_calls(run, batch))
                case loop.TakeFusedTurn(batch):
                    await self._act_or_rotate(run, take_fused_turn(run, batch))
                case loop.CloseTurn():
                    close_turn(run)
                case loop.FinalTurn():
                    events.emit_event(run, "agent.exhaustion.soft_limit", **formatting.run_figures(run.state))
                    run.state = loop.start_final_turn(run.state)
                    run.transcript.append(note_part(loop.final_turn_note(run.state)))
                case loop.Rotate():
                    await self._archive_and_rotate(run)
                case loop.CheckOutcome():
                    await check_outcome(run)
                case loop.End(ending):
                    stopped = call_state.settle_interrupted(run.state, run.effects)
                    run.state = outcome.end_run(stopped, ending)
                    return

    async def _act_or_rotate(self, run: RunContext, acting: Awaitable[None]) -> None:
        try:
            await acting
        except StillWaitingError:
            await self._archive_and_rotate(run)

    async def _archive_and_rotate(self, run: RunContext) -> None:
        """Continue as new by an exception, unless something has arrived that another execution would not get.

        It follows an ordinary activity, even if there is nothing to archive. If a signal makes the server refuse the
        continue-as-new, a replay would go on from the end of a local activity without the signal, which would be lost.
        """
        await self._close_segment(run)
        run.cancellation.raise_if_cancelled()
        if not run.has_updates:
            raise _HistoryTooLongError

    async def _close_segment(self, run: RunContext, **end: Any) -> None:
        """Close the open segment of the transcript in the run's store."""
        request = CloseRequest(
            start=run.archived_length,
            length=run.transcript.length,
            head=run.transcript.head,
            trace=events.take_trace_lines(run),
            turn=run.turn_to_close if end else None,
            **end,
        )
        summary = "finish the run's files" if end else "archive the transcript"
        # A local activity blocks the workflow task: the server could not cancel the run meanwhile. And it refuses the
        # end of a run that has got another signal, which then continues, although its turn has been closed.
        is_plain_end = bool(end) and request.cancel is None and request.turn is None
        close = execute_locally_first if is_plain_end else execute_activity
        closed = await close(run.cancellation, Activities.close_segment, request, summary)
        if closed.segment is not None:
            run.segments = (*run.segments, closed.segment)
        if end:
            await report_end(run)

    async def _finish_run(self, run: RunContext) -> dict[str, Any]:
        """Report the ending once, and return or raise it as Temporal should show it."""
        if run.needs_conversation:
            await join_stopped_turn(run)
        close_turn(run)
        close_inbox(run)
        run.state = outcome.drop_unaccepted(run.state)
        ending = run.state.ending
        journal = fill_journal(run.state.journal, "", run.state.last_finding)
        events.emit_event(run, end_event_name(ending), **formatting.run_figures(run.state))
        before = run.state
        run.state = drop_questions(before)
        events.report_closed(run, before)
        run.set_status(RunStatus.cancelled if ending is None else ending.status)
        for hear in load_each("on_end"):
            await hear(run.state, ending)
        if ending is None:
            native = workflow.cancellation_reason() is not None
            await self._close_segment(run, journal=journal, cancel=None if native else run.cancellation.reason)
            raise asyncio.CancelledError
        if ending.status in (RunStatus.failed, RunStatus.timed_out):
            await self._close_segment(run, journal=journal)
            raise ApplicationError(
                ending.text, {"handoff": format_handoff(run.state)}, type=ending.reason, non_retryable=True
            )
        event = ending_event(run.state).model_dump(mode="json")
        await self._close_segment(run, journal=journal, event=event)
        return event

    @workflow.signal(description="A tool's result from outside: the agentic.tool_result event")
    @ignore_if_invalid
    def tool_result(self, *args: Any) -> None:
        receive_result(self.context, read_argument(ToolResultEvent, args))

    @workflow.update(description="The same, with the nonce of its request: refused with the reason if it does not fit")
    def deliver_result(self, *args: Any) -> dict[str, Any]:
        event = self._parse_result(args)
        receive_result(self.context, event)
        return {"run_id": self.context.state.run_id, "step": event.payload.step, "accepted": True}

    @deliver_result.validator
    def _result_fits(self, *args: Any) -> None:
        self._parse_result(args)

    def _parse_result(self, args: Sequence[Any]) -> ToolResultEvent:
        event = read_argument(ToolResultEvent, args)
        verdict = judge_update(self.context, event)
        if verdict is not tool_results.ResultVerdict.accepted:
            reason = tool_results.format_result_reason(verdict, self.context.state, event.payload)
            raise ApplicationError(reason, type=verdict, non_retryable=True)
        return event

    @workflow.signal(description='Stop the run: {"reason"?, "by"?}; what is running is finished first')
    @ignore_if_invalid
    def cancel(self, *args: Any) -> None:
        self.context.cancellation.request(cancel_reason(read_optional_argument(CancelRequest, args), "cancel signal"))

    @workflow.signal(
        description='Answer an open question: {"text"} or {"decision"}, with "question_id"?, "by"?',
        unfinished_policy=ABANDON,
    )
    async def human_input(self, *args: Any) -> None:
        try:
            await receive_signalled_answer(self.context, read_argument(HumanInput, args))
        except ApplicationError as error:
            self.ignore_signal("human_input", error.message)

    @workflow.update(
        description='Answer an open question: {"text"} or {"decision"}; refused with the reason if it does not fit',
        unfinished_policy=ABANDON,
    )
    async def answer(self, *args: Any) -> dict[str, Any]:
        taken = await receive_answer(self.context, read_argument(HumanInput, args))
        before = {} if taken.before is None else {"before": taken.before}
        return {"run_id": self.context.state.run_id, "question_id": taken.question.id, "accepted": True, **before}

    @answer.validator
    def _answer_fits(self, *args: Any) -> None:
        question = find_answered(self.context, read_argument(HumanInput, args))
        if isinstance(question, str):
            raise invalid_input(question)

    @workflow.update(
        description='Accept a policy for this run, even a looser one: {"question_id": "policy:HASH", "decision"}',
        unfinished_policy=ABANDON,
    )
    async def accept_policy(self, *args: Any) -> dict[str, Any]:
        ref = await take_policy(self.context, read_argument(HumanInput, args))
        return {"run_id": self.context.state.run_id, "policy": ref, "accepted": True}

    @accept_policy.validator
    def _acceptance_fits(self, *args: Any) -> None:
        accepted_policy(self.context, read_argument(HumanInput, args))

    @workflow.signal(description='Say something to the run at work, for its next model call: {"request_id", "text"}')
    @ignore_if_invalid
    def steer(self, *args: Any) -> None:
        receive_message(self.context, read_argument(SteerRequest, args))

    @workflow.signal(description='Signal a workflow `run_ended` as the run ends: {"workflow_id"}')
    @ignore_if_invalid
    def watch_end(self, *args: Any) -> None:
        self.context.state = add_watcher(self.context.state, read_argument(EndWatcher, args).workflow_id)

    def ignore(self, signal: str, reason: str) -> None:
        self.context.ignore(signal, reason)

    @workflow.query(description="Status, step, pending actions, open question, usage")
    def state(self, *_: Any) -> RunView:
        return formatting.state_view(self.context.state)

    @workflow.query(description='All that decides how the run goes on, with the turn\'s calls in pages: {"from"}?')
    def snapshot(self, *args: Any) -> Snapshot:
        asked, run = read_optional_argument(SnapshotQuery, args), self.context
        return Snapshot(
            state=run.state.evolve(calls=call_state.page_calls(run.state.calls, asked.start)),
            segments=run.segments,
            length=run.transcript.length,
            head=run.transcript.head,
            calls=len(run.state.calls),
        )

    @workflow.query(description="The run journal, section by section")
    def journal(self, *_: Any) -> Journal:
        state = self.context.state
        return fill_journal(state.journal, state.goal, state.last_finding)

    @workflow.query(description='The conversation, in pages: {"from", "limit"}?')
    def transcript(self, *args: Any) -> TranscriptPage:
        asked, run = read_optional_argument(TranscriptQuery, args), self.context
        return run.transcript.page(asked.start, asked.limit, run.segments)

    @workflow.query(description="The large result of another worker, while it is made an artifact")
    def result(self, *args: Any) -> Any:
        step = read_argument(LargeResult, args).step
        if step not in self.context.handed_on:
            raise invalid_input(f"no result of step {step} is kept here")
        return self.context.handed_on[step]


def _stop_time(run: RunContext) -> timedelta:
    """Return how long a cancelled run waits for what is running: an effect's end is worth knowing."""
    return MAX_STOP_TIME if run.effects else READ_STOP_TIME

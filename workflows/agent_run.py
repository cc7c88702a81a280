"""`AgentRun`: plan, act, reflect, until there is an ending.

The loop asks `decisions.loop` for the next move and makes it. Signals and updates are judged in their handlers, which
append what they bring to the live run; the loop waits for it there.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

from activities.inherit import Inheritances
from activities.run import Runs
from activities.turn import Turns
from contracts.agent import Opening, OpeningRequest
from contracts.events import ResumePayload, ToolResultEvent
from contracts.failures import RunFailure, Stop
from contracts.journal import Journal
from contracts.question import QuestionKind
from contracts.run import (
    CloseRequest,
    Continuation,
    Ending,
    Inherited,
    InheritRequest,
    RunStatus,
    RunView,
    Snapshot,
)
from contracts.signals import CancelRequest, Decision, HumanInput
from contracts.transcript import Page, TranscriptQuery
from contracts.turn import ModelTurn, TurnRequest
from decisions import loop, narrate
from decisions.endings import ending_event, handoff
from decisions.limits import with_requested
from decisions.transcript import Transcript, call_part, note_part, reply_part
from workflows import events, halt
from workflows.acting import act
from workflows.confidential import readable
from workflows.fate import Fate, fate
from workflows.handlers import invalid, read, read_optional
from workflows.live_run import LiveRun, begin
from workflows.policies import FILES, HEARTBEAT, MODEL_RETRIES, MOST_LOST, WAIT_FOR_END


@workflow.defn
class AgentRun:
    """A run from goal to outcome. Input: the `agentic.start` event. Result: `agent.completed` or `agent.escalated`.

    Cancelled runs end Canceled; failed ones with an ApplicationError whose type is a `RunFailure`.
    """

    @workflow.init
    def __init__(self, *args: Any) -> None:
        try:
            self._live: LiveRun | ApplicationError = begin(args)
        except ApplicationError as refused:
            self._live = refused

    @workflow.run
    async def run(self, *args: Any) -> dict[str, Any]:  # noqa: ARG002 - read by __init__; Temporal wants both alike
        run = self._run
        try:
            rotated = await run.halt.outlast(self._work(run), halt.MOST_WAIT)
        except asyncio.CancelledError:
            run.state = loop.halted(run.state, run.effects, workflow.now())
            rotated = False
        if rotated and run.halt.reason is None:
            workflow.continue_as_new(Continuation(state=run.state, segments=run.segments))
        return await run.halt.outlast(self._end(run))

    @property
    def _run(self) -> LiveRun:
        if isinstance(self._live, ApplicationError):
            raise self._live
        return self._live

    async def _work(self, run: LiveRun) -> bool:
        """Moves until there is an ending (False) or the history is long (True). Raises CancelledError at a halt."""
        if run.state.status is RunStatus.queued:
            await self._open(run)
        while True:
            run.halt.check()
            match loop.next_move(run.state, history_is_long=workflow.info().is_continue_as_new_suggested()):
                case loop.Think():
                    await self._think(run)
                case loop.Act(batch):
                    await act(run, batch)
                case loop.CloseTurn():
                    _close_turn(run)
                case loop.Rotate():
                    await self._archive(run)
                    run.halt.check()
                    return True
                case loop.End(ending):
                    run.state = loop.ended(run.state, ending, workflow.now())
                    return False

    async def _open(self, run: LiveRun) -> None:
        """Takes over what the run goes on from, if anything, and the snapshot of its agent."""
        if run.origin is not None:
            await self._inherit(run, run.origin)
        if run.state.ending is None and not run.state.definition:
            await self._take_snapshot(run)
        events.emit(run, "agent_run.started", agent=run.state.agent, origin=run.origin and run.origin.run_id)
        run.set_status(RunStatus.running)

    async def _inherit(self, run: LiveRun, origin: ResumePayload) -> None:
        request = InheritRequest(**origin.model_dump(), execution=run.state.execution)
        try:
            inherited: Inherited = await self._read(run, Inheritances.inherit, request, f"go on from {origin.run_id}")
        except ActivityError as error:
            _fail(run, error, RunFailure.not_resumable)
            return
        last = inherited.segments[-1]
        run.take_over(inherited.state, Transcript(last.end, last.head), inherited.segments)

    async def _take_snapshot(self, run: LiveRun, shown: str | None = None) -> None:
        """As the project defines the agent now; not where a person has decided on another definition, `shown`."""
        request = OpeningRequest(agent=run.state.agent, length=run.transcript.length, head=run.transcript.head)
        try:
            opening: Opening = await self._read(run, Runs.open_run, request, "read agent, tools and limits")
        except ActivityError as error:
            _fail(run, error, RunFailure.bad_project)
            return
        if shown not in (None, opening.definition):
            return
        run.update(
            agent=opening.agent,
            model=opening.model,
            definition=opening.definition,
            tools=opening.tools,
            workspace=opening.workspace,
            limits=with_requested(opening.limits, run.state.requested),
        )

    async def _read(self, run: LiveRun, what: Any, request: Any, summary: str) -> Any:
        call = workflow.execute_activity_method(
            what, request, cancellation_type=WAIT_FOR_END, summary=narrate.cut(summary, 80), **FILES
        )
        return await run.halt.stoppable(call)

    async def _think(self, run: LiveRun) -> None:
        """One model call, and what it makes of the run."""
        run.tell()
        turn = await self._reply(run)
        if turn is None:
            return
        taken = loop.take_turn(run.state, turn)
        run.state = taken.state
        run.update(interrupted=False)
        if taken.keep:
            run.transcript.append(reply_part(turn))
        if taken.note:
            run.transcript.append(note_part(taken.note))

    async def _reply(self, run: LiveRun) -> ModelTurn | None:
        """None where the run has changed instead: it failed, or a person decided what its definition is."""
        for _ in range(MOST_LOST):
            try:
                turn: ModelTurn = await run.halt.stoppable(_asked(run))
            except ActivityError as error:
                last = error
            else:
                return turn
            if fate(last) is not Fate.lost:
                break
            run.update(interrupted=True)
        if isinstance(last.cause, ApplicationError) and last.cause.type == Stop.definition_changed:
            await self._settle_definition(run, *last.cause.details)
        else:
            _fail(run, last, RunFailure.model_unavailable)
        return None

    async def _settle_definition(self, run: LiveRun, new: str, difference: str) -> None:
        """The agent is defined otherwise than when the run began: a person decides, nobody guesses (B10)."""
        events.emit(run, "agent_run.resume_unsafe", definition=new)
        answer = await run.ask(QuestionKind.definition_changed, difference)
        run.update(interrupted=False)
        match answer.decision:
            case Decision.use_new:
                await self._take_snapshot(run, new)
                run.update(interrupted=run.state.definition != new)  # the project has moved on: ask again
            case Decision.stop:
                run.halt.request(f"stopped by {answer.by or 'a person'}: the definition has changed")
            case _:
                run.update(refused_definition=new)

    async def _archive(self, run: LiveRun, **end: Any) -> None:
        """Closes the live stretch of the transcript into the run's store."""
        request = CloseRequest(start=run.archived, length=run.transcript.length, head=run.transcript.head, **end)
        summary = "finish the run's files" if end else "archive the transcript"
        closed = await workflow.execute_activity_method(Runs.close_segment, request, summary=summary, **FILES)
        if closed.segment is not None:
            run.segments = (*run.segments, closed.segment)

    async def _end(self, run: LiveRun) -> dict[str, Any]:
        """Tells the ending once, and ends as Temporal should show it."""
        _close_turn(run)
        ending = run.state.ending
        events.emit(run, f"agent_run.{ending.status if ending else RunStatus.cancelled}", **narrate.figures(run.state))
        # A halt leaves the question that it interrupted.
        run.set_status(RunStatus.cancelled if ending is None else ending.status, question=None)
        if ending is None:
            native = workflow.cancellation_reason() is not None
            await self._archive(run, journal=run.state.journal, cancel=None if native else run.halt.reason)
            raise asyncio.CancelledError
        if ending.status is RunStatus.failed:
            await self._archive(run, journal=run.state.journal)
            raise ApplicationError(ending.text, {"handoff": handoff(run.state)}, type=ending.reason, non_retryable=True)
        event = ending_event(run.state).model_dump(mode="json")
        await self._archive(run, journal=run.state.journal, event=event)
        return event

    @workflow.signal(description="A tool's result from outside: the agentic.tool_result event")
    def tool_result(self, *args: Any) -> None:
        try:
            self._run.take_result(read(ToolResultEvent, args))
        except ApplicationError as refused:
            self._ignore("tool_result", refused.message)

    @workflow.signal(description='Stop the run: {"reason"?, "by"?}; what is running is finished first')
    def cancel(self, *args: Any) -> None:
        try:
            request = read_optional(CancelRequest, args)
        except ApplicationError as refused:
            self._ignore("cancel", refused.message)
            return
        if not isinstance(self._live, ApplicationError):
            by = f" by {request.by}" if request.by else ""
            self._live.halt.request((request.reason or "cancel signal") + by)

    @workflow.signal(description='Answer the open question: {"text"} or {"decision"}, with "question_id"?, "by"?')
    def human_input(self, *args: Any) -> None:
        try:
            answer = self._checked_answer(args)
        except ApplicationError as refused:
            self._ignore("human_input", refused.message)
            return
        self._run.take_answer(answer)

    @workflow.update(
        description='Answer the open question: {"text"} or {"decision"}; refused with the reason where it does not fit'
    )
    def answer(self, *args: Any) -> dict[str, Any]:
        answer = self._checked_answer(args)
        question = self._run.state.question
        self._run.take_answer(answer)
        return {"run_id": self._run.state.run_id, "question_id": question.id if question else None, "accepted": True}

    @answer.validator
    def _answer_fits(self, *args: Any) -> None:
        self._checked_answer(args)

    def _checked_answer(self, args: Sequence[Any]) -> HumanInput:
        answer = read(HumanInput, args)
        if reason := self._run.refusal(answer):
            raise invalid(reason)
        return answer

    @workflow.signal(dynamic=True)
    def unknown_signal(self, name: str, args: Sequence[RawValue]) -> None:  # noqa: ARG002 - Temporal's signature
        self._ignore(narrate.cut(name, 80), "no such signal; there are tool_result, human_input and cancel")

    def _ignore(self, signal: str, why: str) -> None:
        if isinstance(self._live, LiveRun):
            self._live.ignore(signal, why)

    @workflow.query(description="Status, step, pending actions, open question, usage")
    def state(self, *_: Any) -> RunView:
        return narrate.view(self._run.state)

    @workflow.query(description="All that decides how the run goes on; what a resumed or forked run begins with")
    def snapshot(self, *_: Any) -> Snapshot:
        run = self._run
        return Snapshot(state=run.state, segments=run.segments, length=run.transcript.length, head=run.transcript.head)

    @workflow.query(description="The run journal, section by section")
    def journal(self, *_: Any) -> Journal:
        return self._run.state.journal

    @workflow.query(description='The conversation, in pages: {"from", "limit"}?')
    def transcript(self, *args: Any) -> Page:
        asked, run = read_optional(TranscriptQuery, args), self._run
        return run.transcript.page(asked.start, asked.limit, run.segments)


async def _asked(run: LiveRun) -> ModelTurn:
    request = TurnRequest(
        turn=run.state.turns + 1,
        length=run.transcript.length,
        head=run.transcript.head,
        definition=run.state.definition,
        interrupted=run.state.interrupted,
        refused=run.state.refused_definition,
    )
    return await readable(
        run.halt,
        lambda: workflow.execute_activity_method(
            Turns.plan if run.state.turns == 0 else Turns.reflect,
            request,
            start_to_close_timeout=run.state.limits.turn_timeout,
            heartbeat_timeout=HEARTBEAT,
            retry_policy=MODEL_RETRIES,
            cancellation_type=WAIT_FOR_END,
            summary=narrate.turn_summary(run.state),
        ),
    )


def _close_turn(run: LiveRun) -> None:
    """Hands the results of a turn to the conversation, in the order of its tool uses."""
    for call in run.state.calls:
        run.transcript.append(call_part(call))
    run.state = loop.closed_turn(run.state)


def _fail(run: LiveRun, error: ActivityError, otherwise: RunFailure) -> None:
    """An activity failed for good: the run ends Failed, with the kind that the activity named."""
    if fate(error) is Fate.cancelled:
        raise asyncio.CancelledError from None
    cause = error.cause
    text, reason = f"{error.activity_type} did not end in time", otherwise
    if isinstance(cause, ApplicationError):
        text = cause.message
        reason = next((kind for kind in RunFailure if kind == cause.type), otherwise)
    run.update(ending=Ending(status=RunStatus.failed, text=text, reason=reason))

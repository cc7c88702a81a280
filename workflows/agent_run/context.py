"""A run while a worker has it in memory: its state and transcript, and what has arrived from outside.

Handlers judge what arrives and keep it here; the loop waits for it here. Nothing is decided in this module.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from pydantic_core import to_json
from temporalio import workflow
from temporalio.common import TypedSearchAttributes

from contracts.agent import DEFAULT_AGENT
from contracts.conversation import SteerRequest
from contracts.failures import Escalation
from contracts.run.events import (
    BeginEvent,
    ResumeEvent,
    ResumePayload,
    StartEvent,
    StartPayload,
    ToolResultEvent,
    ToolResultPayload,
)
from contracts.run.limits import limits_in
from contracts.run.question import Question, QuestionKind
from contracts.run.signals import HumanInput
from contracts.run.state import Call, Continuation, RunState, RunStatus, TurnClose
from contracts.run.transcript import Part, Segment
from contracts.sender import Sender
from contracts.tool import Effect, ToolOutcome
from decisions import ids
from decisions.conversation.omission import unanswered_kind
from decisions.run import call_state, tool_results
from decisions.run import outcome as endings
from decisions.run.calls import asked_first
from decisions.run.journal import handed_on
from decisions.run.limits import DEFAULTS, in_force, set_in
from decisions.run.question import DECISIONS, is_same, refusal
from decisions.run.tool_results import ESCALATES, Verdict, outcome_of
from decisions.run.transcript import Transcript, brief_part, goal_part, too_large
from decisions.signature import Asked, signature_error
from decisions.text import formatting
from decisions.text.visible_text import render_visible
from workflows import search_attributes
from workflows.cancellation import Halt
from workflows.handlers import invalid, must_continue, read
from workflows.sharing import share

SHOWN_WAIT = timedelta(days=365)
AT_ONCE = timedelta(milliseconds=1)  # for what has expired between two executions
MOST_CARRIED = 1024 * 1024  # bytes of a state, half of what the server takes as an input
MOST_STEERED = 100  # request ids of what was said, by which it is known when it comes again
MOST_SAID = 256 * 1024  # bytes of what was said and not heard yet, that another execution begins with
KEPT_NOTICES = 20  # ignored signals that the state tells of


class StillWaiting(Exception):
    """The history is long, and what the run waits for has not come: the wait goes on in another execution."""


class LiveRun:
    def __init__(
        self,
        state: RunState,
        transcript: Transcript,
        segments: tuple[Segment, ...],
        origin: ResumePayload | None = None,
    ) -> None:
        self.state = state
        self.origin = origin  # what this run goes on from
        self.after: tuple[str, ...] = ()  # the turns of its conversation before it, the latest first
        self.forget: tuple[str, ...] = ()  # turns that it leaves out of its conversation
        self.opening: tuple[Part, ...] = ()  # what it adds to their conversation, until it has
        self.transcript = transcript
        self.segments = segments
        self.said: list[SteerRequest] = []  # by its user, and not in the conversation yet
        self._hears = True  # until its end is told
        self.halt = Halt()
        self.handed_on: dict[int, Any] = {}  # large results by step, until they are artifacts
        self.asking = asyncio.Lock()  # for calls that are made together, and each may have something to ask
        self.effects = call_state.in_flight(state)  # tool uses that may be having their effect just now
        self._results: dict[int, ToolOutcome] = {}
        self._last: dict[int, ToolResultPayload] = {}  # by step: what was applied last
        self._paused: list[int] = []  # steps whose request has not gone out, or not again
        self._answer: HumanInput | None = None
        self._awaited = 0  # results from outside that the loop waits for
        self._shown: TypedSearchAttributes = workflow.info().typed_search_attributes
        share(transcript)
        self.tell()

    def take_over(self, state: RunState, transcript: Transcript, segments: tuple[Segment, ...]) -> None:
        """Goes on from another run's state and conversation."""
        self.state, self.transcript, self.segments = state, transcript, segments
        self.effects = call_state.in_flight(state)
        share(transcript)
        self.tell()

    @property
    def is_to_join(self) -> bool:
        """Whether it is a turn of a conversation that it does not know yet."""
        return self.state.is_turn and bool(self.opening)

    @property
    def turn(self) -> TurnClose | None:
        """What it leaves to its conversation, if it is a turn of one and knows it."""
        state = self.state
        if not state.is_turn or self.is_to_join:
            return None
        before = next((segment for segment in self.segments if segment.owner), None)
        owner = ids.conversation_workflow_id(state.conversation_id or "")
        return TurnClose(
            owner=owner, before=before, journal=handed_on(state.journal), unanswered=unanswered_kind(state)
        )

    @property
    def is_long(self) -> bool:
        """Whether the server suggests to go on in another execution."""
        return workflow.info().is_continue_as_new_suggested()

    @property
    def has_news(self) -> bool:
        """Whether something has come that another execution would not know."""
        results = any(pending.step in self._results for pending in self.state.pending)
        return results or self._answer is not None or len(to_json(self.said)) > MOST_SAID

    @property
    def is_to_move(self) -> bool:
        """Whether a wait, which nothing else goes on beside, should go on in another execution."""
        return self.is_long and len(self.state.pending) <= 1 and not self.has_news

    def fits(self) -> bool:
        """Whether its state is no more than an execution can begin with: in mid-turn it holds the turn's results."""
        return len(to_json(self.state)) <= MOST_CARRIED

    @property
    def archived(self) -> int:
        """How many parts lie in the run's store."""
        return self.segments[-1].end if self.segments else 0

    def update(self, **changes: Any) -> None:
        self.state = self.state.model_copy(update={**changes, "updated_at": workflow.now()})

    def inherit(self, state: RunState, transcript: Transcript, segments: tuple[Segment, ...]) -> None:
        """Goes on from another run's, with what was sent to this one meanwhile."""
        own = self.state
        changes = {
            "steered": (*state.steered, *own.steered)[-MOST_STEERED:],
            "ignored": (*state.ignored, *own.ignored)[-KEPT_NOTICES:],
            "ending": own.ending,
            "sender": own.sender,
        }
        self.take_over(state.model_copy(update=changes), transcript, segments)

    def tell(self) -> None:
        """Brings the Web UI's current details up to date: before each wait, so that they tell what is waited for."""
        workflow.set_current_details(formatting.details(self.state))

    def set_status(self, status: RunStatus, **changes: Any) -> None:
        """Changes the status, and the search attributes with it: at the price of one event."""
        self.update(status=status, **changes)
        new = search_attributes.of(self.state)
        if changed := search_attributes.changes(self._shown, new):
            workflow.upsert_search_attributes(changed)
        self._shown = new
        self.tell()

    def in_flight(self, call: Call) -> None:
        """From now on the call may have happened, if it changes anything."""
        if call.effect is not Effect.read and call.tool_use_id not in self.effects:
            self.effects.append(call.tool_use_id)

    def landed(self, call: Call) -> None:
        """What became of the call is known."""
        if call.tool_use_id in self.effects:
            self.effects.remove(call.tool_use_id)

    def ignore(self, signal: str, why: str) -> None:
        """What had no effect is told, in the log and in the state, and harms nothing."""
        workflow.logger.warning("%s ignored: %s", signal, why)
        notice = formatting.notice(signal, why)
        self.update(ignored=(*self.state.ignored, notice)[-KEPT_NOTICES:])
        self.tell()

    def hear(self, said: SteerRequest) -> None:
        """What comes again under one id has been heard."""
        if said.request_id in self.state.steered:
            self.ignore("steer", f"{formatting.cut(said.request_id, 80)} was said before")
            return
        if not self._hears:
            self._unheard(said)
            return
        self.said.append(said)
        self.update(steered=(*self.state.steered, said.request_id)[-MOST_STEERED:])

    def hear_no_more(self) -> None:
        """What was said and came too late for a model call is told, and not lost without a word."""
        self._hears = False
        for said in self.said:
            self._unheard(said)

    def _unheard(self, said: SteerRequest) -> None:
        self.ignore(
            "steer", f"{formatting.cut(said.request_id, 80)}: the run ended before a model call could take it in"
        )

    def take_result(self, event: ToolResultEvent) -> None:
        """A `tool_result` from outside, judged in the order of A5."""
        result = event.payload
        verdict = self._judge(result)
        if verdict is Verdict.accepted:
            self._last[result.step] = result
            self.state = tool_results.record_result(self.state, result)
            self.keep_result(result.step, outcome_of(result))
        elif verdict in ESCALATES:
            reason = Escalation(verdict.value)
            detail = f"a result came for step {result.step}, tool {formatting.cut(result.tool, 80)}"
            self.state = endings.escalated(self.state, reason, detail)
            self.halt.request(detail)
        else:
            self.ignore("tool_result", tool_results.format_notice(verdict, self.state, result))

    def judge_at_door(self, event: ToolResultEvent) -> Verdict:
        """Return what a result means that comes by update. The run takes none but an accepted one."""
        return tool_results.judge_at_door(self.state, event, self._judge(event.payload))

    def _judge(self, result: ToolResultPayload) -> Verdict:
        is_halted = self.halt.reason is not None
        return tool_results.judge(self.state, result, is_halted=is_halted, is_new=self._is_new(result))

    def _is_new(self, result: ToolResultPayload) -> bool:
        """Events come at least once: one of an attempt that has been judged is not the next attempt's."""
        is_repeated = result.completed_at is not None and self._last.get(result.step) == result
        return result.step not in self._results and result.step not in self._paused and not is_repeated

    @contextmanager
    def not_awaiting(self, step: int) -> Iterator[None]:
        """While its request has not gone out, or not again, whatever comes cannot be its result."""
        self._paused.append(step)
        try:
            yield
        finally:
            self._paused.remove(step)

    def has_result(self, step: int) -> bool:
        return step in self._results

    def keep_result(self, step: int, outcome: ToolOutcome) -> None:
        """What the wait for this step's result will find."""
        self._results[step] = outcome

    async def outside_result(self, step: int, tool: str, timeout: timedelta, *, moves: bool) -> ToolOutcome | None:
        """Waits for the result of a step, whose request has gone out; None where it does not come in time.

        Where it is here already the same commands are given: a result that comes with the end of the call may be
        applied before or after it, and a replay must not differ by that.

        Raises StillWaiting where the history is long, if the wait `moves`: another execution comes to it by itself.
        """
        since = call_state.handed_out_at(self.state, step) or workflow.now()
        self._awaited += 1
        self.set_status(RunStatus.waiting_on_tool)
        wait = workflow.wait_condition(
            lambda: step in self._results or (moves and self.is_to_move),
            timeout=max(since + timeout - workflow.now(), AT_ONCE),
            timeout_summary=f"result of {tool} · step {step}",
        )
        in_time = False
        with suppress(TimeoutError):
            try:
                await self.halt.stoppable(wait)
                in_time = True
            except asyncio.CancelledError:
                if step not in self._results:  # one that has come is kept
                    raise
        self._awaited -= 1
        if in_time and step not in self._results:
            raise StillWaiting
        self.set_status(RunStatus.waiting_on_tool if self._awaited else RunStatus.running)
        return self._results.pop(step, None)

    @contextmanager
    def awaiting_outside(self) -> Iterator[None]:
        """While another worker has a call. Where the run is stopped meanwhile, its end sets the status."""
        self._awaited += 1
        self.set_status(RunStatus.waiting_on_tool)
        yield
        self._awaited -= 1
        self.set_status(RunStatus.waiting_on_tool if self._awaited else RunStatus.running)

    @contextmanager
    def handing_on(self, step: int, outcome: ToolOutcome) -> Iterator[None]:
        """While the query `result` answers with it."""
        self.handed_on[step] = outcome.result
        try:
            yield
        finally:
            del self.handed_on[step]

    async def ask(
        self,
        kind: QuestionKind,
        text: str,
        options: Sequence[str] = (),
        *,
        about: Call | None = None,
        timeout: timedelta | None = None,
    ) -> HumanInput:
        """Opens the run's one question, and waits for the answer however long it takes.

        With a `timeout` for no longer: an answer that decides nothing then says that nobody answered in time.
        """
        question, text = self.state.question, render_visible(text)
        if question is None or not is_same(question, kind, text, about):  # else an execution before this one has asked
            number, now = self.state.questions + 1, workflow.now()
            question = Question(
                id=(name := ids.question_id(number)),
                kind=kind,
                text=text,
                options=tuple(DECISIONS[kind]) or tuple(options),
                step=about and about.step,
                tool=about and about.tool,
                asked_at=now,
                call=ids.approval_digest(
                    (self.state.run_id, self.state.execution), name, about.step, about.tool, about.arguments
                )
                if about and kind is QuestionKind.approval
                else None,
                expires_at=now + timeout if timeout else None,
            )
            self.set_status(RunStatus.waiting_on_human, question=question, questions=number, expired=None)
        moves = about is not None and asked_first(self.state, about) and self.fits()
        await self.halt.stoppable(self._answered(question, moves=moves))
        answer, self._answer = self._answer, None
        if answer is None and question.kind is not QuestionKind.resume_unsafe and timeout is None:
            raise AssertionError("the wait for an answer ended without one")
        expired = question.id if answer is None and timeout else None
        self.set_status(RunStatus.running, question=None, expired=expired)
        return answer or HumanInput()

    async def _answered(self, question: Question, *, moves: bool) -> None:
        """Without end, or until it expires; or until the result of a call in doubt comes, which leaves nothing to ask.

        The timer is there for people too: it is the row in the Web UI's timeline that shows the wait. It is started
        whatever is here already: a replay must not differ by what came just before the question.

        Raises StillWaiting where the history is long, if the question `moves`: another execution comes to it by itself.
        """
        in_doubt = question.step if question.kind is QuestionKind.resume_unsafe else None

        def is_over() -> bool:
            return self._answer is not None or in_doubt in self._results

        while True:
            left = question.expires_at - workflow.now() if question.expires_at else SHOWN_WAIT
            with suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: is_over() or (moves and self.is_to_move),
                    timeout=max(left, AT_ONCE),
                    timeout_summary=formatting.waiting_for(question),
                )
            if is_over():
                return
            if moves and self.is_to_move:
                raise StillWaiting
            if question.expires_at is not None:
                return

    def refusal(self, answer: HumanInput) -> str | None:
        question = None if self._answer is not None or self.halt.reason is not None else self.state.question
        why = refusal(question, answer, expired=self.state.expired, now=workflow.now())
        if why is not None or question is None:
            return why
        asked = Asked(self.state.run_id, self.state.execution, question.id, question.call)
        return signature_error(self.state.answer_keys, asked, answer)

    def take_answer(self, answer: HumanInput) -> None:
        self._answer = answer


def begin(args: Sequence[Any]) -> LiveRun:
    """The run of a start event, or of what an earlier execution carried over. Raises ApplicationError InvalidInput."""
    if _type_of(args) == "agentic.continue":
        carried = read(Continuation, args)
        must_continue()
        last = carried.segments[-1]
        run = LiveRun(carried.state, Transcript(last.end, last.head), carried.segments)
        run.said.extend(carried.said)
        return run
    if _type_of(args) == "agentic.resume":
        event = read(ResumeEvent, args)
        state = _new(StartPayload(goal=f"go on from {event.payload.run_id}"), event.sender)
        return LiveRun(state, Transcript(), (), event.payload)
    if _type_of(args) == "agentic.begin":
        return _begun(read(BeginEvent, args))
    start = read(StartEvent, args)
    return _begun(BeginEvent(type="agentic.begin", payload=start.payload, sender=start.sender))


def _begun(event: BeginEvent) -> LiveRun:
    payload = event.payload
    requested = {**set_in(limits_in(payload.context)), **set_in(payload.limits)}
    changes = {
        "requested": requested,
        "headers": event.headers,
        "is_turn": event.is_turn,
        "assignment": event.assignment,
        "share": event.share,
        "choices": event.choices,
    }
    parts = [brief_part(event.brief)] if event.brief else []
    parts.append(goal_part(payload.goal, payload.context))
    transcript = Transcript()
    for part in parts:
        transcript.append(part)
    if why := too_large(parts):
        raise invalid(why)
    state = _new(payload, event.sender).model_copy(update=changes)
    run = LiveRun(state.model_copy(update={"limits": in_force(state, DEFAULTS)}), transcript, ())
    run.after, run.forget, run.opening = event.after, event.forget, tuple(parts)
    return run


def _type_of(args: Sequence[Any]) -> Any:
    return args[0].get("type") if len(args) == 1 and isinstance(args[0], dict) else None


def _new(payload: StartPayload, sender: Sender | None) -> RunState:
    now, info = workflow.now(), workflow.info()
    is_retry = info.attempt > 1 and info.cron_schedule is None
    return RunState(
        run_id=ids.run_id_of(info.workflow_id),
        goal=payload.goal,
        agent=payload.agent or DEFAULT_AGENT,
        context=payload.context,
        conversation_id=payload.conversation_id,
        sender=sender,
        created_at=now,
        updated_at=now,
        limits=DEFAULTS,
        execution=ids.start_of(info.first_execution_run_id, info.continued_run_id, is_retry=is_retry),
    )

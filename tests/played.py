"""A run over the decisions alone: what the workflow does, without Temporal. What it waits for is given by hand.

It stands to `workflows/` as a score to its performance: the same steps in the same order, but each wait is an open
`Wait` that a test ends with `give`, and each signal comes exactly where a test puts it. So a test may play any order,
and `test_loop_agreement` proves that the real thing comes to the same.
"""

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

from temporalio.exceptions import ApplicationError

from perdure.contracts.conversation import SteerRequest
from perdure.contracts.failures import Escalation, RunFailure, ToolFault
from perdure.contracts.run.events import ToolResultEvent, ToolResultPayload
from perdure.contracts.run.limits import Spent
from perdure.contracts.run.signals import CancelRequest, Decision, HumanInput, QuestionKind
from perdure.contracts.run.state import Call, Ending, ForcedTool, RunState, RunStatus
from perdure.contracts.run.transcript import Part
from perdure.contracts.run.turn import ContextFull, ModelTurn, Recovery, Summary
from perdure.contracts.tool import RETRY_DELAYS, Effect, ToolKind, ToolOutcome, ToolRoute, error_outcome
from perdure.decisions.people.approvals import (
    ask_question,
    judge_answer,
    open_turn_questions,
    options_in,
    record_answer,
)
from perdure.decisions.run import call_state, loop
from perdure.decisions.run import outcome as endings
from perdure.decisions.run.loop_detection import reset_detection
from perdure.decisions.run.next_calls import needs_approval
from perdure.decisions.run.recovery import QUESTION, next_recovery, record_recovery
from perdure.decisions.run.reply import question_in, take_turn
from perdure.decisions.run.state import add_delegated, add_reply_cost, approve_tool, close_question
from perdure.decisions.run.transcript import Transcript, call_part, goal_part, note_part, reply_part, said_part
from perdure.decisions.text import formatting
from perdure.decisions.text.visible_text import render_visible
from perdure.decisions.tool_results import (
    ESCALATES,
    ResultVerdict,
    format_result_notice,
    judge_result,
    outcome_of_result,
    record_result,
)
from perdure.decisions.tools import ASK_HUMAN, DELEGATE, FOLLOW_UP_TOOLS, STATE_TOOLS
from perdure.features.delegation import rules as delegation
from perdure.features.follow_ups.rules.tools import build_follow_up_commands
from perdure.workflows.handlers import read_argument, read_optional_argument

NOW = datetime(2026, 2, 16, 12, tzinfo=UTC)

Kind = Literal["model", "summary", "call", "outside", "pause", "person"]


class Halted(BaseException):
    """What a wait raises that a halt ended."""


@dataclass(eq=False)
class Wait:
    """What a strand of the run waits for. `call` is the call it is about, in its latest form."""

    kind: Kind
    call: Call | None = None
    times_out: timedelta | None = None
    question: str = ""
    strand: "Flow[None] | None" = None

    @property
    def is_activity(self) -> bool:
        return self.kind in ("model", "summary", "call")

    @property
    def has_an_effect(self) -> bool:
        return self.kind == "call" and self.call is not None and self.call.effect is not Effect.read


T = TypeVar("T")
Flow = Generator[Wait, Any, T]


@dataclass
class Played:
    """`waits` is all that is in flight. Over, when there is none."""

    state: RunState
    transcript: Transcript = field(default_factory=Transcript)
    waits: list[Wait] = field(default_factory=list)
    made: Counter[tuple[int, int]] = field(default_factory=Counter)  # calls sent, by step and generation
    asked: int = 0  # times the model was asked
    ends: int = 0
    rotations: int = 0
    is_long: bool = False  # the history: the run rotates where it next may
    halt: str | None = None
    effects: list[str] = field(default_factory=list)
    said: list[SteerRequest] = field(default_factory=list)
    ahead: list[Part] = field(default_factory=list)  # results that the model is shown before the run has them

    def __post_init__(self) -> None:
        self._strands: list[Flow[None]] = []
        self._results: dict[int, ToolOutcome] = {}
        self._last: dict[int, ToolResultPayload] = {}
        self._paused: list[int] = []
        self._awaited = 0
        if not self.transcript.length:
            self.transcript.append(goal_part(self.state.goal, self.state.context))
        self._go_on()

    @property
    def is_over(self) -> bool:
        return self.ends > 0

    @property
    def wait(self) -> Wait | None:
        return self.waits[0] if self.waits else None

    def give(self, wait: Wait, value: Any = None) -> None:
        """Ends a wait with what it was for."""
        self.waits.remove(wait)
        self._advance(wait.strand, value)
        self._go_on()

    def cut(self, wait: Wait) -> None:
        """Ends an activity that heard of the halt before it was done. One that has an effect finishes it."""
        assert self.halt is not None
        assert not wait.has_an_effect
        self.waits.remove(wait)
        self._advance(wait.strand, is_cut=True)
        self._go_on()

    def signal(self, name: str, *args: Any) -> None:
        """As the workflow's handlers take it: what is bad changes nothing but the notices."""
        try:
            match name:
                case "tool_result":
                    self._take_result(read_argument(ToolResultEvent, args).payload)
                case "human_input":
                    self._take_answer(read_argument(HumanInput, args))
                case "cancel":
                    cancel = read_optional_argument(CancelRequest, args)
                    self._stop((cancel.reason or "cancel signal") + (f" by {cancel.by}" if cancel.by else ""))
                case "steer":
                    said = read_argument(SteerRequest, args)
                    if said.request_id in self.state.steered:
                        self._ignore(name, f"{formatting.truncate(said.request_id, 80)} was said before")
                    else:
                        self.said.append(said)
                        self._update(steered=self.state.steered.add(said.request_id))
                case _:
                    self._ignore(
                        formatting.truncate(name, 80),
                        "no such signal; there are tool_result, human_input, steer and cancel",
                    )
        except ApplicationError as refused:
            self._ignore(name, refused.message)
        self._go_on()

    def lengthen(self) -> None:
        self.is_long = True

    # The loop, as in workflows/agent_run/agent_run.py.

    def _go_on(self) -> None:  # noqa: C901 - a case for each move
        while not self._strands and not self.is_over:
            match self.halt or loop.next_move(self.state, history_is_long=self.is_long, is_spoken_to=bool(self.said)):
                case str():
                    self._end()
                case loop.Listen():
                    self._listen()
                case loop.Think():
                    self._begin(self._think())
                case loop.Act() | loop.TakeFusedTurn() as move:
                    self._act(move)
                case loop.CloseTurn():
                    self._close_turn()
                case loop.FinalTurn():
                    self.state = loop.start_final_turn(self.state)
                    self.transcript.append(note_part(loop.LAST_TURN))
                case loop.Rotate():
                    self._rotate()
                case loop.CheckOutcome():
                    raise AssertionError("its agent has no check")
                case loop.End(ending):
                    self.state = endings.end_run(call_state.settle_interrupted(self.state, self.effects), ending)
                    self._end()

    def _act(self, move: loop.Act | loop.TakeFusedTurn) -> None:
        self.state = call_state.issue_calls(self.state, move.batch, NOW)
        outcomes: dict[str, ToolOutcome] = {}
        if isinstance(move, loop.Act):
            self.state = open_turn_questions(self.state, NOW)
            if len(self.state.open_questions) > 1:
                self._show_waits()
            self._begin(*(self._settle(call) for call in move.batch))
        else:
            self._begin(*(self._read(call, move.batch, outcomes) for call in move.batch))

    def _listen(self) -> None:
        said, self.said = self.said, []
        self.state = loop.reopen_run(self.state)
        for each in said:
            self.transcript.append(said_part(each.text))

    def _begin(self, *strands: Flow[None]) -> None:
        self._strands = list(strands)
        for strand in strands:
            self._advance(strand)

    def _advance(self, strand: Flow[None] | None, value: Any = None, *, is_cut: bool = False) -> None:
        assert strand is not None
        try:
            wait = strand.throw(Halted()) if is_cut else strand.send(value)
        except (StopIteration, Halted):
            self._strands.remove(strand)
            return
        wait.strand = strand
        if self.halt is not None:
            self._advance(strand, is_cut=True)
        else:
            self.waits.append(wait)

    def _stop(self, reason: str) -> None:
        if self.halt is not None or self.is_over:
            return
        self.halt = reason
        for wait in [each for each in self.waits if not each.is_activity]:
            self.waits.remove(wait)
            self._advance(wait.strand, is_cut=True)

    def _rotate(self) -> None:
        """Continue as new: what is not in the state is lost, and the conversation is in segments."""
        assert not self.said
        self.is_long = False
        self.rotations += 1
        self.state = RunState.model_validate_json(self.state.model_dump_json())
        self.effects, self._results, self._last, self._paused = [], {}, {}, []

    def _end(self) -> None:
        assert not self.waits
        self.state = call_state.settle_interrupted(self.state, self.effects)
        self._close_turn()
        for message in self.said:
            self._ignore("steer", f"{message.request_id}: the run ended before a model call could take it in")
        ending = self.state.ending
        self._update(status=RunStatus.cancelled if ending is None else ending.status, asked=())
        self.ends += 1

    def _close_turn(self) -> None:
        for call in self.state.calls:
            self.transcript.append(call_part(call))
        closed = loop.settle_turn(self.state)
        self.state = closed.state
        if closed.note:
            self.transcript.append(note_part(closed.note))

    # Reads and the model call after them, as in workflows/agent_run/model_turn.py and activities/model/fused_turn.py.

    def _read(self, call: Call, batch: tuple[Call, ...], outcomes: dict[str, ToolOutcome]) -> Flow[None]:
        """The read that ends last goes on with the model call; a cut one leaves what the others brought."""
        self.made[call.step or 0, call.generation] += 1
        try:
            outcomes[call.tool_use_id] = yield Wait("call", call)
            if len(outcomes) < len(batch):
                return
            reads = [each.evolve(outcome=outcomes[each.tool_use_id]) for each in batch]
            self.ahead = [call_part(each) for each in reads]
            self.asked += 1
            reply: ModelTurn | ContextFull | Ending = yield Wait("model")
        finally:
            self.ahead = []
            if self.halt is not None or len(outcomes) == len(batch):
                self._settle_reads(batch, outcomes)
        if not isinstance(reply, ModelTurn):
            return  # the model is called as usual
        self._close_turn()
        move = loop.next_move(self.state, history_is_long=False, is_spoken_to=bool(self.said))
        if isinstance(move, loop.Think):
            yield from self._take_reply(reply)
        else:
            self.state = add_reply_cost(self.state, reply)

    def _settle_reads(self, batch: tuple[Call, ...], outcomes: dict[str, ToolOutcome]) -> None:
        for call in batch:
            if (outcome := outcomes.pop(call.tool_use_id, None)) is not None:
                self.state = call_state.settle_call(self.state, call, outcome)

    # A model call, as in workflows/agent_run/model_turn.py and workflows/agent_run/compaction.py.

    def _think(self) -> Flow[None]:
        self.asked += 1
        turn: ModelTurn | ContextFull | Ending = yield Wait("model")
        if self.halt is not None and not isinstance(turn, ModelTurn):
            raise Halted
        if isinstance(turn, Ending):
            self._update(ending=turn)
            return
        if isinstance(turn, ContextFull):
            yield from self._make_room(turn)
            return
        yield from self._take_reply(turn)

    def _take_reply(self, turn: ModelTurn) -> Flow[None]:
        forced, ending = self.state.forced, self.state.ending
        taken = take_turn(self.state, turn)
        self.state = taken.state
        self._update(interrupted=False)
        if taken.keep:
            self.transcript.append(reply_part(turn))
        if taken.note:
            self.transcript.append(note_part(taken.note))
        if self.halt is not None:
            self._update(ending=ending)
            raise Halted
        if forced is not None and forced.asks and self.state.forced is None and self.state.ending is None:
            self.state = call_state.settle_unmade(self.state, "not made: a person is asked first")
            self._close_turn()
            yield from self._ask_in_its_place(forced)

    def _make_room(self, full: ContextFull) -> Flow[None]:
        if full.was_refused:
            self._update(window=full.window)
        stage = next_recovery(self.state.recoveries, self.state.turns)
        if self.state.is_closing and stage in (None, Recovery.ask):
            self.state = endings.complete_out_of_time(self.state)
        elif stage is None:
            self.state = endings.escalate_overflow(self.state, full)
        else:
            self._update(recoveries=record_recovery(self.state.recoveries, stage, self.state.turns))
            yield from self._recover(stage, full)

    def _recover(self, stage: Recovery, full: ContextFull) -> Flow[None]:
        forced = ForcedTool(tool=ASK_HUMAN, asks=QuestionKind.recovery, text=QUESTION)
        if stage is not Recovery.ask:
            summary: Summary = yield Wait("summary")
            self.state = add_reply_cost(self.state, summary)
        elif full.was_refused:
            yield from self._ask_in_its_place(forced)
        else:
            note = f"The context is nearly full. Call `{ASK_HUMAN}` now: say how far you are, and ask: {QUESTION}"
            self.transcript.append(note_part(note))
            self._update(forced=forced)

    def _ask_in_its_place(self, forced: ForcedTool) -> Flow[None]:
        said = yield from self._direction(forced)
        self.transcript.append(note_part(f"A person was asked: {forced.text}\nThe answer: {said}"))

    def _direction(self, forced: ForcedTool, said: str = "", about: Call | None = None) -> Flow[str]:
        assert forced.asks is not None
        text = f"{forced.text}\n\n{said}" if said else forced.text
        answer = yield from self._ask(forced.asks, text, about=about)
        self.state = reset_detection(self.state)
        if answer.decision is Decision.stop:
            self._stop(f"stopped by {answer.by or 'a person'}: {answer.text or forced.asks}")
        return answer.text or "keep going"

    # A call, as in workflows/agent_run/tool_calls.py.

    def _settle(self, call: Call) -> Flow[None]:
        if call.tool in STATE_TOOLS:
            self.state, outcome = call_state.apply_state_tool(self.state, call)
        else:
            outcome = yield from self._make_call(call)
        self.state = call_state.settle_call(self.state, call, outcome)

    def _make_call(self, call: Call) -> Flow[ToolOutcome]:
        if call.tool == ASK_HUMAN:
            return (yield from self._ask_human(call))
        if call.tool in FOLLOW_UP_TOOLS or call.tool == DELEGATE:
            return (yield from self._built_in(call))
        if needs_approval(self.state, call):
            approved = yield from self._approve(call)
            if isinstance(approved, ToolOutcome):
                return approved
            call = approved
        if call.kind is ToolKind.signal:
            return (yield from self._hand_out(call))
        return (yield from self._run_tool(call))

    def _ask_human(self, call: Call) -> Flow[ToolOutcome]:
        text = question_in(call)
        if self.state.forced is not None:
            return ToolOutcome(result=(yield from self._direction(self.state.forced, text or "", call)))
        if text is None:
            return error_outcome(ToolFault.invalid_arguments, "`question` is required: ask one question, in a sentence")
        answer = yield from self._ask(QuestionKind.question, text, options_in(call), about=call)
        return ToolOutcome(result=answer.text)

    def _built_in(self, call: Call) -> Flow[ToolOutcome]:
        """Delegations and follow-ups: what is refused before anything starts; else what a test says they bring."""
        planned: Any = (
            delegation.plan_delegation(self.state, call, self.state.run_id)
            if call.tool == DELEGATE
            else build_follow_up_commands(self.state, call)
        )
        if isinstance(planned, ToolOutcome):
            return planned
        outcome: ToolOutcome = yield Wait("call", call.evolve(effect=Effect.read))
        if call.tool == DELEGATE:
            self.state = add_delegated(self.state, Spent(steps=1, tokens=2, usd=0.0))
        return outcome

    def _approve(self, call: Call) -> Flow[Call | ToolOutcome]:
        if outcome := formatting.too_large_to_approve(call.tool, call.arguments):
            return outcome
        timeout = self._route(call).approval_timeout
        answer = yield from self._ask(
            QuestionKind.approval, formatting.format_approval(call.tool, call.arguments), about=call, timeout=timeout
        )
        if answer.decision is None:
            return error_outcome(ToolFault.denied, f"the approval expired: no person decided within {timeout}")
        if answer.decision is Decision.deny:
            return error_outcome(ToolFault.denied, f"a person denied this call: {answer.text or 'no reason given'}")
        if answer.decision is Decision.approve_tool:
            self.state = approve_tool(self.state, call.tool)
        self.state, call = call_state.record_approval(self.state, call)
        return call

    def _run_tool(self, call: Call) -> Flow[ToolOutcome]:
        while True:
            self._in_flight(call)
            self.made[call.step or 0, call.generation] += 1
            outcome: ToolOutcome | None = yield Wait("call", call)
            if outcome is not None:
                self._landed(call)
                if outcome.interrupted:
                    self._update(interrupted=True)
                return outcome
            settled = yield from self._settle_doubt(call)
            if settled is not None:
                return settled
            self.state, call = call_state.repeat_call(self.state, call)
            self.state = call_state.reissue_call(self.state, call.step or 0, NOW)

    def _settle_doubt(self, call: Call) -> Flow[ToolOutcome | None]:
        text = formatting.format_doubt(call.tool, call.arguments)
        self._update(interrupted=True)
        answer = yield from self._ask(QuestionKind.resume_unsafe, text, about=call)
        self._landed(call)
        if call.step in self._results:
            return ToolOutcome(result="handed out")
        if answer.decision is Decision.run_again:
            return None
        if answer.decision is Decision.use_result:
            outcome = ToolOutcome(result=answer.text)
            if call.kind is ToolKind.signal:
                self._keep_result(call.step or 0, outcome)
            return outcome
        return call_state.IN_DOUBT

    def _hand_out(self, call: Call) -> Flow[ToolOutcome]:
        timeout, step = self._route(call).timeout, call.step or 0
        for delay in (*RETRY_DELAYS, None):
            handed_out = yield from self._run_tool(call)
            if handed_out.status == "error":
                return handed_out
            self._in_flight(call)
            outcome = yield from self._outside_result(call, timeout)
            self._landed(call)
            if outcome is None:
                happened = "" if call.effect is Effect.read else "; it was handed out, and may have happened"
                return error_outcome(ToolFault.timeout, f"no result came within {timeout}{happened}")
            again = outcome.error is not None and outcome.error.retryable and call.effect is not Effect.once
            if not again or delay is None:
                return outcome
            self._paused.append(step)
            yield Wait("pause", call)
            self._paused.remove(step)
            self.state = call_state.reissue_call(self.state, step, NOW)
        raise AssertionError("the last attempt returns")

    # What comes from outside, as in workflows/agent_run/context.py.

    def _outside_result(self, call: Call, timeout: timedelta) -> Flow[ToolOutcome | None]:
        step = call.step or 0
        self._awaited += 1
        self._show_waits()
        if step not in self._results:
            yield Wait("outside", call, times_out=timeout)
        self._awaited -= 1
        self._show_waits()
        return self._results.pop(step, None)

    def _ask(
        self,
        kind: QuestionKind,
        text: str,
        options: Sequence[str] = (),
        *,
        about: Call | None = None,
        timeout: timedelta | None = None,
    ) -> Flow[HumanInput]:
        self.state, question = ask_question(self.state, kind, render_visible(text), options, about, NOW)
        self._show_waits()
        is_settled = kind is QuestionKind.resume_unsafe and (about and about.step) in self._results
        if question.answer is None and not is_settled:
            yield Wait("person", about, times_out=timeout, question=question.id)
        answer = next(asked for asked in self.state.asked if asked.id == question.id).answer or HumanInput()
        self.state = close_question(self.state, question, expired=answer == HumanInput() and timeout is not None)
        self._show_waits()
        return answer

    def _show_waits(self) -> None:
        waits = RunStatus.waiting_on_tool if self._awaited else RunStatus.running
        self._update(status=RunStatus.waiting_on_human if self.state.question else waits)

    def _take_answer(self, answer: HumanInput) -> None:
        question = "no question is open on this run" if self.halt else judge_answer(self.state, answer, NOW)
        if isinstance(question, str):
            self._ignore("human_input", question)
            return
        self.state = record_answer(self.state, question, answer, NOW)
        self._show_waits()
        answered = {asked.id for asked in self.state.asked if asked.answer is not None}
        for wait in [wait for wait in self.waits if wait.question in answered]:
            self.give(wait)

    def _take_result(self, result: ToolResultPayload) -> None:
        verdict = judge_result(self.state, result, is_halted=self.halt is not None, is_new=self._is_new(result))
        about = f"step {result.step}, tool {formatting.truncate(result.tool, 80)}"
        if verdict is ResultVerdict.accepted:
            self._last[result.step] = result
            self.state = record_result(self.state, result)
            self._keep_result(result.step, outcome_of_result(result))
        elif verdict in ESCALATES:
            self.state = endings.escalate_run(self.state, Escalation(verdict.value), f"a result came for {about}")
            self._stop(f"a result came for {about}")
        else:
            self._ignore("tool_result", format_result_notice(verdict, self.state, result))

    def _is_new(self, result: ToolResultPayload) -> bool:
        is_repeated = result.completed_at is not None and self._last.get(result.step) == result
        return result.step not in self._results and result.step not in self._paused and not is_repeated

    def _keep_result(self, step: int, outcome: ToolOutcome) -> None:
        self._results[step] = outcome
        for wait in list(self.waits):
            is_about = wait.call is not None and wait.call.step == step
            in_doubt = any(q.kind is QuestionKind.resume_unsafe and q.step == step for q in self.state.open_questions)
            if is_about and (wait.kind == "outside" or (wait.kind == "person" and in_doubt)):
                self.give(wait)
                return

    def _ignore(self, signal: str, why: str) -> None:
        notice = formatting.truncate(f"{signal}: {why}", 300)
        self._update(ignored=self.state.ignored.add(notice))

    def _in_flight(self, call: Call) -> None:
        if call.effect is not Effect.read and call.tool_use_id not in self.effects:
            self.effects.append(call.tool_use_id)

    def _landed(self, call: Call) -> None:
        if call.tool_use_id in self.effects:
            self.effects.remove(call.tool_use_id)

    def _update(self, **changes: Any) -> None:
        self.state = self.state.evolve(**changes)

    def _route(self, call: Call) -> ToolRoute:
        return next(route for route in self.state.tools if route.name == call.tool)


def failed_model(text: str) -> Ending:
    """What a model call brings that failed for good."""
    return Ending(status=RunStatus.failed, text=text, reason=RunFailure.model_refused)

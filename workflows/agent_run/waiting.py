"""Waits of a run: for a person's answer or approval, and for results from outside."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

from temporalio import workflow

from contracts.failures import ToolFault
from contracts.run.question import Question, QuestionKind
from contracts.run.signals import Decision, HumanInput
from contracts.run.state import Call, ForcedTool, RunStatus
from contracts.tool import ToolError, ToolOutcome, error_outcome
from decisions import ids
from decisions.run import call_state
from decisions.run.loop_detection import reset_detection
from decisions.run.question import QUESTION_DECISIONS, is_same_question
from decisions.run.reply import is_asked_first, question_in
from decisions.run.state import accept_redefinition, approve_tool, close_question, open_question
from decisions.run.transcript import note_part
from decisions.text import formatting
from decisions.text.visible_text import render_visible
from workflows.agent_run import events
from workflows.agent_run.context import RunContext

SHOWN_WAIT = timedelta(days=365)
AT_ONCE = timedelta(milliseconds=1)  # for a deadline that passed between two executions
KEEP_GOING = "keep going"


class StillWaitingError(Exception):
    """The history is long and the wait is not over, so it continues in another execution."""


async def ask_person(
    run: RunContext, kind: QuestionKind, text: str, options: Sequence[str] = (), *, about: Call | None = None
) -> HumanInput:
    """Open the run's one question, and return the answer, which is empty if an approval has expired."""
    question, text = run.state.question, render_visible(text)
    if question is None or not is_same_question(question, kind, text, about):  # else an earlier execution has asked it
        question = _new_question(run, kind, text, options, about)
        run.state = open_question(run.state, question)
        run.set_status(RunStatus.waiting_on_human)
    moves = about is not None and is_asked_first(run.state, about) and run.fits_input()
    await run.cancellation.cancellable(_wait_for_answer(run, question, moves=moves))
    answer = run.inbox.take_answer()
    if answer is None and question.kind is not QuestionKind.resume_unsafe and question.expires_at is None:
        raise AssertionError("the wait for an answer ended without one")
    expired = question.id if answer is None and question.expires_at else None
    run.state = close_question(run.state, expired=expired)
    run.set_status(RunStatus.running)
    return answer or HumanInput()


def _new_question(
    run: RunContext, kind: QuestionKind, text: str, options: Sequence[str], about: Call | None
) -> Question:
    now, name = workflow.now(), ids.question_id(run.state.questions + 1)
    digest = timeout = None
    if about and kind is QuestionKind.approval:
        start = (run.state.run_id, run.state.execution)
        digest = ids.approval_digest(start, name, about.step, about.tool, about.arguments)
        timeout = run.route_of(about).approval_timeout
    return Question(
        id=name,
        kind=kind,
        text=text,
        options=tuple(QUESTION_DECISIONS[kind]) or tuple(options),
        step=about and about.step,
        tool=about and about.tool,
        asked_at=now,
        call=digest,
        expires_at=now + timeout if timeout else None,
    )


async def _wait_for_answer(run: RunContext, question: Question, *, moves: bool) -> None:
    """Wait for the answer, the question's expiry, or the result of a call in doubt, which leaves nothing to ask.

    The timer also serves people: it is the row in the Web UI's timeline that shows the wait. It is started even if the
    answer has arrived: a replay must not differ by what came just before the question.

    If the history is long and the question `moves`, an exception ends the wait: another execution asks it again.
    """
    in_doubt = question.step if question.kind is QuestionKind.resume_unsafe else None

    def is_over() -> bool:
        return run.inbox.answer is not None or in_doubt in run.inbox.results

    while True:
        remaining = question.expires_at - workflow.now() if question.expires_at else SHOWN_WAIT
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: is_over() or (moves and run.should_move_wait),
                timeout=max(remaining, AT_ONCE),
                timeout_summary=formatting.waiting_for_person(question),
            )
        if is_over():
            return
        if moves and run.should_move_wait:
            raise StillWaitingError
        if question.expires_at is not None:
            return


async def ask_direction(run: RunContext, forced: ForcedTool, reply: str = "", about: Call | None = None) -> str:
    """Ask the question of `forced`, with the model's `reply` to it. The answer "stop" cancels the run."""
    if forced.asks is None:
        raise AssertionError(f"{forced.tool} asks no person")
    text = f"{forced.text}\n\n{reply}" if reply else forced.text
    answer = await ask_person(run, forced.asks, text, about=about)
    run.state = reset_detection(run.state)
    if answer.decision is Decision.stop:
        run.cancellation.request(f"stopped by {answer.by or 'a person'}: {answer.text or forced.asks}")
    return answer.text or KEEP_GOING


async def run_ask_human(run: RunContext, call: Call) -> ToolOutcome:
    """Carry out the tool `ask_human`. A question that the runtime forces is asked whatever the model says to it."""
    text = question_in(call)
    if run.state.forced is not None:
        return ToolOutcome(result=await ask_direction(run, run.state.forced, text or "", call))
    if text is None:
        return error_outcome(ToolFault.invalid_arguments, "`question` is required: ask one question, in a sentence")
    options = call.arguments.get("options")
    texts = [option for option in options if isinstance(option, str)] if isinstance(options, list) else []
    answer = await ask_person(run, QuestionKind.question, text, texts, about=call)
    return ToolOutcome(result=answer.text)


async def ask_instead_of_model(run: RunContext, forced: ForcedTool) -> None:
    """Ask the question that the model was to ask, and note the answer for the model."""
    answer = await ask_direction(run, forced)
    run.transcript.append(note_part(f"A person was asked: {forced.text}\nThe answer: {answer}"))


async def wait_for_result(
    run: RunContext, step: int, tool: str, timeout: timedelta, *, moves: bool
) -> ToolOutcome | None:
    """Return the result of a step whose request was sent, unless the wait times out.

    A result that has arrived already gives the same commands: one that comes with the end of the call may be applied
    before or after it, and a replay must not differ by that.

    If the history is long and the wait `moves`, an exception ends it: another execution waits again.
    """
    since = call_state.handed_out_at(run.state, step) or workflow.now()
    run.awaited += 1
    run.set_status(RunStatus.waiting_on_tool)
    wait = workflow.wait_condition(
        lambda: step in run.inbox.results or (moves and run.should_move_wait),
        timeout=max(since + timeout - workflow.now(), AT_ONCE),
        timeout_summary=f"result of {tool} · step {step}",
    )
    in_time = False
    with suppress(TimeoutError):
        try:
            await run.cancellation.cancellable(wait)
            in_time = True
        except asyncio.CancelledError:
            if step not in run.inbox.results:  # one that has arrived counts
                raise
    run.awaited -= 1
    if in_time and step not in run.inbox.results:
        raise StillWaitingError
    run.set_status(RunStatus.waiting_on_tool if run.awaited else RunStatus.running)
    return run.inbox.results.pop(step, None)


@contextmanager
def waiting_on_worker(run: RunContext) -> Iterator[None]:
    """Show that another worker has a call. If the run is cancelled in this time, its end sets the status."""
    run.awaited += 1
    run.set_status(RunStatus.waiting_on_tool)
    yield
    run.awaited -= 1
    run.set_status(RunStatus.waiting_on_tool if run.awaited else RunStatus.running)


async def approve_call(run: RunContext, call: Call) -> Call | ToolOutcome:
    """Return the call with a person's approval of exactly this call, or the outcome of a call that is not made."""
    if outcome := formatting.too_large_to_approve(call.tool, call.arguments):
        return outcome
    answer = await _ask_approval(run, call, formatting.format_approval(call.tool, call.arguments))
    if isinstance(answer, ToolOutcome):
        return answer
    if answer.decision is Decision.approve_tool:
        run.state = approve_tool(run.state, call.tool)
    run.state, call = call_state.record_approval(run.state, call)
    return call


async def accept_redefined(run: RunContext, call: Call, error: ToolError) -> Call | ToolOutcome:
    """Approve a call whose tool its server has redefined. Calls of one batch ask one after the other."""
    definition = error.definition or ""
    async with run.asking:
        run.cancellation.raise_if_cancelled()
        if run.state.accepted.get(call.tool) != definition:
            events.emit_event(run, "agent_run.resume_unsafe", **events.call_figures(call), definition=definition)
            if outcome := formatting.too_large_to_approve(call.tool, call.arguments):
                return outcome
            approval = formatting.format_approval(call.tool, call.arguments)
            answer = await _ask_approval(run, call, f"{error.message}\n\nMake this call all the same?\n{approval}")
            if isinstance(answer, ToolOutcome):
                return answer
            if answer.decision is Decision.approve_tool:
                run.state = accept_redefinition(run.state, call.tool, definition)
    run.state, call = call_state.accept_definition(run.state, call, definition)
    return call


async def _ask_approval(run: RunContext, call: Call, text: str) -> HumanInput | ToolOutcome:
    """Return a person's approval of the call, or the outcome of a call that is not made."""
    answer = await ask_person(run, QuestionKind.approval, text, about=call)
    if answer.decision is None:
        timeout = run.route_of(call).approval_timeout
        return _denied_outcome(run, call, f"the approval expired: no person decided within {timeout}")
    if answer.decision is Decision.deny:
        return _denied_outcome(run, call, f"a person denied this call: {answer.text or 'no reason given'}")
    return answer


def _denied_outcome(run: RunContext, call: Call, reason: str) -> ToolOutcome:
    """Return the outcome; a call that was in flight when the run's origin ended may have happened."""
    if call.tool_use_id in run.state.doubtful:
        return error_outcome(
            ToolFault.in_doubt, f"{reason}; but it was in flight in an earlier run, and may have happened"
        )
    return error_outcome(ToolFault.denied, reason)

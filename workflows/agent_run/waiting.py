"""Waits of a run: for a person's answer or approval, and for results from outside."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any

from temporalio import workflow

from perdure.contracts.failures import ToolFault
from perdure.contracts.people import NoticeKind
from perdure.contracts.run.signals import Decision, HumanInput, Question, QuestionKind
from perdure.contracts.run.state import Call, ForcedTool
from perdure.contracts.tool import ToolError, ToolOutcome, error_outcome
from perdure.decisions.people.approvals import (
    ask_question,
    expire_questions,
    options_error,
    options_in,
    postpone_questions,
)
from perdure.decisions.people.terms import time_to_decide
from perdure.decisions.run import call_state
from perdure.decisions.run.loop_detection import reset_detection
from perdure.decisions.run.next_calls import is_asked_first
from perdure.decisions.run.question import announcement_of
from perdure.decisions.run.reply import question_in
from perdure.decisions.run.state import accept_redefinition, approve_tool, close_question
from perdure.decisions.run.transcript import note_part
from perdure.decisions.text import formatting
from perdure.decisions.text.formatting import too_large_to_approve
from perdure.decisions.text.visible_text import render_visible
from perdure.registry import load_each
from perdure.workflows.activities import Activities
from perdure.workflows.agent_run import events
from perdure.workflows.agent_run.context import RunContext
from perdure.workflows.agent_run.turn import take_attachments

SHOWN_WAIT = timedelta(days=365)
AT_ONCE = timedelta(milliseconds=1)  # for a deadline that passed between two executions
KEEP_GOING = "keep going"


class StillWaitingError(Exception):
    """The history is long and the wait is not over, so it continues in another execution."""


@asynccontextmanager
async def resting(run: RunContext) -> AsyncIterator[None]:
    """Wait for people or subtasks. A run that has nothing else to do leaves its place to another one meanwhile."""
    run.resting += 1
    try:
        await leave_if_idle(run)
        yield
    finally:
        run.resting -= 1
    await return_to_work(run)


async def return_to_work(run: RunContext) -> None:
    """Take a place again, if the run has left its own."""
    if not run.state.place:
        return
    async with run.returning:
        if run.state.has_left_place:
            for hear in load_each("on_return"):
                await hear(run)
            run.state = run.state.evolve(has_left_place=False)


async def leave_if_idle(run: RunContext) -> None:
    """Leave the place of a run that only waits. It is left before the run can ask for one again."""
    if not run.state.place:
        return
    async with run.returning:
        if 0 < run.resting >= run.at_work and not run.state.has_left_place:
            run.state = run.state.evolve(has_left_place=True)
            for hear in load_each("on_rest"):
                await hear(run.state)


async def ask_person(  # noqa: PLR0913 - facts of a question
    run: RunContext,
    kind: QuestionKind,
    text: str,
    options: Sequence[str] = (),
    *,
    about: Call | None = None,
    form: dict[str, Any] | None = None,
) -> HumanInput:
    """Ask a person, and return the answer, which is empty if an approval has expired."""
    run.state, question = ask_question(run.state, kind, render_visible(text), options, about, workflow.now(), form)
    run.show_waits()
    await _announce_questions(run)
    moves = about is not None and is_asked_first(run.state, about) and run.fits_input()
    async with resting(run):
        await run.cancellation.cancellable(_wait_for_answer(run, question, moves=moves))
    question = next(asked for asked in run.state.asked if asked.id == question.id)
    if question.answer is None and question.kind is not QuestionKind.resume_unsafe:
        raise AssertionError("the wait for an answer ended without one")
    answer = question.answer or HumanInput()
    has_expired = question.answer == HumanInput()
    if has_expired:
        await _announce(run, question, NoticeKind.expired)
    before = run.state
    run.state = close_question(before, question, expired=has_expired)
    events.report_closed(run, before)
    run.show_waits()
    return answer


async def _announce_questions(run: RunContext) -> None:
    """Notify people of each question that is open, once."""
    for question in run.state.open_questions:
        if announcement_of(question) not in run.announced:
            run.announced.add(announcement_of(question))
            await _announce(run, question, NoticeKind.waiting)


async def _announce(run: RunContext, question: Question, kind: NoticeKind) -> None:
    for hear in load_each("on_question"):
        await hear(run.state, question, kind)


async def _wait_for_answer(run: RunContext, question: Question, *, moves: bool) -> None:
    """Wait for the answer, the question's expiry, or the result of a call in doubt, which leaves nothing to ask.

    The timer also serves people: it is the row in the Web UI's timeline that shows the wait. It is started even if the
    answer has arrived: a replay must not differ by what came just before the question. It ends at the expiry of any
    open question.

    If the history is long and the question `moves`, an exception ends the wait: another execution asks it again.
    """
    in_doubt = question.step if question.kind is QuestionKind.resume_unsafe else None

    def is_over() -> bool:
        is_open = any(asked.id == question.id for asked in run.state.open_questions)
        return not is_open or in_doubt in run.inbox.results

    def has_news() -> bool:
        return any(announcement_of(asked) not in run.announced for asked in run.state.open_questions)

    while True:
        ends = [asked.expires_at for asked in run.state.open_questions if asked.expires_at is not None]
        remaining = min(ends) - workflow.now() if ends else SHOWN_WAIT
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: is_over() or has_news() or (moves and run.should_move_wait),
                timeout=max(remaining, AT_ONCE),
                timeout_summary=formatting.waiting_for_people(run.state.open_questions or (question,)),
            )
        if is_over():
            return
        if moves and run.should_move_wait:
            raise StillWaitingError
        before = run.state
        if expire_questions(before, workflow.now()) != before and await _is_held(run):
            run.state = postpone_questions(run.state, workflow.now())
            continue
        run.state = expire_questions(before, workflow.now())
        events.report_closed(run, before)
        run.show_waits()
        await _announce_questions(run)
        if is_over():
            return


async def _is_held(run: RunContext) -> bool:
    """Look once whether the run is held, as its deadline has passed."""
    return await run.execute_locally(Activities.is_held, run.state.run_id, "a deadline has passed: is the run held?")


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
    """A question to a person. One that the runtime forces is asked whatever the model says to it."""
    text = question_in(call)
    if run.state.forced is not None:
        return ToolOutcome(result=await ask_direction(run, run.state.forced, text or "", call))
    if text is None:
        return error_outcome(ToolFault.invalid_arguments, "`question` is required: ask one question, in a sentence")
    if reason := options_error(options := options_in(call)):
        return error_outcome(ToolFault.invalid_arguments, reason)
    answer = await ask_person(run, QuestionKind.question, text, options, about=call)
    attached = await take_attachments(run, answer.attachments)
    lines = [*filter(None, [answer.text]), *(f"[an attachment was not taken: {reason}]" for reason in attached.refused)]
    return ToolOutcome(result="\n".join(lines), media=attached.media)


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
    run.show_waits()
    in_time = False
    while not in_time:
        wait = workflow.wait_condition(
            lambda: step in run.inbox.results or (moves and run.should_move_wait),
            timeout=max(since + timeout - workflow.now(), AT_ONCE),
            timeout_summary=f"result of {tool} · step {step}",
        )
        try:
            await run.cancellation.cancellable(wait)
            in_time = True
        except TimeoutError:
            if not await _is_held(run):
                break
            since = workflow.now()
        except asyncio.CancelledError:
            if step not in run.inbox.results:  # one that has arrived counts
                raise
            break
    run.awaited -= 1
    if in_time and step not in run.inbox.results:
        raise StillWaitingError
    run.show_waits()
    return run.inbox.results.pop(step, None)


@contextmanager
def waiting_on_worker(run: RunContext) -> Iterator[None]:
    """Show that another worker has a call. If the run is cancelled in this time, its end sets the status."""
    run.awaited += 1
    run.show_waits()
    yield
    run.awaited -= 1
    run.show_waits()


async def approve_call(run: RunContext, call: Call) -> Call | ToolOutcome:
    """Return the call with a person's approval of exactly this call, or the outcome of a call that is not made."""
    if outcome := too_large_to_approve(call.tool, call.arguments):
        return outcome
    answer = await _ask_approval(run, call, formatting.format_approval(call.tool, call.arguments, call.verdict))
    if isinstance(answer, ToolOutcome):
        return answer
    if answer.decision is Decision.approve_tool:
        run.state = approve_tool(run.state, call.tool)
    call = next(known for known in run.state.calls if known.tool_use_id == call.tool_use_id)  # perhaps changed
    run.state, call = call_state.record_approval(run.state, call)
    return call


async def accept_redefined(run: RunContext, call: Call, error: ToolError) -> Call | ToolOutcome:
    """Approve a call whose tool its server has redefined. Calls of one batch ask one after the other."""
    definition = error.definition or ""
    async with run.asking:
        run.cancellation.raise_if_cancelled()
        if run.state.accepted.get(call.tool) != definition:
            events.emit_event(run, "agent_run.resume_unsafe", **events.call_figures(call), definition=definition)
            if outcome := too_large_to_approve(call.tool, call.arguments):
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
        timeout = time_to_decide(call.verdict.terms if call.verdict else (), run.route_of(call).approval_timeout)
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

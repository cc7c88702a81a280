"""Results, answers and messages from outside: each is judged as it arrives, and stored in the run's inbox."""

import asyncio
import re
from dataclasses import dataclass
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from perdure.contracts.conversation import SteerRequest
from perdure.contracts.failures import Escalation
from perdure.contracts.policy import PolicyLookup, PolicyVerdict, Verdict
from perdure.contracts.run.events import ToolResultEvent
from perdure.contracts.run.signals import Decision, HumanInput, Question
from perdure.contracts.tool import ChangeCheck, ChangedCall
from perdure.decisions import tool_results
from perdure.decisions.people.approvals import find_call, judge_answer, record_answer
from perdure.decisions.people.signature import SignedQuestion, signature_error
from perdure.decisions.run.outcome import escalate_run
from perdure.decisions.run.state import accept_run_policy, record_steer
from perdure.decisions.text.formatting import truncate
from perdure.decisions.tool_results import ESCALATES, ResultVerdict
from perdure.workflows.activities import Activities
from perdure.workflows.agent_run.context import RunContext
from perdure.workflows.agent_run.events import report_answer, report_closed
from perdure.workflows.agent_run.turn import judge_change
from perdure.workflows.handlers import invalid_input

POLICY_QUESTION = re.compile(r"policy:[0-9a-f]{16}")


def receive_result(run: RunContext, event: ToolResultEvent) -> None:
    """Apply a `tool_result` from outside, judged in the order of A5."""
    result, verdict = event.payload, _judge_result(run, event)
    if verdict is ResultVerdict.accepted:
        run.state = tool_results.record_result(run.state, result)
        run.inbox.put_result(result, tool_results.outcome_of_result(result))
    elif verdict in ESCALATES:
        detail = f"a result came for step {result.step}, tool {truncate(result.tool, 80)}"
        run.state = escalate_run(run.state, Escalation(verdict.value), detail)
        run.cancellation.request(detail)
    else:
        run.ignore("tool_result", tool_results.format_result_notice(verdict, run.state, result))


def judge_update(run: RunContext, event: ToolResultEvent) -> ResultVerdict:
    """Return the verdict on a result that arrives by update, which the run takes only if it is accepted."""
    return tool_results.judge_update_result(run.state, event, _judge_result(run, event))


def _judge_result(run: RunContext, event: ToolResultEvent) -> ResultVerdict:
    is_halted, is_new = run.cancellation.reason is not None, run.inbox.is_new(event.payload)
    return tool_results.judge_result(run.state, event.payload, is_halted=is_halted, is_new=is_new)


def find_answered(run: RunContext, answer: HumanInput, verdict: PolicyVerdict | None = None) -> Question | str:
    """Return the open question that the answer is for, or the reason why the run does not take it."""
    if run.cancellation.reason is not None:
        return "no question is open on this run"
    question = judge_answer(run.state, answer, workflow.now(), verdict)
    if isinstance(question, str):
        return question
    asked = SignedQuestion(run.state.run_id, run.state.execution, question.id, question.call)
    return signature_error(run.state.answer_keys, asked, answer) or question


@dataclass(frozen=True)
class TakenAnswer:
    """The question of an answer that was taken, and the arguments of its call before it, if it changed them."""

    question: Question
    before: dict[str, Any] | None


async def receive_signalled_answer(run: RunContext, answer: HumanInput) -> None:
    """Record an answer by signal, and report whether it was taken: history has no outcome of a signal.

    Raises ApplicationError `InvalidInput` if it is not taken.
    """
    try:
        taken = await receive_answer(run, answer)
    except ApplicationError as error:
        report_answer(run, answer, reason=error.message)
        raise
    report_answer(run, answer, **({} if taken.before is None else {"before": taken.before}))


async def receive_answer(run: RunContext, answer: HumanInput) -> TakenAnswer:
    """Record an answer. Raises ApplicationError `InvalidInput` if it is not taken."""
    question, verdict = find_answered(run, answer), None
    if not isinstance(question, str) and answer.arguments is not None:
        check = await _check_change(run, question, answer.arguments)
        verdict = check.verdict
        # Meanwhile another answer may have come.
        question = _change_error(question, check) or find_answered(run, answer, verdict)
    if isinstance(question, str):
        raise invalid_input(question)
    call = None if answer.arguments is None else find_call(run.state, question)
    before = run.state
    run.state = record_answer(before, question, answer, workflow.now(), verdict)
    report_closed(run, before)
    run.show_waits()
    return TakenAnswer(question, None if call is None else call.arguments)


async def _check_change(run: RunContext, question: Question, arguments: dict[str, Any]) -> ChangeCheck:
    run.inbox.checking += 1
    try:
        changed = ChangedCall(tool=question.tool or "", arguments=arguments)
        summary = f"check the changed arguments of {question.id}"
        check = await run.execute(Activities.check_change, changed, summary)
        call = None if check.error else find_call(run.state, question)
        return check if call is None else ChangeCheck(verdict=await judge_change(run, call, arguments))
    except asyncio.CancelledError:
        return ChangeCheck(error="the run is to stop")
    except ActivityError as error:  # raised in the handler of a signal, it would fail the run
        return ChangeCheck(error=truncate(str(error.cause or error)))
    finally:
        run.inbox.checking -= 1


def _change_error(question: Question, check: ChangeCheck) -> str | None:
    if check.error is not None:
        return f"question {question.id}: the changed arguments cannot be used: {check.error}"
    if check.verdict is not None and check.verdict.verdict is Verdict.deny:
        return f"question {question.id}: the policy denies the changed call: {check.verdict.reason}"
    return None


def accepted_policy(run: RunContext, answer: HumanInput) -> str:
    """Return the hash of the policy that a person accepts for this run. Raises ApplicationError `InvalidInput`.

    The body is an answer to the question `policy:HASH`, so that it is signed as any other answer.
    """
    name = answer.question_id or ""
    if answer.decision is not Decision.approve or not POLICY_QUESTION.fullmatch(name):
        raise invalid_input('expected {"question_id": "policy:HASH", "decision": "approve"}')
    asked = SignedQuestion(run.state.run_id, run.state.execution, name)
    if reason := signature_error(run.state.answer_keys, asked, answer):
        raise invalid_input(reason)
    return name.partition(":")[2]


async def take_policy(run: RunContext, answer: HumanInput) -> str:
    """Follow the policy that a person accepts, and return its hash. Raises ApplicationError `InvalidInput`.

    One that neither the worker nor the run's store has is rejected: without it, no further call could be judged.
    """
    ref = accepted_policy(run, answer)
    if (reason := await _policy_error(run, ref)) is not None:
        raise invalid_input(reason)
    run.state = accept_run_policy(run.state, ref)
    return ref


async def _policy_error(run: RunContext, ref: str) -> str | None:
    run.inbox.checking += 1
    try:
        lookup = PolicyLookup(policy=ref)
        found = await run.execute(Activities.find_policy, lookup, f"find the policy {ref}")
    except asyncio.CancelledError:
        return "the run is to stop"
    except ActivityError as error:
        return f"the policy {ref} cannot be read: {truncate(str(error.cause or error))}"
    finally:
        run.inbox.checking -= 1
    if found.found:
        return None
    known = [f"the worker has {found.current or 'none'}", f"the run follows {run.state.policy or 'none'}"]
    return f"there is no policy {ref}: {', '.join(known)}; restart the worker with the policy.toml that is accepted"


def receive_message(run: RunContext, message: SteerRequest) -> None:
    """Store a message of the user for the next model call, once per request id."""
    if message.request_id in run.state.steered:
        run.ignore("steer", f"{truncate(message.request_id, 80)} was said before")
    elif not run.inbox.is_open:
        _reject_message(run, message)
    else:
        run.inbox.messages.append(message)
        run.state = record_steer(run.state, message.request_id)


def close_inbox(run: RunContext) -> None:
    """Report the messages that came too late for a model call: no message is lost silently."""
    run.inbox.is_open = False
    for message in run.inbox.messages:
        _reject_message(run, message)


def _reject_message(run: RunContext, message: SteerRequest) -> None:
    request_id = truncate(message.request_id, 80)
    run.ignore("steer", f"{request_id}: the run ended before a model call could take it in")

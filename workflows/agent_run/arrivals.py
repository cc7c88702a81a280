"""Results, answers and messages from outside: each is judged as it arrives, and stored in the run's inbox."""

from temporalio import workflow

from contracts.conversation import SteerRequest
from contracts.failures import Escalation
from contracts.run.events import ToolResultEvent
from contracts.run.signals import HumanInput
from decisions.run import tool_results
from decisions.run.outcome import escalate_run
from decisions.run.question import answer_rejection
from decisions.run.state import record_steer
from decisions.run.tool_results import ESCALATES, ResultVerdict
from decisions.signature import SignedQuestion, signature_error
from decisions.text.formatting import truncate
from workflows.agent_run.context import RunContext


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


def answer_error(run: RunContext, answer: HumanInput) -> str | None:
    """Return the reason why the answer does not fit the open question, if it does not."""
    is_open = run.inbox.answer is None and run.cancellation.reason is None
    question = run.state.question if is_open else None
    reason = answer_rejection(question, answer, expired=run.state.expired, now=workflow.now())
    if reason is not None or question is None:
        return reason
    asked = SignedQuestion(run.state.run_id, run.state.execution, question.id, question.call)
    return signature_error(run.state.answer_keys, asked, answer)


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

"""Approvals: a person decides whether a call is made."""

from contracts.failures import ToolFault
from contracts.run.question import QuestionKind
from contracts.run.signals import Decision, HumanInput
from contracts.run.state import Call
from contracts.tool import ToolError, ToolOutcome, error_outcome
from decisions.run import call_state
from decisions.run.state import accept_redefinition, approve_tool
from decisions.text import formatting
from workflows.agent_run import events
from workflows.agent_run.context import RunContext
from workflows.agent_run.waiting import ask_person


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

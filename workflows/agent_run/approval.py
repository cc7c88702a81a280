"""Approvals: a person decides whether a call is made."""

from contracts.failures import ToolFault
from contracts.run.question import QuestionKind
from contracts.run.signals import Decision, HumanInput
from contracts.run.state import Call
from contracts.tool import ToolError, ToolOutcome, failed
from decisions.run import call_state
from decisions.text import formatting
from workflows.agent_run import events
from workflows.agent_run.context import LiveRun
from workflows.agent_run.waiting import ask


async def approve_call(run: LiveRun, call: Call) -> Call | ToolOutcome:
    """Return the call with a person's approval of exactly this call, or the outcome of a call that is not made."""
    if outcome := formatting.too_large_to_approve(call.tool, call.arguments):
        return outcome
    answer = await _decision(run, call, formatting.format_approval(call.tool, call.arguments))
    if isinstance(answer, ToolOutcome):
        return answer
    if answer.decision is Decision.approve_tool:
        run.update(approved_tools=(*run.state.approved_tools, call.tool))
    run.state, call = call_state.approved(run.state, call)
    return call


async def accept_redefined(run: LiveRun, call: Call, error: ToolError) -> Call | ToolOutcome:
    """Approve a call whose tool its server has redefined. Calls of one batch ask one after the other."""
    definition = error.definition or ""
    async with run.asking:
        run.cancellation.check()
        if run.state.accepted.get(call.tool) != definition:
            events.emit(run, "agent_run.resume_unsafe", **events.call_figures(call), definition=definition)
            if outcome := formatting.too_large_to_approve(call.tool, call.arguments):
                return outcome
            approval = formatting.format_approval(call.tool, call.arguments)
            answer = await _decision(run, call, f"{error.message}\n\nMake this call all the same?\n{approval}")
            if isinstance(answer, ToolOutcome):
                return answer
            if answer.decision is Decision.approve_tool:
                run.update(accepted={**run.state.accepted, call.tool: definition})
    run.state, call = call_state.accepted(run.state, call, definition)
    return call


async def _decision(run: LiveRun, call: Call, text: str) -> HumanInput | ToolOutcome:
    """Return a person's approval of the call, or the outcome of a call that is not made."""
    answer = await ask(run, QuestionKind.approval, text, about=call)
    if answer.decision is None:
        timeout = run.route(call).approval_timeout
        return _denied(run, call, f"the approval expired: no person decided within {timeout}")
    if answer.decision is Decision.deny:
        return _denied(run, call, f"a person denied this call: {answer.text or 'no reason given'}")
    return answer


def _denied(run: LiveRun, call: Call, reason: str) -> ToolOutcome:
    """Return the outcome; a call that was in flight when the run's origin ended may have happened."""
    if call.tool_use_id in run.state.doubtful:
        return failed(ToolFault.in_doubt, f"{reason}; but it was in flight in an earlier run, and may have happened")
    return failed(ToolFault.denied, reason)

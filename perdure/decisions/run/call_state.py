"""The life of a call, from the request to its one outcome. Every tool use gets exactly one."""

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any

from pydantic_core import from_json, to_json

from perdure.contracts.failures import Escalation, ToolFault
from perdure.contracts.people import Work
from perdure.contracts.policy import PolicyContext, PolicyVerdict, Verdict
from perdure.contracts.run.events import DryCall
from perdure.contracts.run.state import Call, Pending, RunState
from perdure.contracts.tool import Effect, ToolError, ToolKind, ToolOutcome, Unfinished, error_outcome
from perdure.decisions.ids import call_digest
from perdure.decisions.run.journal import add_artifacts, reframe_journal, run_journal_tool
from perdure.decisions.run.outcome import check_of, complete_run, escalate_run, typed_result
from perdure.decisions.run.transcript import PAGE_BYTES
from perdure.decisions.tools import DELEGATE, ESCALATE, FINISH, GO_ON, JOURNAL_TOOLS, REFRAME, UNGOVERNED

OUTSIDE = (ToolKind.signal, ToolKind.queue)
MAX_DRY_CALLS = 512 * 1024  # bytes of the calls that a dry run lists
SKIPPED = "not made, as this is a dry run: it would have been made now; go on as if it had succeeded"
IN_DOUBT = ToolOutcome.model_construct(
    status="error",
    error=ToolError.model_construct(kind=str(ToolFault.in_doubt), message="interrupted; may have happened"),
)


def issue_calls(state: RunState, batch: tuple[Call, ...], now: datetime) -> RunState:
    """Mark the calls as pending, before anything is dispatched (A3). A call that waits for a person may be already."""
    known = {pending.step for pending in state.pending}
    pending = tuple(
        Pending(step=call.step, tool=call.tool, since=now, outside=call.kind in OUTSIDE)
        for call in batch
        if call.step is not None and call.step not in known
    )
    return state.evolve(pending=state.pending + pending)


def reissue_call(state: RunState, step: int, now: datetime) -> RunState:
    """Count one more attempt of the same step."""
    pending = tuple(
        p.evolve(attempt=p.attempt + 1, since=now, handed_out=None) if p.step == step else p for p in state.pending
    )
    return state.evolve(pending=pending)


def mark_handed_out(state: RunState, step: int, now: datetime) -> RunState:
    """Record that the request was sent; its result arrives as a signal."""
    pending = tuple(p.evolve(handed_out=now) if p.step == step else p for p in state.pending)
    return state.evolve(pending=pending)


def handed_out_at(state: RunState, step: int) -> datetime | None:
    return next((pending.handed_out for pending in state.pending if pending.step == step), None)


def in_flight(state: RunState) -> list[str]:
    """Return the tool uses that may already have had their effect, since before this execution began."""
    out = {pending.step for pending in state.pending if pending.handed_out is not None}
    waiting = [call for call in state.calls if call.step in out and call.effect is not Effect.read]
    return [*state.doubtful, *(call.tool_use_id for call in waiting if call.tool_use_id not in state.doubtful)]


def apply_verdict(call: Call, verdict: PolicyVerdict | None) -> Call:
    """Return the call with the policy's verdict. A denied one is settled."""
    if verdict is None:
        return call
    judged = call.evolve(verdict=verdict)
    if verdict.verdict is Verdict.deny and call.outcome is None:
        rule = ": ".join(text for text in (verdict.rule, verdict.reason) if text)
        judged = judged.evolve(
            outcome=error_outcome(ToolFault.denied, f"not made: the project's policy denies it ({rule})")
        )
    return judged


def calls_without_verdict(state: RunState) -> tuple[Call, ...]:
    """Return the open calls that a policy must decide about. One in doubt may have been made, so it is looked up."""
    return tuple(
        call
        for call in state.calls
        if state.policy and call.verdict is None and call.outcome is None
        if call.tool not in UNGOVERNED and call.tool_use_id not in state.doubtful
    )


def record_verdict(state: RunState, call: Call, verdict: PolicyVerdict | None) -> RunState:
    judged = apply_verdict(call, verdict)
    state, _ = replace_call(state, current_call(state, call).evolve(verdict=judged.verdict))
    return state if judged.outcome is None else settle_call(state, call, judged.outcome)


def policy_context(state: RunState) -> PolicyContext | None:
    """Return the facts for rules that the conversation does not hold, if the run began under a policy, or is dry."""
    if not (state.policy or state.dry_run):
        return None
    return PolicyContext(
        policy=state.policy,
        caller=state.sender,
        work=state.work or (Work(root=state.key_id) if state.key_id else None),
        runs=tuple(run.run_id for run in state.inherited),
        conversation=(state.conversation_id or "") if state.is_turn and state.work else "",
        dry_run=state.dry_run,
    )


def record_approval(state: RunState, call: Call) -> tuple[RunState, Call]:
    """Record a person's approval of this call with its current arguments."""
    return replace_call(state, current_call(state, call).evolve(approval=call_digest(call.tool, call.arguments)))


def edit_call(
    state: RunState, call: Call, arguments: dict[str, Any], by: str, verdict: PolicyVerdict | None
) -> tuple[RunState, Call]:
    """Replace the call's arguments by those that a person wants; `verdict` is the policy's on the changed call."""
    return replace_call(
        state,
        current_call(state, call).evolve(arguments=arguments, changed_by=by, plan="", verdict=verdict or call.verdict),
    )


def changes_something(call: Call) -> bool:
    """Return whether the call may have an effect outside of the run, by the declaration of its tool."""
    return call.effect is not Effect.read or call.tool == DELEGATE


def skip_call(state: RunState, call: Call) -> tuple[RunState, ToolOutcome]:
    """List a call that a dry run does not make, and return the stand-in for its result."""
    digest = call_digest(call.tool, call.arguments)
    listed = DryCall(step=call.step or 0, tool=call.tool, call=digest, effect=call.effect, arguments=call.arguments)
    dry_calls = (*state.dry_calls, listed)
    if len(to_json(dry_calls)) > MAX_DRY_CALLS:
        return state, error_outcome(ToolFault.denied, "not made and not listed: the list of this dry run is full")
    route = next((route for route in state.tools if route.name == call.tool), None)
    example = {"example": from_json(route.example)} if route and route.example else {}
    return state.evolve(dry_calls=dry_calls), ToolOutcome(result={"dry_run": SKIPPED, **example})


def accept_definition(state: RunState, call: Call, definition: str) -> tuple[RunState, Call]:
    """Record that a person wants this call made although its tool's definition has changed."""
    return replace_call(
        state, current_call(state, call).evolve(approval=call_digest(call.tool, call.arguments), accepts=definition)
    )


def repeat_call(state: RunState, call: Call) -> tuple[RunState, Call]:
    """Record a person's decision "run again": the call gets a new key."""
    return replace_call(state, current_call(state, call).evolve(generation=call.generation + 1, unfinished=None))


def record_unfinished(state: RunState, call: Call, left: Unfinished) -> tuple[RunState, Call]:
    """Record what is known of a call that its server has not finished."""
    return replace_call(state, current_call(state, call).evolve(unfinished=left))


def current_call(state: RunState, call: Call) -> Call:
    """Return the call as the turn has it now."""
    now = next((one for one in state.calls if one.tool_use_id == call.tool_use_id), None)
    if now is None:
        raise AssertionError(f"{call.tool} {call.tool_use_id} is not a call of this turn")
    return now


def replace_call(state: RunState, call: Call) -> tuple[RunState, Call]:
    """Replace the call of the same id by this one. Return the state and the call."""
    return state.evolve(calls=tuple(call if one.tool_use_id == call.tool_use_id else one for one in state.calls)), call


def settle_call(state: RunState, call: Call, outcome: ToolOutcome) -> RunState:
    """Give the call its outcome; it is no longer pending."""
    artifacts = state.artifacts + tuple(a for a in outcome.artifacts if a not in state.artifacts)
    return state.evolve(
        calls=replace_call(state, current_call(state, call).evolve(outcome=outcome))[0].calls,
        artifacts=artifacts,
        pending=tuple(p for p in state.pending if p.step != call.step),
        journal=add_artifacts(state.journal, outcome.artifacts),
        active_ms=state.active_ms + outcome.duration_ms,
    )


def apply_state_tool(state: RunState, call: Call) -> tuple[RunState, ToolOutcome]:
    """Apply a call of one of `STATE_TOOLS`. Return the state without the outcome, and the outcome."""
    if call.tool in JOURNAL_TOOLS:
        journal, outcome = run_journal_tool(state.journal, call.tool, call.arguments)
        return state.evolve(journal=journal), outcome
    texts = {key: value for key, value in call.arguments.items() if isinstance(value, str)}
    if state.ending is not None:
        return state, error_outcome(ToolFault.interrupted, "the run has ended")
    if call.tool == FINISH:
        return _finish_run(state, call, texts.get("outcome", ""))
    if call.tool == ESCALATE:
        state = escalate_run(state, Escalation.asked, texts.get("reason") or "the agent gave no reason")
        return state, ToolOutcome(result="escalated")
    if call.tool == REFRAME:
        return _reframe_run(state, texts.get("frame", ""))
    raise AssertionError(f"{call.tool} is not a control tool")


_AFTER_FAULT = f"Read its error; then mend the call, or call `{FINISH}` again alone."
_WITH_OUTCOME = (
    f"Call `{FINISH}` again with it: say what was achieved. Or write your answer as text without a tool call."
)


def _finish_run(state: RunState, call: Call, outcome: str) -> tuple[RunState, ToolOutcome]:
    sibling = next((c for c in state.calls if c.outcome is not None and c.outcome.status == "error"), None)
    if sibling is not None:
        reason = f"not finished: {sibling.tool} failed in this turn. {_AFTER_FAULT}"
        return state, error_outcome(ToolFault.not_finished, reason)
    if not outcome.strip():
        return state, error_outcome(ToolFault.invalid_arguments, f"`outcome` is required. {_WITH_OUTCOME}")
    artifacts, result = artifacts_in(call.arguments), typed_result(state, call)
    state = complete_run(state, outcome.strip(), artifacts, result=result)
    return state, ToolOutcome(result="to be checked" if check_of(state) else "finished")


def artifacts_in(arguments: dict[str, Any]) -> tuple[str, ...]:
    paths = arguments.get("artifacts")
    return tuple(a for a in paths if isinstance(a, str)) if isinstance(paths, list) else ()


def _reframe_run(state: RunState, frame: str) -> tuple[RunState, ToolOutcome]:
    count, limit = state.reframes + 1, state.limits.max_reframes
    if count > limit:
        state = escalate_run(state, Escalation.reframe_budget, f"all {limit} reframes are used up")
        return state, error_outcome(ToolFault.budget, f"reframes used up ({limit})")
    state = state.evolve(reframes=count, journal=reframe_journal(state.journal, frame))
    return state, ToolOutcome(result=f"reframed ({count} of {limit}). {GO_ON} {_reframes_left(limit - count)}")


def _reframes_left(remaining: int) -> str:
    if remaining:
        return f"Reframes left: {remaining}."
    return f"No {REFRAME} is left: another one escalates the run, which ends it."


def settle_interrupted(state: RunState, in_flight: Collection[str]) -> RunState:
    """Settle all open calls: every tool use gets a result, even if the run ends before the call.

    `in_flight` names the tool uses that may have had their effect; the record must not claim that they had none.
    """
    interrupted = error_outcome(ToolFault.interrupted, "the run ended before this call had a result")
    return _settle_open_calls(state, lambda call: IN_DOUBT if call.tool_use_id in in_flight else interrupted)


def settle_unmade(state: RunState, reason: str) -> RunState:
    """Settle the requested calls as not made."""
    return _settle_open_calls(state, lambda _: error_outcome(ToolFault.interrupted, reason))


def _settle_open_calls(state: RunState, outcome_of: Callable[[Call], ToolOutcome]) -> RunState:
    for call in state.calls:
        if call.outcome is None:
            state = settle_call(state, call, outcome_of(call))
    return state


def page_calls(calls: tuple[Call, ...], start: int) -> tuple[Call, ...]:
    """Return the calls from `start` on that fit a query's answer with the rest of the state: at least one."""
    end, size = start, 0
    while end < len(calls) and (end == start or size < PAGE_BYTES):
        size += len(to_json(calls[end]))
        end += 1
    return calls[start:end]

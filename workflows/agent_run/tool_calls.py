"""The tool calls of a turn. Each gets exactly one outcome, from a handler of the table at the end."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from pydantic_core import from_json, to_json
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, ServerError, TimeoutType
from temporalio.exceptions import TimeoutError as TimedOut

from perdure.contracts.bounds import Backoff
from perdure.contracts.failures import ToolFault
from perdure.contracts.models import Undecodable
from perdure.contracts.run.events import ToolRequestPayload
from perdure.contracts.run.signals import Decision, QuestionKind
from perdure.contracts.run.state import Call
from perdure.contracts.tool import (
    MAX_ERROR,
    RETRY_DELAYS,
    Effect,
    LargeResult,
    QueueRoute,
    ToolKind,
    ToolOutcome,
    error_outcome,
)
from perdure.decisions.ids import request_key, result_key
from perdure.decisions.people.approvals import open_turn_questions, take_planned_call, take_planned_calls
from perdure.decisions.run import call_state
from perdure.decisions.run.call_state import IN_DOUBT
from perdure.decisions.run.next_calls import needs_approval
from perdure.decisions.run.recovery import MAX_LOST, CallRecovery, FailureKind, recover_call
from perdure.decisions.run.resume import step_key_id
from perdure.decisions.run.state import add_trace_lines, mark_interrupted
from perdure.decisions.text import formatting
from perdure.decisions.tool_requests import request_event
from perdure.decisions.tool_results import INLINE_BYTES, reject_unreadable
from perdure.decisions.tools import (
    ASK_HUMAN,
    STATE_TOOLS,
)
from perdure.registry import feature_tools, load
from perdure.workflows.activities import Activities
from perdure.workflows.agent_run import events
from perdure.workflows.agent_run.context import RunContext, call_request
from perdure.workflows.agent_run.unfinished_calls import follow_call
from perdure.workflows.agent_run.waiting import (
    accept_redefined,
    approve_call,
    ask_person,
    leave_if_idle,
    run_ask_human,
    wait_for_result,
    waiting_on_worker,
)
from perdure.workflows.execution import KEEPING, classify_failure, queue_call_policy, to_tool_outcome, tool_call_policy


async def run_queue_call(run: RunContext, call: Call) -> ToolOutcome | None:
    """An activity of another worker, on its task queue."""
    route = run.route_of(call)
    if route.queue is None:
        raise AssertionError(f"{route.name} has no queue")
    if call.effect is Effect.once and call.tool_use_id in run.effects:
        return None  # begun by the run that this one resumes
    run.cancellation.raise_if_cancelled()
    run.mark_in_flight(call)
    began = workflow.now()
    activity: Any = route.queue.activity
    policy = queue_call_policy(route, route.queue, call.effect)
    with waiting_on_worker(run):
        try:
            result = await run.execute(activity, _tool_request(run, call), formatting.call_summary(call), policy)
        except ActivityError as error:
            outcome = _to_outcome(run, call, route.queue, error)
        else:
            run.clear_in_flight(call)
            outcome = await _parse_result(run, call, result)
    if outcome is not None:
        trace_call(run, call, outcome, workflow.now() - began)
    return outcome


def trace_call(run: RunContext, call: Call, outcome: ToolOutcome, took: timedelta = timedelta()) -> None:
    """Add the trace line that `call_tool` writes for other calls; the run's next activity writes this one."""
    key = result_key(run.state.key_id or run.state.run_id, call.step or 0, call.generation)
    figures = formatting.call_trace(key, call.step or 0, call.tool, call.arguments, outcome)
    ms = round(took / timedelta(milliseconds=1))
    line = {**figures, "at": workflow.now().isoformat(timespec="milliseconds"), "ms": ms}
    run.state = add_trace_lines(run.state, [line])


def _tool_request(run: RunContext, call: Call) -> dict[str, Any]:
    step = call.step or 0
    key = request_key(step_key_id(run.state, step), step, call.generation)
    payload = ToolRequestPayload(
        run_id=run.state.run_id,
        step=step,
        tool=call.tool,
        tool_payload=call.arguments,
        requested_at=workflow.now(),
    )
    return request_event(payload, key).model_dump(mode="json")


def _to_outcome(run: RunContext, call: Call, queue: QueueRoute, error: ActivityError) -> ToolOutcome | None:
    """Return the error for the model, unless only a person can settle the call. Raises CancelledError."""
    end, cause = classify_failure(error), error.cause
    was_taken = error.started_event_id != 0
    if end is FailureKind.cancelled:
        if call.effect is Effect.once and not was_taken:
            run.clear_in_flight(call)
        raise asyncio.CancelledError from None
    if isinstance(cause, TimedOut) and cause.type is TimeoutType.SCHEDULE_TO_START:
        run.clear_in_flight(call)
        return _unreachable_outcome(call, queue)
    if isinstance(cause, ServerError):  # it rejected the activity's result
        run.clear_in_flight(call)
        return error_outcome(ToolFault.too_large, f"the call was made, but its result cannot be had: {cause.message}")
    if recover_call(end, call.effect, lost=MAX_LOST) is CallRecovery.ask:  # that worker has no ledger to look up
        return None
    run.clear_in_flight(call)
    return _with_known_kind(to_tool_outcome(error, call.effect), cause)


def _unreachable_outcome(call: Call, queue: QueueRoute) -> ToolOutcome:
    earlier = "; an earlier attempt of it may have happened" if call.effect is Effect.keyed else ""
    reason = f"no worker took the call from task queue {queue.task_queue!r} in time{earlier}"
    return error_outcome(ToolFault.unreachable, reason, retryable=True)


def _with_known_kind(outcome: ToolOutcome, cause: BaseException | None) -> ToolOutcome:
    """Replace an error kind that the model does not know: another worker's types are names of exceptions."""
    error = outcome.error
    if error is None or not isinstance(cause, ApplicationError):
        return outcome
    kind = error.kind if error.kind in list(ToolFault) else ToolFault.tool_error
    return outcome.evolve(error=error.evolve(kind=kind, message=error.message[:MAX_ERROR]))


async def _parse_result(run: RunContext, call: Call, result: Any) -> ToolOutcome:
    """Return the result as the run can store it; a large one becomes an artifact."""
    if isinstance(result, Undecodable):
        return error_outcome(
            ToolFault.tool_error, f"the call was made, but what it returned is no JSON: {result.reason}"
        )
    try:
        data = to_json(result)
        outcome = reject_unreadable(ToolOutcome(result=from_json(data)))
    except ValueError as error:
        return error_outcome(ToolFault.tool_error, f"the call was made, but what it returned is no JSON: {error}")
    if len(data) <= INLINE_BYTES or outcome.error is not None:
        return outcome
    return await _store_result(run, call, outcome)


async def _store_result(run: RunContext, call: Call, outcome: ToolOutcome) -> ToolOutcome:
    """Store a large result. The activity queries the run for it: as an input it would enter history a second time."""
    large = LargeResult(step=call.step or 0, tool=call.tool)
    with run.offering_result(large.step, outcome):
        try:
            return await workflow.execute_activity_method(
                Activities.keep_result, large, summary=f"keep the result of {call.tool} · step {call.step}", **KEEPING
            )
        except ActivityError as error:
            reason = formatting.truncate(str(error.cause), 200)
            return error_outcome(ToolFault.too_large, f"the call was made, but its result could not be kept: {reason}")


CallHandler = Callable[[RunContext, Call], Awaitable[ToolOutcome | None]]

# A `once` call that ends so has not begun, as its activity has one attempt.
NOT_BEGUN = (FailureKind.cancelled, FailureKind.not_begun)
CLAIM_PAUSES = Backoff(1.0, 60.0)  # while the ledger accepts no claim


async def make_calls(run: RunContext, batch: tuple[Call, ...]) -> None:
    """Make the calls of a batch concurrently. All of them have ended when this returns or raises."""
    run.state = call_state.issue_calls(run.state, batch, workflow.now())
    if run.state.planned is not None:
        before = run.state
        run.state, batch = take_planned_calls(run.state, batch, workflow.now())
        events.report_planned(run, before)
    if not run.state.dry_run:
        run.state = open_turn_questions(run.state, workflow.now())
    if len(run.state.open_questions) > 1:
        run.show_waits()
    run.publish_details()
    run.at_work = len(batch)
    ends = await asyncio.gather(*(_make_call(run, call) for call in batch), return_exceptions=True)
    run.at_work = 0
    for end in ends:
        if isinstance(end, BaseException):
            raise end


async def _make_call(run: RunContext, call: Call) -> None:
    admitted = await _admit_call(run, call)
    if isinstance(admitted, ToolOutcome):
        outcome = admitted
    else:
        handler = next(handler for _, is_about, handler in HANDLERS if is_about(admitted))
        outcome = await _run_until_settled(run, admitted, handler)
    if call.tool not in STATE_TOOLS:  # which do no work
        if run.state.policy and outcome.at is None:
            outcome = outcome.evolve(at=workflow.now())
        events.count_call(call, outcome)
    run.state = call_state.settle_call(run.state, call, outcome)
    run.at_work -= 1
    if run.resting:
        await leave_if_idle(run)


async def _admit_call(run: RunContext, call: Call) -> Call | ToolOutcome:
    """Return the call as it is to be made, or the outcome of a call that is not made."""
    if call_state.changes_something(call):  # the one place that every such call passes
        if run.state.dry_run:
            run.state, outcome = call_state.skip_call(run.state, call)
            trace_call(run, call, outcome)
            return outcome
        run.state, call = take_planned_call(run.state, call, workflow.now())
    if not needs_approval(run.state, call):
        return call
    with run.inbox.pausing_results(call.step or 0):
        return await approve_call(run, call)


async def _run_until_settled(run: RunContext, call: Call, handler: CallHandler) -> ToolOutcome:
    """Make a call. One that may have happened is repeated only if a person says so (B9)."""
    while True:
        outcome = await _begin_or_follow(run, call, handler)
        if isinstance(outcome, Call):
            call = outcome
        elif outcome is None:
            outcome = await _settle_doubt(run, call)
            if outcome is not None:
                return outcome
            run.state, call = call_state.repeat_call(run.state, call)
        elif outcome.error is not None and outcome.error.definition is not None:
            accepted = await accept_redefined(run, call, outcome.error)
            if isinstance(accepted, ToolOutcome):
                return accepted
            call = accepted
        else:
            return outcome
        run.state = call_state.reissue_call(run.state, call.step or 0, workflow.now())


async def _begin_or_follow(run: RunContext, call: Call, handler: CallHandler) -> ToolOutcome | Call | None:
    """Make a call, and follow it if its server does not finish it at once. Return the call if it is to be made again.

    A call that was followed before, as by the run that this one resumes, is not begun a second time.
    """
    left = call.unfinished
    if left is None or not (left.task or left.inputs):
        outcome = await handler(run, call)
        if outcome is None or outcome.unfinished is None:
            return outcome
        left = outcome.unfinished
    return await follow_call(run, call, left)


async def run_tool_call(run: RunContext, call: Call) -> ToolOutcome | None:  # noqa: C901 - a case for each recovery
    """The activity `call_tool`, again if `recover_call` says so."""
    lost, pauses = 0, iter(CLAIM_PAUSES)
    while True:
        # Else a cancel between two attempts would leave in doubt a call that is not in flight.
        run.cancellation.raise_if_cancelled()
        run.mark_in_flight(call)
        summary = formatting.call_summary(call, was_lost=lost > 0)
        policy = tool_call_policy(run.route_of(call), call.effect)
        try:
            outcome = await run.execute(Activities.call_tool, call_request(run, call), summary, policy)
        except ActivityError as failure:
            error = failure
        else:
            run.clear_in_flight(call)
            if outcome.interrupted:
                run.state = mark_interrupted(run.state)
            return outcome
        end = classify_failure(error)
        if end in NOT_BEGUN and call.effect is Effect.once and not (lost or _may_have_begun(run, call)):
            run.clear_in_flight(call)
        match recover_call(end, call.effect, lost):
            case CallRecovery.stop:
                raise asyncio.CancelledError
            case CallRecovery.wait:
                reason = f"{call.tool} · step {call.step}: {formatting.truncate(str(error.cause), 80)}"
                await run.cancellation.cancellable(workflow.sleep(next(pauses), summary=reason))
            case CallRecovery.look_up:
                lost += 1
                run.state = call_state.reissue_call(mark_interrupted(run.state), call.step or 0, workflow.now())
            case CallRecovery.ask:
                return None
            case CallRecovery.fail:
                run.clear_in_flight(call)
                return to_tool_outcome(error, call.effect)


def _may_have_begun(run: RunContext, call: Call) -> bool:
    """Return whether the call has begun before this run, or before a person said "run again"."""
    return call.tool_use_id in run.state.doubtful or call.generation > 1


async def _settle_doubt(run: RunContext, call: Call) -> ToolOutcome | None:
    """Ask a person about a call that may have happened. Return its outcome, unless it is to be run again."""
    left = call_state.current_call(run.state, call).unfinished
    text = formatting.format_doubt(call.tool, call.arguments, left.task if left else None)
    events.emit_event(run, "agent_run.resume_unsafe", **events.call_figures(call))
    run.state = mark_interrupted(run.state)
    answer = await ask_person(run, QuestionKind.resume_unsafe, text, about=call)
    run.clear_in_flight(call)
    if call.step in run.inbox.results:
        return ToolOutcome(result="handed out")  # as its result has come
    if answer.decision is Decision.run_again:
        return None
    if answer.decision is Decision.use_result:
        outcome = ToolOutcome(result=answer.text)
        if call.kind is ToolKind.signal:
            run.inbox.results[call.step or 0] = outcome
        return outcome
    return IN_DOUBT


async def run_signal_call(run: RunContext, call: Call) -> ToolOutcome:
    """A request by `run_tool_call`, then a signal with the result. An error that may pass is retried (A11)."""
    timeout, step = run.route_of(call).timeout, call.step or 0
    for attempt, delay in enumerate((*RETRY_DELAYS, None), start=1):
        if call_state.handed_out_at(run.state, step) is None:  # else an earlier execution has sent it
            handed_out = await _run_until_settled(run, call, run_tool_call)
            if handed_out.status == "error":
                return handed_out
            run.state = call_state.mark_handed_out(run.state, step, workflow.now())
        run.mark_in_flight(call)
        # Another execution could not tell a later attempt's result from one that was judged before.
        outcome = await wait_for_result(run, step, call.tool, timeout, moves=attempt == 1 and run.fits_input())
        run.clear_in_flight(call)
        if outcome is None:
            happened = "" if call.effect is Effect.read else "; it was handed out, and may have happened"
            return error_outcome(ToolFault.timeout, f"no result came within {timeout}{happened}")
        again = outcome.error is not None and outcome.error.retryable and call.effect is not Effect.once
        if not again or delay is None:
            return outcome
        events.emit_event(
            run, "agent.tool.retry", **events.call_figures(call), attempt=attempt + 1, delay_seconds=delay
        )
        with run.inbox.pausing_results(step):
            sleep = workflow.sleep(delay, summary=f"retry {attempt} of {call.tool} · step {step}")
            await run.cancellation.cancellable(sleep)
        run.state = call_state.reissue_call(run.state, step, workflow.now())
    raise AssertionError("the last attempt returns")


async def run_state_tool(run: RunContext, call: Call) -> ToolOutcome:
    """A decision about the run's own state."""
    run.state, outcome = call_state.apply_state_tool(run.state, call)
    return outcome


async def run_feature_tool(run: RunContext, call: Call) -> ToolOutcome:
    """The `handler` in its feature's row."""
    outcome: ToolOutcome = await load(feature_tools()[call.tool].handler)(run, call)
    return outcome


# How a call is made: of these conditions, in this order, the first that holds decides. A handler returns the outcome,
# or None if only a person can tell. A replay answers some built-in tools as another kind. docs/one-call.md has the same
# table.
HANDLERS: tuple[tuple[str, Callable[[Call], bool], CallHandler], ...] = (
    ("`finish`, `escalate`, `reframe`, the run journal", lambda call: call.tool in STATE_TOOLS, run_state_tool),
    ("`ask_human`", lambda call: call.kind is ToolKind.builtin and call.tool == ASK_HUMAN, run_ask_human),
    ("a feature's tool", lambda call: call.kind is ToolKind.builtin and call.tool in feature_tools(), run_feature_tool),
    ("kind `signal`", lambda call: call.kind is ToolKind.signal, run_signal_call),
    ("kind `queue`", lambda call: call.kind is ToolKind.queue, run_queue_call),
    ("any other kind", lambda _: True, run_tool_call),
)

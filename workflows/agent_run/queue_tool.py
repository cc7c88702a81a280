"""The tool kind `queue`: an activity of another worker, in any language, takes the request and returns the result.

That worker has no ledger: only a person can settle a `once` call that was lost or timed out.
"""

import asyncio
from datetime import timedelta
from typing import Any

from pydantic_core import from_json, to_json
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, ServerError, TimeoutType
from temporalio.exceptions import TimeoutError as TimedOut

from activities.tools.outcome import INLINE_BYTES, reject_unreadable
from activities.tools.queue import QueueResults
from contracts.failures import ToolFault
from contracts.models import Undecodable
from contracts.run.events import ToolRequestPayload
from contracts.run.state import Call
from contracts.tool import MAX_ERROR, Effect, LargeResult, QueueRoute, ToolOutcome, error_outcome
from decisions.ids import request_key, result_key
from decisions.run.recovery import MAX_LOST, CallRecovery, FailureKind, recover_call
from decisions.run.resume import step_key_id
from decisions.run.state import add_trace_lines
from decisions.text import formatting
from decisions.tool_requests import request_event
from workflows.agent_run.context import RunContext
from workflows.agent_run.waiting import waiting_on_worker
from workflows.failures import classify_failure, to_tool_outcome
from workflows.policies import KEEPING, queue_call_policy


async def run_queue_call(run: RunContext, call: Call) -> ToolOutcome | None:
    """Return the call's outcome, unless only a person can settle it."""
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
    changes = {"kind": kind, "message": error.message[:MAX_ERROR]}
    return outcome.model_copy(update={"error": error.model_copy(update=changes)})


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
                QueueResults.keep_result, large, summary=f"keep the result of {call.tool} · step {call.step}", **KEEPING
            )
        except ActivityError as error:
            reason = formatting.truncate(str(error.cause), 200)
            return error_outcome(ToolFault.too_large, f"the call was made, but its result could not be kept: {reason}")

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

from activities.tools.call import INLINE_BYTES, sound
from activities.tools.queue import QueueResults
from contracts.failures import ToolFault
from contracts.models import Undecodable
from contracts.run.events import ToolRequestPayload
from contracts.run.state import Call
from contracts.tool import MOST_ERROR, Effect, LargeResult, QueueRoute, ToolOutcome, failed
from decisions.ids import request_key, result_key
from decisions.run.resume import key_id_of
from decisions.text import formatting
from decisions.tool_requests import request_event
from workflows.agent_run.context import LiveRun
from workflows.agent_run.waiting import awaiting_outside
from workflows.failures import Fate, fate, told
from workflows.policies import KEEPING, queue_call_policy


async def queued(run: LiveRun, call: Call) -> ToolOutcome | None:
    """Return the call's outcome, unless only a person can settle it."""
    route = run.route(call)
    if route.queue is None:
        raise AssertionError(f"{route.name} has no queue")
    if call.effect is Effect.once and call.tool_use_id in run.effects:
        return None  # begun by the run that this one resumes
    run.cancellation.check()
    run.in_flight(call)
    began = workflow.now()
    activity: Any = route.queue.activity
    policy = queue_call_policy(route, route.queue, call.effect)
    with awaiting_outside(run):
        try:
            result = await run.execute(activity, _request(run, call), formatting.call_summary(call), policy)
        except ActivityError as error:
            outcome = _failed(run, call, route.queue, error)
        else:
            run.landed(call)
            outcome = await _outcome(run, call, result)
    if outcome is not None:
        _trace(run, call, outcome, workflow.now() - began)
    return outcome


def _trace(run: LiveRun, call: Call, outcome: ToolOutcome, took: timedelta) -> None:
    """Add the trace line that `call_tool` writes for other calls; the run's next activity writes this one."""
    key = result_key(run.state.key_id or run.state.run_id, call.step or 0, call.generation)
    figures = formatting.call_trace(key, call.step or 0, call.tool, call.arguments, outcome)
    ms = round(took / timedelta(milliseconds=1))
    line = {**figures, "at": workflow.now().isoformat(timespec="milliseconds"), "ms": ms}
    run.update(untold=(*run.state.untold, line))


def _request(run: LiveRun, call: Call) -> dict[str, Any]:
    step = call.step or 0
    key = request_key(key_id_of(run.state, step), step, call.generation)
    payload = ToolRequestPayload(
        run_id=run.state.run_id,
        step=step,
        tool=call.tool,
        tool_payload=call.arguments,
        requested_at=workflow.now(),
    )
    return request_event(payload, key).model_dump(mode="json")


def _failed(run: LiveRun, call: Call, queue: QueueRoute, error: ActivityError) -> ToolOutcome | None:
    """Return the error for the model, unless only a person can settle the call. Raises CancelledError."""
    end, cause = fate(error), error.cause
    was_taken = error.started_event_id != 0
    if end is Fate.cancelled:
        if call.effect is Effect.once and not was_taken:
            run.landed(call)
        raise asyncio.CancelledError from None
    if isinstance(cause, TimedOut) and cause.type is TimeoutType.SCHEDULE_TO_START:
        run.landed(call)
        return _unreachable(call, queue)
    if isinstance(cause, ServerError):  # it rejected the activity's result
        run.landed(call)
        return failed(ToolFault.too_large, f"the call was made, but its result cannot be had: {cause.message}")
    if end is Fate.in_doubt or (call.effect is Effect.once and end in (Fate.lost, Fate.late)):
        return None
    run.landed(call)
    return _named(told(error, call.effect), cause)


def _unreachable(call: Call, queue: QueueRoute) -> ToolOutcome:
    earlier = "; an earlier attempt of it may have happened" if call.effect is Effect.keyed else ""
    reason = f"no worker took the call from task queue {queue.task_queue!r} in time{earlier}"
    return failed(ToolFault.unreachable, reason, retryable=True)


def _named(outcome: ToolOutcome, cause: BaseException | None) -> ToolOutcome:
    """Replace an error kind that the model does not know: another worker's types are names of exceptions."""
    error = outcome.error
    if error is None or not isinstance(cause, ApplicationError):
        return outcome
    kind = error.kind if error.kind in list(ToolFault) else ToolFault.tool_error
    changes = {"kind": kind, "message": error.message[:MOST_ERROR]}
    return outcome.model_copy(update={"error": error.model_copy(update=changes)})


async def _outcome(run: LiveRun, call: Call, result: Any) -> ToolOutcome:
    """Return the result as the run can store it; a large one becomes an artifact."""
    if isinstance(result, Undecodable):
        return failed(ToolFault.tool_error, f"the call was made, but what it returned is no JSON: {result.reason}")
    try:
        data = to_json(result)
        outcome = sound(ToolOutcome(result=from_json(data)))
    except ValueError as error:
        return failed(ToolFault.tool_error, f"the call was made, but what it returned is no JSON: {error}")
    if len(data) <= INLINE_BYTES or outcome.error is not None:
        return outcome
    return await _kept(run, call, outcome)


async def _kept(run: LiveRun, call: Call, outcome: ToolOutcome) -> ToolOutcome:
    """Store a large result. The activity queries the run for it: as an input it would enter history a second time."""
    large = LargeResult(step=call.step or 0, tool=call.tool)
    with run.handing_on(large.step, outcome):
        try:
            return await workflow.execute_activity_method(
                QueueResults.keep_result, large, summary=f"keep the result of {call.tool} · step {call.step}", **KEEPING
            )
        except ActivityError as error:
            reason = formatting.cut(str(error.cause), 200)
            return failed(ToolFault.too_large, f"the call was made, but its result could not be kept: {reason}")

"""What a `tool_result` means to this run, judged in the order of A5."""

from enum import StrEnum

from pydantic_core import to_json

from contracts.events import ToolResultPayload
from contracts.failures import ToolFault
from contracts.run import RunState
from contracts.tool import MOST_ERROR, ToolError, ToolKind, ToolOutcome, failed
from decisions.resume import origin_of

MOST_RESULT_BYTES = 512 * 1024  # as JSON; a page of the transcript must be able to carry it, with JSON's escapes


class Verdict(StrEnum):
    foreign_run = "foreign_run"  # ignored, warning
    run_terminal = "run_terminal"  # ignored, info
    stale = "stale"  # issued, but no longer pending: ignored
    step_never_issued = "step_never_issued"  # the run escalates
    wrong_tool = "wrong_tool"  # the run escalates
    not_awaited = "not_awaited"  # a worker's call is at it: ignored, warning
    accepted = "accepted"


ESCALATES = frozenset({Verdict.step_never_issued, Verdict.wrong_tool})


def correlate(state: RunState, result: ToolResultPayload) -> Verdict:
    origin = origin_of(state, result.step)
    # Whoever was handed the request by the origin knows nothing of a run that resumes it.
    if result.run_id != state.run_id and (origin is None or result.run_id != origin.run_id):
        return Verdict.foreign_run
    if state.ending is not None:
        return Verdict.run_terminal
    pending = next((p for p in state.pending if p.step == result.step), None)
    if pending is None:
        return Verdict.stale if _was_issued(state, result.step) else Verdict.step_never_issued
    if pending.tool != result.tool:
        return Verdict.wrong_tool
    is_queued = any(call.step == result.step and call.kind is ToolKind.queue for call in state.calls)
    return Verdict.accepted if pending.outside and not is_queued else Verdict.not_awaited


def _was_issued(state: RunState, step: int) -> bool:
    """Steps are given to a turn's calls at once, but a call is issued only when its batch is."""
    waiting = any(call.step == step and call.outcome is None for call in state.calls)
    return 1 <= step <= state.step and not waiting


def outcome_of(result: ToolResultPayload) -> ToolOutcome:
    """An accepted result as the model will see it. What is large belongs into a file, whose path comes instead."""
    if result.status == "error":
        error = result.error or ToolError(kind=ToolFault.tool_error, message="the tool gave no reason")
        cut = {"kind": error.kind[:100], "message": error.message[:MOST_ERROR]}
        return ToolOutcome(status="error", error=error.model_copy(update=cut))
    size = len(to_json(result.result))
    if size > MOST_RESULT_BYTES:
        return failed(ToolFault.too_large, f"the result has {size:,} bytes, and {MOST_RESULT_BYTES:,} is the most")
    return ToolOutcome(result=result.result)

"""The verdict on a `tool_result`, checked in the order of A5."""

import hmac
from enum import StrEnum

from pydantic_core import from_json, to_json

from perdure.contracts.failures import ToolFault
from perdure.contracts.models import NESTING_MARGIN
from perdure.contracts.run.events import ToolResultEvent, ToolResultPayload
from perdure.contracts.run.state import OutsideResult, OutsideResults, RunState
from perdure.contracts.strict_input import find_flaw
from perdure.contracts.tool import (
    MAX_ERROR,
    ToolError,
    ToolKind,
    ToolOutcome,
    error_outcome,
)
from perdure.decisions.ids import json_digest
from perdure.decisions.run.resume import origin_of
from perdure.decisions.text.formatting import truncate
from perdure.decisions.tool_requests import nonce_of

MAX_OUTSIDE_RESULT = 512 * 1024  # as JSON; a page of the transcript must be able to carry it, with JSON's escapes


class ResultVerdict(StrEnum):
    foreign_run = "foreign_run"  # ignored, warning
    run_terminal = "run_terminal"  # ignored, info
    stale = "stale"  # issued, but no longer pending: ignored
    step_never_issued = "step_never_issued"  # the run escalates
    wrong_tool = "wrong_tool"  # the run escalates
    not_awaited = "not_awaited"  # a worker makes this call: ignored, warning
    conflict = "conflict"  # another result of the step counts: ignored, with the digests of both
    repeated = "repeated"  # at the gateway: this very result counts
    wrong_nonce = "wrong_nonce"  # at the gateway: it is not from the program that got the request
    accepted = "accepted"


ESCALATES = frozenset({ResultVerdict.step_never_issued, ResultVerdict.wrong_tool})


_REASONS = {
    ResultVerdict.foreign_run: "the result is for another run",
    ResultVerdict.run_terminal: "the run is ending",
    ResultVerdict.stale: "no result is awaited for step {step} now",
    ResultVerdict.step_never_issued: "step {step} was never issued: nothing was sent to the run",
    ResultVerdict.wrong_tool: "step {step} was asked of another tool: nothing was sent to the run",
    ResultVerdict.not_awaited: "the result of step {step} does not come from outside",
    ResultVerdict.conflict: "step {step} has another result already, which counts: {digests}",
    ResultVerdict.repeated: "this result of step {step} has been taken already",
    ResultVerdict.wrong_nonce: "the nonce is not that of the request of step {step}",
}


def judge_result(state: RunState, result: ToolResultPayload, *, is_halted: bool, is_new: bool) -> ResultVerdict:
    """Return the verdict on a result by signal. `is_new`: it was not judged before."""
    verdict = correlate_result(state, result)
    if is_halted and verdict is not ResultVerdict.foreign_run:
        return ResultVerdict.run_terminal
    if verdict is ResultVerdict.accepted and not is_new:
        verdict = ResultVerdict.stale
    taken = _known_result(state, result.step)
    is_other = taken is not None and taken.digest != content_digest(result)
    return ResultVerdict.conflict if verdict is ResultVerdict.stale and is_other else verdict


def judge_update_result(state: RunState, event: ToolResultEvent, verdict: ResultVerdict) -> ResultVerdict:
    """Return the verdict on a result by update, given that on the same result by signal. It never escalates.

    An accepted or repeated result must carry the nonce of its request.
    """
    result = event.payload
    taken = _known_result(state, result.step)
    if verdict in (ResultVerdict.stale, ResultVerdict.conflict) and taken is not None:
        if not _is_nonce(event, taken.nonce):
            return ResultVerdict.wrong_nonce
        return verdict if verdict is ResultVerdict.conflict else ResultVerdict.repeated
    call = next((call for call in state.calls if call.step == result.step), None)
    if verdict is ResultVerdict.accepted and not (call and _is_nonce(event, nonce_of(state, call))):
        return ResultVerdict.wrong_nonce
    return verdict


def _is_nonce(event: ToolResultEvent, expected: str | None) -> bool:
    return bool(expected) and hmac.compare_digest((event.nonce or "").encode(), (expected or "").encode())


def format_result_reason(verdict: ResultVerdict, state: RunState, result: ToolResultPayload) -> str:
    """Explain in one line, for the sender, why a result is rejected."""
    return _REASONS[verdict].format(step=result.step, digests=_format_digests(state, result))


def format_result_notice(verdict: ResultVerdict, state: RunState, result: ToolResultPayload) -> str:
    """Format the same for `state.ignored`."""
    digests = f": {_format_digests(state, result)}" if verdict is ResultVerdict.conflict else ""
    return f"{verdict} (step {result.step}, tool {truncate(result.tool, 80)}){digests}"


def _format_digests(state: RunState, result: ToolResultPayload) -> str:
    taken = _known_result(state, result.step)
    return f"{taken.digest} counts, {content_digest(result)} came later" if taken else ""


def record_result(state: RunState, result: ToolResultPayload) -> RunState:
    """Record that the run has taken the result, so that a repeat is recognized."""
    call = next((call for call in state.calls if call.step == result.step), None)
    nonce = (call and nonce_of(state, call)) or ""
    taken = OutsideResult(step=result.step, digest=content_digest(result), nonce=nonce)
    others = (known for known in state.results if known.step != result.step)
    return state.evolve(results=OutsideResults(others).add(taken))


def _known_result(state: RunState, step: int) -> OutsideResult | None:
    return next((taken for taken in state.results if taken.step == step), None)


def content_digest(result: ToolResultPayload) -> str:
    """Return a digest of a result's content, independent of its time and of the order of its keys."""
    content = result.model_dump(mode="json", include={"step", "tool", "status", "result", "error"})
    return json_digest(content)


def correlate_result(state: RunState, result: ToolResultPayload) -> ResultVerdict:
    origin = origin_of(state, result.step)
    # A program that got the request from the origin does not know of a run that resumes it.
    if result.run_id != state.run_id and (origin is None or result.run_id != origin.run_id):
        return ResultVerdict.foreign_run
    if state.ending is not None:
        return ResultVerdict.run_terminal
    pending = next((p for p in state.pending if p.step == result.step), None)
    if pending is None:
        return ResultVerdict.stale if _was_issued(state, result.step) else ResultVerdict.step_never_issued
    if pending.tool != result.tool:
        return ResultVerdict.wrong_tool
    is_queued = any(call.step == result.step and call.kind is ToolKind.queue for call in state.calls)
    return ResultVerdict.accepted if pending.outside and not is_queued else ResultVerdict.not_awaited


def _was_issued(state: RunState, step: int) -> bool:
    """Return whether the step was issued. A turn's calls get their steps at once, but are issued batch by batch."""
    waiting = any(call.step == step and call.outcome is None for call in state.calls)
    return 1 <= step <= state.step and not waiting


def outcome_of_result(result: ToolResultPayload) -> ToolOutcome:
    """Convert an accepted result to the outcome that the model sees. A result that is too large becomes an error."""
    if result.status == "error":
        error = result.error or ToolError(kind=ToolFault.tool_error, message="the tool gave no reason")
        return ToolOutcome(status="error", error=error.evolve(kind=error.kind[:100], message=error.message[:MAX_ERROR]))
    size = len(to_json(result.result))
    if size > MAX_OUTSIDE_RESULT:
        return error_outcome(
            ToolFault.too_large, f"the result has {size:,} bytes, and {MAX_OUTSIDE_RESULT:,} is the most"
        )
    return ToolOutcome(result=result.result)


INLINE_BYTES = 64 * 1024  # of a result's JSON; more becomes an artifact


def reject_unreadable(outcome: ToolOutcome) -> ToolOutcome:
    """Return the outcome, or an error if the run could not read it back (lone surrogates, very deep nesting)."""
    try:
        from_json(b"%b%b%b" % (b"[" * NESTING_MARGIN, to_json(outcome), b"]" * NESTING_MARGIN))
    except ValueError as error:
        reason = find_flaw({"result": outcome.result}) or str(error)
        return error_outcome(
            ToolFault.tool_error, f"the call was made, but what it returned is no usable JSON: {reason}"
        )
    return outcome

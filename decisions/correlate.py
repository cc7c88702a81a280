"""What a `tool_result` means to this run, judged in the order of A5."""

from enum import StrEnum

from contracts.events import ToolResultPayload
from contracts.run import RunState


class Verdict(StrEnum):
    foreign_run = "foreign_run"  # ignored, warning
    run_terminal = "run_terminal"  # ignored, info
    stale = "stale"  # issued, but no longer pending: ignored
    step_never_issued = "step_never_issued"  # the run escalates
    wrong_tool = "wrong_tool"  # the run escalates
    not_awaited = "not_awaited"  # the worker's own call is at it: ignored, warning
    accepted = "accepted"


ESCALATES = frozenset({Verdict.step_never_issued, Verdict.wrong_tool})


def correlate(state: RunState, result: ToolResultPayload) -> Verdict:
    if result.run_id != state.run_id:
        return Verdict.foreign_run
    if state.ending is not None:
        return Verdict.run_terminal
    pending = next((p for p in state.pending if p.step == result.step), None)
    if pending is None:
        return Verdict.stale if _was_issued(state, result.step) else Verdict.step_never_issued
    if pending.tool != result.tool:
        return Verdict.wrong_tool
    return Verdict.accepted if pending.outside else Verdict.not_awaited


def _was_issued(state: RunState, step: int) -> bool:
    """Steps are given to a turn's calls at once, but a call is issued only when its batch is."""
    waiting = any(call.step == step and call.outcome is None for call in state.calls)
    return 1 <= step <= state.step and not waiting

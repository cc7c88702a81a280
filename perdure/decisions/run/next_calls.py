"""The calls of a turn that are made next, and which of them a person must approve first."""

from collections.abc import Callable, Iterator
from itertools import takewhile

from pydantic_core import to_json

from perdure.contracts.policy import Verdict
from perdure.contracts.run.state import Call, RunState
from perdure.contracts.run.turn import MAX_READ_TIMEOUT
from perdure.contracts.tool import INLINE_ARGUMENTS, Approval, Effect, ToolKind
from perdure.decisions.ids import call_digest
from perdure.decisions.run.call_state import OUTSIDE, changes_something
from perdure.decisions.tools import ASK_HUMAN, CONTROL_TOOLS


def is_approved(_: RunState, call: Call) -> bool:
    """The call has an approval, with these arguments."""
    return call.approval == call_digest(call.tool, call.arguments)


def policy_asks(_: RunState, call: Call) -> bool:
    """A rule of the policy asks."""
    return call.verdict is not None and call.verdict.verdict is Verdict.ask


def is_tool_approved(state: RunState, call: Call) -> bool:
    """A person has approved all calls of the tool in this run."""
    return call.tool in state.approved_tools


def is_unplanned(state: RunState, call: Call) -> bool:
    """The run has a plan without the call, which changes something."""
    return state.planned is not None and changes_something(call)


def policy_loosens(_: RunState, call: Call) -> bool:
    """A rule of the policy allows what the tool's declaration asks for."""
    return call.verdict is not None and call.verdict.loosens


def is_declared(state: RunState, call: Call) -> bool:
    """The tool is declared with `approval = "always"`, or for calls of this kind."""
    route = next((route for route in state.tools if route.name == call.tool), None)
    if route is None:
        return False
    is_gated_kind = bool(route.approval_kinds) and call.arguments.get("kind") in route.approval_kinds
    return route.approval is Approval.always or is_gated_kind


# Whether a person must approve a call first, checked in this order: the first rule that holds decides; else no.
APPROVALS: tuple[tuple[Callable[[RunState, Call], bool], bool], ...] = (
    (is_approved, False),
    (policy_asks, True),
    (is_tool_approved, False),
    (is_unplanned, True),
    (policy_loosens, False),
    (is_declared, True),
)


def needs_approval(state: RunState, call: Call) -> bool:
    """Return whether a person must approve the call first."""
    return next((needed for holds, needed in APPROVALS if holds(state, call)), False)


def is_asked_first(state: RunState, call: Call) -> bool:
    """Return whether a person is asked before anything is done, so that a repeat is harmless."""
    return call.tool == ASK_HUMAN or needs_approval(state, call)


def next_batch(state: RunState) -> tuple[Call, ...]:
    """Return the calls to make now: adjacent reads together, everything else alone and in the model's order.

    `finish`, `escalate` and `reframe` come last, since they judge the results of the others.
    """
    first = next(_open_work(state), None) or next(_open_calls(state), None)
    if first is None or first.tool in CONTROL_TOOLS:
        return (first,) if first else ()
    return tuple(takewhile(lambda call: _is_parallel(state, call), _open_work(state))) or (first,)


def _open_calls(state: RunState) -> Iterator[Call]:
    return (call for call in state.calls if call.outcome is None)


def _open_work(state: RunState) -> Iterator[Call]:
    return (call for call in _open_calls(state) if call.tool not in CONTROL_TOOLS)


def _is_parallel(state: RunState, call: Call) -> bool:
    return call.effect is Effect.read and call.kind is not ToolKind.builtin and not needs_approval(state, call)


def is_plain_read(state: RunState, call: Call) -> bool:
    """Return whether the call may share an activity with others: it is short and changes nothing.

    It needs no approval and no result from outside, and its arguments are in the request. Its server has not made it a
    task, which is followed.
    """
    return (
        _is_parallel(state, call)
        and call.unfinished is None
        and call.kind not in OUTSIDE
        and next(route.timeout for route in state.tools if route.name == call.tool) <= MAX_READ_TIMEOUT
        and len(to_json(call.arguments)) <= INLINE_ARGUMENTS
    )

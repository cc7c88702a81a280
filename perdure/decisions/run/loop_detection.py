"""Detection of unproductive loops, over the last six calls, after each turn (B3).

Two patterns are detected:

- identical: the same tool with the same arguments at least 3 times in the last 6 calls;
- pattern: the same tool at least 4 times in the last 6 calls, with differing arguments.

Single-shell agents trigger the second rule; paging and polling trigger both. So every detection is reported, but the
run only responds to a barren one, for which all of this must hold:

- none of those calls returned anything new: each failed, had an empty result, or repeated a result of the same tool
  within the run's last 24 calls. The first of them may have returned the result that the others repeat;
- a call that changes something, succeeds and has new arguments counts as new, whatever it returns: many edits answer
  "ok". (An empty list is the answer of a search, so it is not new.)
- no other call among them returned anything new: an agent that edits, runs its test, edits and runs it again is at
  work even if the test fails in the same way. (Of identical calls the last three count, and a call that is itself
  repeated among them is not progress.)
- the latest turn took part in it, and so did an earlier turn: until then the model has seen no answer;
- the tool does not declare itself `pollable`.

The response escalates from a nudge to a directive with a forced tool, and then to a person. Between two stages, a
pattern gets three more calls to change; an identical call escalates at once. Six calls without another barren
detection reset the stages, and so does a person's answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_core import to_json

from perdure.contracts.run.loop_detection import RecentCall, Rung, Thrash, Tier
from perdure.contracts.run.signals import QuestionKind
from perdure.contracts.run.state import Call, ForcedTool, RecentCalls, RunState
from perdure.contracts.tool import Effect, ToolKind, ToolOutcome
from perdure.decisions.ids import call_digest, digest
from perdure.decisions.run.limits import is_out_of_steps
from perdure.decisions.tools import ASK_HUMAN, CONTROL_TOOLS, REFRAME

CALL_WINDOW = 6
IDENTICAL, PATTERN = 3, 4  # calls of the window
PATTERN_PATIENCE = 3  # calls between two stages of a pattern
RESPONSE_RUNGS = (Rung.nudge, Rung.directive, Rung.ask)


def remember_call(recent: RecentCalls, call: Call, *, pollable: bool = False) -> RecentCalls:
    """Append a settled call to the latest calls."""
    arguments = call_digest(call.tool, call.arguments)
    result = None if call.outcome is None else _digest_result(call.outcome)
    alike = [made for made in recent if made.tool == call.tool]
    has_new_result = result is not None and result not in {made.result for made in alike}
    is_new_change = _has_changed(call) and arguments not in {made.arguments for made in alike}
    is_new = has_new_result or is_new_change
    made = RecentCall(tool=call.tool, arguments=arguments, result=result, is_new=is_new, pollable=pollable)
    return recent.add(made)


def _has_changed(call: Call) -> bool:
    can_change = call.effect is not Effect.read or call.kind is ToolKind.builtin
    outcome = call.outcome
    return can_change and outcome is not None and outcome.status == "ok" and outcome.result not in ([], {})


def find_thrashes(recent: Sequence[RecentCall], latest: int) -> tuple[Thrash, ...]:
    """Return the loops among the recent calls, of which the last `latest` belong to the last turn."""
    window = tuple(recent[-CALL_WINDOW:])
    loops: list[Thrash] = []
    for tool in dict.fromkeys(made.tool for made in window):
        indices = [i for i, made in enumerate(window) if made.tool == tool]
        by_arguments = {
            window[i].arguments: [j for j in indices if window[j].arguments == window[i].arguments] for i in indices
        }
        same = [group for group in by_arguments.values() if len(group) >= IDENTICAL]
        loops += [_build_thrash(Tier.identical, window, group, latest) for group in same]
        if len(indices) >= PATTERN and len(by_arguments) > 1:
            loops.append(_build_thrash(Tier.pattern, window, indices, latest))
    return tuple(loops)


def _build_thrash(tier: Tier, window: Sequence[RecentCall], group: list[int], latest: int) -> Thrash:
    counted = group[-IDENTICAL:] if tier is Tier.identical else group
    before = len(window) - latest  # calls of earlier turns
    is_barren = (
        group[0] < before <= group[-1]
        and not any(window[i].pollable for i in group)
        and not any(_is_progress(window, i, counted, tier) for i in range(counted[0], counted[-1] + 1))
    )
    return Thrash(tier=tier, tool=window[group[0]].tool, count=len(group), is_barren=is_barren)


def _is_progress(window: Sequence[RecentCall], i: int, counted: list[int], tier: Tier) -> bool:
    made = window[i]
    later = window[i + 1 : counted[-1] + 1]
    if not made.is_new:
        return False
    if i == counted[0]:
        return made.result is None or made.result not in {window[j].result for j in counted[1:]}
    is_repeated = any((call.tool, call.arguments) == (made.tool, made.arguments) for call in later)
    return not (tier is Tier.identical and i not in counted and is_repeated)


@dataclass(frozen=True)
class LoopCheck:
    """The state after loop detection: the loops seen, the stage escalated to, and the note to the model."""

    state: RunState
    seen: tuple[Thrash, ...] = ()
    escalated_to: Rung | None = None
    note: str | None = None


def check_for_loops(state: RunState, calls: Sequence[Call]) -> LoopCheck:
    """Look for loops after a turn that made these calls."""
    made = [call for call in calls if call.tool not in CONTROL_TOOLS]
    pollable = {route.name for route in state.tools if route.pollable}
    recent = state.recent
    for call in made:
        recent = remember_call(recent, call, pollable=call.tool in pollable)
    state = state.evolve(recent=recent, calm=state.calm + len(made))
    seen = find_thrashes(recent, len(made)) if made else ()
    state = state.evolve(sighted=tuple(detection_key(thrash) for thrash in seen))
    barren = next((thrash for thrash in seen if thrash.is_barren and _should_respond(state, thrash)), None)
    if barren is not None and state.ending is None:
        return _escalate_response(state, barren, seen)
    return LoopCheck(state if state.calm < CALL_WINDOW else state.evolve(rung=0), seen)


def may_answer_loop(state: RunState, calls: Sequence[Call]) -> bool:
    """Return whether the run will respond to a loop after these reads if they fail, or repeat a known result."""
    pollable = {route.name for route in state.tools if route.pollable}
    made = [
        RecentCall(
            tool=call.tool,
            arguments=call_digest(call.tool, call.arguments),
            result=None,
            is_new=False,
            pollable=call.tool in pollable,
        )
        for call in calls
    ]
    later = state.evolve(calm=state.calm + len(calls))
    for result in dict.fromkeys((None, *(known.result for known in state.recent[-CALL_WINDOW:] if known.is_new))):
        recent = (*state.recent, *(call.evolve(result=result) for call in made))
        if any(thrash.is_barren and _should_respond(later, thrash) for thrash in find_thrashes(recent, len(calls))):
            return True
    return False


def detection_key(thrash: Thrash) -> str:
    """Return a key that stays the same from turn to turn while the loop lasts."""
    return f"{thrash.tier}:{thrash.tool}"


def _should_respond(state: RunState, thrash: Thrash) -> bool:
    return state.rung == 0 or thrash.tier is Tier.identical or state.calm >= PATTERN_PATIENCE


def _escalate_response(state: RunState, thrash: Thrash, seen: tuple[Thrash, ...]) -> LoopCheck:
    rung = RESPONSE_RUNGS[min(state.rung, len(RESPONSE_RUNGS) - 1)]
    tool = _directive_tool(state)
    if rung is Rung.directive and tool is None:
        rung = Rung.ask
    times = f"`{thrash.tool}` was called {thrash.count} times in the last {CALL_WINDOW} calls and brought nothing new"
    forced = None
    if rung is Rung.nudge:
        note = f"{times}. Try a different approach or a different tool."
    elif rung is Rung.directive and tool is not None:
        note = f"{times}, although you were told. Do not call it like that again: call `{tool}` now."
        forced = ForcedTool(tool=tool)
    else:
        note = (
            f"{times}, and nothing has helped. Call `{ASK_HUMAN}` now: say what you tried, and what you need to know."
        )
        question = f"I go in circles: {times}. Keep going, stop, or tell me what to do instead?"
        forced = ForcedTool(tool=ASK_HUMAN, asks=QuestionKind.thrash, text=question)
    return LoopCheck(state.evolve(rung=RESPONSE_RUNGS.index(rung) + 1, calm=0, forced=forced), seen, rung, note)


def _directive_tool(state: RunState) -> str | None:
    """Return the tool to force, unless no step or reframe is left for it: forcing it would end the run."""
    named = state.limits.directive_tool
    route = next((route for route in state.tools if route.name == named), None)
    if route is not None and route.takes_step and is_out_of_steps(state, state.step):
        return None
    tool = named if route is not None else REFRAME
    return None if tool == REFRAME and state.reframes >= state.limits.max_reframes else tool


def reset_detection(state: RunState) -> RunState:
    """Reset the detection after a person's answer: earlier calls no longer count, and no tool is forced."""
    return state.evolve(recent=RecentCalls(), rung=0, calm=0, forced=None)


def _digest_result(outcome: ToolOutcome) -> str | None:
    """Return a digest of a successful, non-empty result.

    A large result is compared by size and beginning, since each has an artifact of its own.
    """
    result = outcome.result
    if outcome.status == "error" or result in (None, "", [], {}) or (isinstance(result, str) and not result.strip()):
        return None
    is_large = isinstance(result, dict) and "artifact_path" in result
    return digest(to_json({**result, "artifact_path": None} if is_large else result), 8)

"""Does the run go in circles? Looked at after each turn's calls, over the last six of them (B3).

Seen, literally, as the requirement has it:

- identical: the same tool with the same arguments at least 3 times in the last 6 calls;
- pattern: the same tool at least 4 times in the last 6 calls, with differing arguments.

Every agent that has one shell tool looks like the second, and honest paging or polling like either. So what is seen
is told, but something is done about it only where it is barren, which takes all of this:

- none of those calls brought anything new: each failed, or its result was empty, or one of the run's last 24 calls
  of that tool had brought the same. The first of them may have brought what the others repeat;
- a call that changes something, succeeds, and has arguments that were not used before, is new whatever it returns:
  many edits just answer "ok". (An empty list is the answer of a search, so it brings nothing.)
- no other call among them brought anything new: an agent that edits, runs its test, edits and runs it again, is at
  work even if the test goes on failing in the same way. (Of identical calls the last three count, and a call that
  comes again among them is none.)
- the latest turn took part in it, and a turn before it: until then the model has seen no answer;
- the tool does not declare itself `pollable`.

The rungs are a nudge, a directive with a forced tool, and a person. From one to the next, variations get three more
calls to become something else; the same call once more is clear enough. Six calls without another barren thrash lead
back down to the floor, and so does a person's answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from pydantic_core import to_json

from contracts.run.loop_detection import Made, Rung, Thrash, Tier
from contracts.run.question import QuestionKind
from contracts.run.state import Call, Forced, RunState
from contracts.tool import Effect, ToolKind, ToolOutcome
from decisions.builtin_tools import ASK_HUMAN, CONTROL, REFRAME
from decisions.ids import call_digest
from decisions.run.limits import is_out_of_steps

WINDOW = 6
IDENTICAL, PATTERN = 3, 4  # calls of the window
PATIENCE = 3  # calls between two rungs of a pattern
REMEMBERED = 24  # calls whose results are known again
RUNGS = (Rung.nudge, Rung.directive, Rung.ask)


def remembered(recent: Sequence[Made], call: Call, *, pollable: bool = False) -> tuple[Made, ...]:
    """The latest calls, with one more that has its outcome."""
    arguments = call_digest(call.tool, call.arguments)
    result = None if call.outcome is None else _brought(call.outcome)
    alike = [made for made in recent if made.tool == call.tool]
    tells_something = result is not None and result not in {made.result for made in alike}
    changes_something = _has_changed(call) and arguments not in {made.arguments for made in alike}
    is_new = tells_something or changes_something
    made = Made(tool=call.tool, arguments=arguments, result=result, is_new=is_new, pollable=pollable)
    return (*recent, made)[-REMEMBERED:]


def _has_changed(call: Call) -> bool:
    can_change = call.effect is not Effect.read or call.kind is ToolKind.builtin
    outcome = call.outcome
    return can_change and outcome is not None and outcome.status == "ok" and outcome.result not in ([], {})


def thrashes(recent: Sequence[Made], latest: int) -> tuple[Thrash, ...]:
    """What is seen in the last calls, of which the `latest` ones are the last turn's."""
    window = tuple(recent[-WINDOW:])
    found: list[Thrash] = []
    for tool in dict.fromkeys(made.tool for made in window):
        mine = [i for i, made in enumerate(window) if made.tool == tool]
        by_arguments = {
            window[i].arguments: [j for j in mine if window[j].arguments == window[i].arguments] for i in mine
        }
        same = [group for group in by_arguments.values() if len(group) >= IDENTICAL]
        found += [_thrash(Tier.identical, window, group, latest) for group in same]
        if len(mine) >= PATTERN and len(by_arguments) > 1:
            found.append(_thrash(Tier.pattern, window, mine, latest))
    return tuple(found)


def _thrash(tier: Tier, window: Sequence[Made], group: list[int], latest: int) -> Thrash:
    counted = group[-IDENTICAL:] if tier is Tier.identical else group
    before = len(window) - latest  # calls of earlier turns
    is_barren = (
        group[0] < before <= group[-1]
        and not any(window[i].pollable for i in group)
        and not any(_is_progress(window, i, counted, tier) for i in range(counted[0], counted[-1] + 1))
    )
    return Thrash(tier=tier, tool=window[group[0]].tool, count=len(group), is_barren=is_barren)


def _is_progress(window: Sequence[Made], i: int, counted: list[int], tier: Tier) -> bool:
    made = window[i]
    later = window[i + 1 : counted[-1] + 1]
    if not made.is_new:
        return False
    if i == counted[0]:
        return made.result is None or made.result not in {window[j].result for j in counted[1:]}
    is_repeated = any((each.tool, each.arguments) == (made.tool, made.arguments) for each in later)
    return not (tier is Tier.identical and i not in counted and is_repeated)


@dataclass(frozen=True)
class Looked:
    """What was seen of a thrash after a turn, the rung that was climbed for it, and the note that tells the model."""

    state: RunState
    seen: tuple[Thrash, ...] = ()
    climbed: Rung | None = None
    note: str | None = None


def looked(state: RunState, calls: Sequence[Call]) -> Looked:
    """After a turn that made these calls."""
    made = [call for call in calls if call.tool not in CONTROL]
    pollable = {route.name for route in state.tools if route.pollable}
    recent = state.recent
    for call in made:
        recent = remembered(recent, call, pollable=call.tool in pollable)
    state = state.model_copy(update={"recent": recent, "calm": state.calm + len(made)})
    seen = thrashes(recent, len(made)) if made else ()
    state = state.model_copy(update={"sighted": tuple(sighting(thrash) for thrash in seen)})
    barren = next((thrash for thrash in seen if thrash.is_barren and _is_due(state, thrash)), None)
    if barren is not None and state.ending is None:
        return _climbed(state, barren, seen)
    return Looked(state if state.calm < WINDOW else state.model_copy(update={"rung": 0}), seen)


def sighting(thrash: Thrash) -> str:
    """What is the same from turn to turn while it goes on."""
    return f"{thrash.tier}:{thrash.tool}"


def _is_due(state: RunState, thrash: Thrash) -> bool:
    return state.rung == 0 or thrash.tier is Tier.identical or state.calm >= PATIENCE


def _climbed(state: RunState, thrash: Thrash, seen: tuple[Thrash, ...]) -> Looked:
    rung = RUNGS[min(state.rung, len(RUNGS) - 1)]
    tool = _directive_tool(state)
    if rung is Rung.directive and tool is None:
        rung = Rung.ask
    times = f"`{thrash.tool}` was called {thrash.count} times in the last {WINDOW} calls and brought nothing new"
    forced = None
    if rung is Rung.nudge:
        note = f"{times}. Try a different approach or a different tool."
    elif rung is Rung.directive and tool is not None:
        note = f"{times}, although you were told. Do not call it like that again: call `{tool}` now."
        forced = Forced(tool=tool)
    else:
        note = (
            f"{times}, and nothing has helped. Call `{ASK_HUMAN}` now: say what you tried, and what you need to know."
        )
        question = f"I go in circles: {times}. Keep going, stop, or tell me what to do instead?"
        forced = Forced(tool=ASK_HUMAN, asks=QuestionKind.thrash, text=question)
    changes = {"rung": RUNGS.index(rung) + 1, "calm": 0, "forced": forced}
    return Looked(state.model_copy(update=changes), seen, rung, note)


def _directive_tool(state: RunState) -> str | None:
    """None where forcing it would end the run: no step, or no reframe, is left for it."""
    named = state.limits.directive_tool
    route = next((route for route in state.tools if route.name == named), None)
    if route is not None and route.takes_step and is_out_of_steps(state, state.step):
        return None
    tool = named if route is not None else REFRAME
    return None if tool == REFRAME and state.reframes >= state.limits.max_reframes else tool


def directed(state: RunState) -> RunState:
    """A person has said how to go on: what went before is no sign of a loop, and nothing is forced any more."""
    return state.model_copy(update={"recent": (), "rung": 0, "calm": 0, "forced": None})


def _brought(outcome: ToolOutcome) -> str | None:
    """A large result is known by its size and beginning: each has an artifact of its own."""
    brought = outcome.result
    if outcome.status == "error" or brought in (None, "", [], {}) or (isinstance(brought, str) and not brought.strip()):
        return None
    is_large = isinstance(brought, dict) and "artifact_path" in brought
    return _digest({**brought, "artifact_path": None} if is_large else brought)


def _digest(value: Any) -> str:
    return blake2b(to_json(value), digest_size=8).hexdigest()

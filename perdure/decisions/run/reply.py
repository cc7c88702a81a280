"""The effect of a model's reply on the run, by a table: calls to make, an outcome, or a note that it is unusable."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from heapq import nlargest
from itertools import pairwise
from typing import Any

from perdure.contracts.failures import Escalation, RunFailure, ToolFault
from perdure.contracts.run.state import Call, Ending, ForcedTool, RunState, RunStatus
from perdure.contracts.run.turn import ModelTurn
from perdure.contracts.tool import Effect, ToolKind, ToolOutcome, ToolRoute, error_outcome
from perdure.decisions.errors import IllegalMoveError
from perdure.decisions.run.call_state import apply_verdict, artifacts_in
from perdure.decisions.run.journal import JOURNAL_EXCERPT, frame_journal, parse_framing
from perdure.decisions.run.limits import is_out_of_steps
from perdure.decisions.run.outcome import complete_out_of_time, complete_run, count_invalid_result, escalate_run
from perdure.decisions.run.state import add_review_costs, spend
from perdure.decisions.run.transcript import is_thought, join_text_blocks
from perdure.decisions.text.visible_text import find_written_call
from perdure.decisions.tools import CALL_TOOL, FINISH, SEARCH_TOOLS, unwrap_use

MAX_LISTED_TOOLS = 60  # in the error of an unknown tool
MIN_SIMILARITY = 0.5  # of a name that an error suggests: the share of equal pairs of letters
MAX_UNUSABLE_REPLIES = 3  # in a row, before the run ends `ModelUnusable`
RESULT_MISSING = f"This run ends with `{FINISH}` and its `result`, not with text: call it now."
CUT_OFF = ("max_tokens", "model_context_window_exceeded")  # stop reasons of an incomplete reply


@dataclass(frozen=True)
class TurnTaken:
    """The result of a reply: the new state, whether the conversation keeps the reply, and a note to the model."""

    state: RunState
    keep: bool = True
    note: str | None = None


@dataclass(frozen=True)
class ReplyFacts:
    """A reply, as the rows of `REPLIES` look at it. Its cost is in the state already."""

    state: RunState
    turn: ModelTurn
    calls: tuple[Call, ...]
    text: str
    owes_question: bool = False  # it was to ask a person, and does not: the workflow asks, as no row ends the run


def take_turn(state: RunState, turn: ModelTurn) -> TurnTaken:
    """Apply a reply to the run, as the first row of `REPLIES` whose condition holds says.

    Raises IllegalMoveError while calls of the previous turn are open: they would never get their results.
    """
    if state.calls:
        raise IllegalMoveError("take a reply", f"calls are open: {', '.join(call.tool_use_id for call in state.calls)}")
    state = add_review_costs(_add_usage(state, turn), turn.reviews)
    calls = parse_calls(state, turn)
    forced = _keep_forced(state, calls)
    owes_question = state.forced is not None and state.forced.asks is not None and forced is None
    reply = ReplyFacts(state.evolve(forced=forced), turn, calls, join_text_blocks(turn.content), owes_question)
    return next(take(reply) for _, holds, take in REPLIES if holds(reply))


def take_last_turn(reply: ReplyFacts) -> TurnTaken:
    """The partial outcome, of its `finish` or its text. A typed run without a result escalates: `result_invalid`."""
    # No tool can be called any more, except `finish`. A result completes a typed run without a text, too.
    state, calls = reply.state, reply.calls
    endings = (call for call in calls if call.tool == FINISH and call.outcome is None)
    finish = next((call for call in endings if state.is_typed or isinstance(call.arguments.get("outcome"), str)), None)
    arguments = finish.arguments if finish else {}
    said = arguments.get("outcome")
    refused = error_outcome(ToolFault.budget, "the time of this run is used up")
    outcome = (said.strip() if isinstance(said, str) else "") or reply.text
    state = complete_out_of_time(state, outcome, artifacts_in(arguments), finish)
    outcomes = {call.tool_use_id: ToolOutcome(result="finished") if call is finish else refused for call in calls}
    calls = tuple(
        call if call.outcome else call.evolve(step=None, outcome=outcomes[call.tool_use_id]) for call in calls
    )
    return TurnTaken(state.evolve(calls=calls), keep=bool(calls or reply.text))


def escalate_declined(reply: ReplyFacts) -> TurnTaken:
    """The run escalates: `model_declined`. The conversation does not keep the reply."""
    text = reply.text or "the model declined"
    return TurnTaken(escalate_run(reply.state, Escalation.model_declined, text), keep=False)


def escalate_out_of_steps(reply: ReplyFacts) -> TurnTaken:
    """The calls that need no step are made, and the run escalates: `step_budget`."""
    state = take_calls(reply).state
    detail = f"all {state.limits.max_steps} steps are used up, and the agent asked for one more"
    return TurnTaken(escalate_run(state, Escalation.step_budget, detail))


def take_calls(reply: ReplyFacts) -> TurnTaken:
    """The calls are made. The third result in the run that is invalid escalates it: `result_invalid`."""
    state = _read_text(reply.state, reply.text)
    if reply.turn.invalid_results:
        state = count_invalid_result(state, " ".join(reply.turn.invalid_results.values()))
    last = max([call.step for call in reply.calls if call.step is not None], default=state.step)
    return TurnTaken(state.evolve(calls=reply.calls, step=last))


def continue_turn(reply: ReplyFacts) -> TurnTaken:
    """The model is called again, and continues."""
    return TurnTaken(reply.state)


def reject_cut_off(reply: ReplyFacts) -> TurnTaken:
    """Unusable. The conversation keeps its text. A note asks for a shorter one, whole."""
    if reply.turn.content and all(is_thought(block) for block in reply.turn.content):
        note = "All tokens of your reply went to thinking, before any text or call. Think less, and answer."
    else:
        note = (
            "Your reply was cut off by the length limit. Give the whole answer again, but shorter; write what is long "
            "to files, in several calls."
        )
    return _reject(reply, "was cut off", note, keep=bool(reply.text))


def reject_reasoning(reply: ReplyFacts) -> TurnTaken:
    """Unusable. A note asks for an answer."""
    note = "Your reply had only reasoning, and no answer. Call a tool, or answer in text."
    return _reject(reply, "had all its words as reasoning, and no answer", note)


def reject_empty(reply: ReplyFacts) -> TurnTaken:
    """Unusable. A note asks for an answer."""
    return _reject(reply, "was empty", "Your reply was empty. Call a tool, or answer in text.")


def reject_written_call(reply: ReplyFacts) -> TurnTaken:
    """Unusable, but kept. A note asks for a tool call."""
    tool = _written_call(reply)
    note = (
        f"Your reply has a call of `{tool}` as text, so it was not made. Make it as a tool call. If it is part of your "
        f"answer, use `{FINISH}`."
    )
    return _reject(reply, f"had a call of {tool} as text, which makes none", note, keep=True)


def ask_for_result(reply: ReplyFacts) -> TurnTaken:
    """A note asks for the result, and the next reply is forced to give it. Counts as an invalid result."""
    state = count_invalid_result(_read_text(reply.state, reply.text), "there was only text")
    forced = None if reply.owes_question else ForcedTool(tool=FINISH)
    return TurnTaken(state.evolve(forced=forced), note=RESULT_MISSING)


def complete_with_text(reply: ReplyFacts) -> TurnTaken:
    """The outcome: the run completes."""
    return TurnTaken(complete_run(_read_text(reply.state, reply.text), reply.text, ()))


def _exceeds_steps(reply: ReplyFacts) -> bool:
    is_over = is_out_of_steps(reply.state, reply.state.step) and any(_asks_for_a_step(call) for call in reply.calls)
    return is_over and reply.state.forced is None


def _is_paused(reply: ReplyFacts) -> bool:
    return reply.turn.stop_reason == "pause_turn" and bool(reply.turn.content)


def _is_reasoning(reply: ReplyFacts) -> bool:
    return not reply.text and any(is_thought(block) for block in reply.turn.content)


def _written_call(reply: ReplyFacts) -> str | None:
    return find_written_call(reply.text, {route.name for route in reply.state.tools})


# What a reply becomes: of these conditions, in this order, the first that holds decides. Three replies in a row that
# are rejected as unusable end the run as failed: `ModelUnusable`. docs/one-call.md has the same table.
REPLIES: tuple[tuple[str, Callable[[ReplyFacts], bool], Callable[[ReplyFacts], TurnTaken]], ...] = (
    ("it was the last turn, as the time is used up", lambda reply: reply.state.is_closing, take_last_turn),
    ("the model declines", lambda reply: reply.turn.stop_reason == "refusal", escalate_declined),
    ("it has a call that needs a step, and none is left", _exceeds_steps, escalate_out_of_steps),
    ("it has calls", lambda reply: bool(reply.calls), take_calls),
    ("the provider paused it", _is_paused, continue_turn),
    ("the length limit cut it off", lambda reply: reply.turn.stop_reason in CUT_OFF, reject_cut_off),
    ("it has reasoning and no text", _is_reasoning, reject_reasoning),
    ("it has no text", lambda reply: not reply.text, reject_empty),
    ("its text has a call of a tool", lambda reply: _written_call(reply) is not None, reject_written_call),
    ("it is text, and the run ends with a result", lambda reply: reply.state.is_typed, ask_for_result),
    ("it is text", lambda _: True, complete_with_text),
)


def _keep_forced(state: RunState, calls: tuple[Call, ...]) -> ForcedTool | None:
    """If the reply contains the forced question, keep the reason it was forced."""
    forced = state.forced
    if forced is None or forced.asks is None:
        return None
    return forced if any(call.tool == forced.tool and call.outcome is None for call in calls) else None


def _asks_for_a_step(call: Call) -> bool:
    return call.outcome is not None and call.outcome.error is not None and call.outcome.error.kind == ToolFault.budget


def _add_usage(state: RunState, turn: ModelTurn) -> RunState:
    return spend(state, turn).evolve(
        turns=state.turns + 1,
        model=turn.model,
        passed_over=turn.passed_over,
        active_ms=state.active_ms + turn.duration_ms,
        last_call=turn.usage.total if state.assignment else 0,
    )


def _reject(reply: ReplyFacts, why: str, note: str, *, keep: bool = False) -> TurnTaken:
    """Count a reply that is no outcome. `why` completes "the last one …" in the reason of a run that fails so."""
    count = reply.state.unusable_replies + 1
    state = reply.state.evolve(unusable_replies=count)
    if count < MAX_UNUSABLE_REPLIES:
        return TurnTaken(state, keep=keep, note=note)
    text = f"{count} replies in a row could not be used; the last one {why}"
    ending = Ending(status=RunStatus.failed, text=text, reason=RunFailure.model_unusable)
    return TurnTaken(state.evolve(ending=ending), keep=keep)


def _read_text(state: RunState, text: str) -> RunState:
    """Read frame and plan from the text; no format is forced on the model."""
    state = state.evolve(unusable_replies=0)
    if not text:
        return state
    if state.turns > 1:
        return state.evolve(last_finding=text[:JOURNAL_EXCERPT])
    journal = frame_journal(state.journal, state.goal, text)
    return state.evolve(plan=parse_framing(text).plan[:JOURNAL_EXCERPT], journal=journal)


# Per reply. Far fewer are ever useful, and a server refuses a workflow task that leaves 2,000 activities pending.
MAX_CALLS = 200
_BEYOND = error_outcome(
    ToolFault.too_many,
    f"not made: a reply may have {MAX_CALLS} calls; look at what these brought, and make it then if it is needed",
)

_BROKEN = "the arguments were no valid JSON object of at most 1 MiB; make the call again, whole"
_BROKEN_CUT = "the length limit cut off the arguments; make the call again, shorter, or divide it into several calls"
REPEATED = "not made: it has the id of another call in the same reply; make it again if it is wanted"


def parse_calls(state: RunState, turn: ModelTurn) -> tuple[Call, ...]:
    """Return every tool use of a reply, in the model's order.

    Steps continue from the run's last one and are never reused. A call that cannot be made, or that exceeds the limit
    of calls per reply, is settled here, with an error that the model can act on. So the allow-list holds whatever the
    prompt says (A12).
    """
    routes = {route.name: route for route in state.tools}
    calls: list[Call] = []
    step = state.step
    for block in map(unwrap_use, turn.content):
        if block.get("type") != "tool_use":
            continue
        call = _reject_call(block, turn, routes) if len(calls) < MAX_CALLS else _unmade_call(block, _BEYOND)
        if call is None:
            route = routes[block["name"]]
            is_used_up = route.takes_step and is_out_of_steps(state, step)
            call = _build_call(block, route, step + 1 if route.takes_step and not is_used_up else None)
            call = apply_verdict(call, turn.verdicts.get(call.tool_use_id))
            if is_used_up and not _is_wanted(state, call):
                used_up = f"step budget used up ({state.limits.max_steps} steps): finish with what there is"
                call = call.evolve(outcome=error_outcome(ToolFault.budget, used_up))
            elif route.takes_step and not is_used_up:
                step += 1
        calls.append(call)
    return tuple(calls)


def _is_wanted(state: RunState, call: Call) -> bool:
    """Return whether the runtime itself wants this question asked. If no step is left, it is asked without one."""
    return state.forced is not None and state.forced.asks is not None and call.tool == state.forced.tool


def _build_call(block: dict[str, Any], route: ToolRoute, step: int | None) -> Call:
    return Call(
        tool_use_id=block["id"],
        tool=route.name,
        kind=route.kind,
        effect=route.effect,
        step=step,
        arguments=block["input"],
    )


def _reject_call(block: dict[str, Any], turn: ModelTurn, routes: dict[str, ToolRoute]) -> Call | None:
    name = str(block.get("name"))
    if name not in routes:
        outcome = error_outcome(ToolFault.unknown_tool, _describe_unknown(name, routes))
    elif block["id"] in turn.repeated:
        outcome = error_outcome(ToolFault.invalid_arguments, REPEATED)
    elif block["id"] in turn.broken:
        outcome = error_outcome(
            ToolFault.broken_json,
            _BROKEN_CUT if turn.stop_reason in CUT_OFF else _BROKEN,
        )
    elif name == CALL_TOOL:
        usage = f'{CALL_TOOL} takes {{"name": the name of another tool, "arguments": the arguments of that tool}}'
        outcome = error_outcome(ToolFault.invalid_arguments, usage)
    elif block["id"] in turn.invalid_results:
        errors = turn.invalid_results[block["id"]]
        outcome = error_outcome(ToolFault.invalid_arguments, f"the result does not match its schema: {errors}")
    elif not isinstance(block.get("input"), dict):
        outcome = error_outcome(ToolFault.invalid_arguments, "the arguments must be a JSON object")
    else:
        return None
    return _unmade_call(block, outcome)


def _describe_unknown(name: str, routes: dict[str, ToolRoute]) -> str:
    listed = [route.name for route in routes.values() if not route.is_searched]
    tools = ", ".join([*listed[:MAX_LISTED_TOOLS], *(["…"] if len(listed) > MAX_LISTED_TOOLS else [])])
    near = ", ".join(_find_similar(name[:200], routes))
    nearest = f"; similar names: {near}" if near else ""
    more = f", and those that {SEARCH_TOOLS} returns" if SEARCH_TOOLS in routes else ""
    return f"there is no tool {name[:200]!r} here{nearest}; the tools are: {tools}{more}"


def _find_similar(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three similar names. `difflib` takes too long for a workflow, 0.1 s for one name of many."""
    pairs = _letter_pairs(name)
    scores = {
        other: 2 * len(pairs & known) / (len(pairs) + len(known)) for other in names if (known := _letter_pairs(other))
    }
    return [other for other in nlargest(3, scores, key=scores.__getitem__) if scores[other] >= MIN_SIMILARITY]


@lru_cache(maxsize=10_000)
def _letter_pairs(name: str) -> frozenset[str]:
    return frozenset(map("".join, pairwise(f" {name.lower()} ")))


def _unmade_call(block: dict[str, Any], outcome: ToolOutcome) -> Call:
    """Return a call that is not made."""
    return Call(
        tool_use_id=block["id"],
        tool=str(block.get("name"))[:200],
        kind=ToolKind.builtin,
        effect=Effect.read,
        step=None,
        arguments={},
        outcome=outcome,
    )


def question_in(call: Call) -> str | None:
    """Return the question of an `ask_human` call that can be made, if any."""
    text = call.arguments.get("question")
    return text if call.outcome is None and isinstance(text, str) and text.strip() else None


def was_refused(call: Call) -> bool:
    """Return whether the call ended without being made, so that no activity or child run reports it."""
    kind = call.outcome.error.kind if call.outcome and call.outcome.error else None
    if call.kind is ToolKind.builtin:
        return kind not in (None, ToolFault.subtask_failed)
    return kind in (ToolFault.denied, ToolFault.budget)

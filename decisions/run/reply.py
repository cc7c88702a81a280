"""The effect of a model's reply on the run: calls to make, an outcome, or a note that it cannot be used."""

from dataclasses import dataclass

from contracts.failures import Escalation, RunFailure, ToolFault
from contracts.run.state import Call, Ending, ForcedTool, RunState, RunStatus
from contracts.run.turn import ModelTurn
from contracts.tool import ToolOutcome, error_outcome
from decisions.builtin_tools import FINISH
from decisions.errors import IllegalMoveError
from decisions.run.call_state import artifacts_in
from decisions.run.calls import join_text_blocks, parse_calls
from decisions.run.journal import JOURNAL_EXCERPT, frame_journal, parse_framing
from decisions.run.limits import is_out_of_steps
from decisions.run.outcome import complete_out_of_time, complete_run, escalate_run

MAX_UNUSABLE_REPLIES = 3  # in a row, before the run ends `ModelUnusable`
CUT_OFF = ("max_tokens", "model_context_window_exceeded")  # stop reasons of an incomplete reply


@dataclass(frozen=True)
class TurnTaken:
    """The result of a reply: the new state, whether the conversation keeps the reply, and a note to the model."""

    state: RunState
    keep: bool = True
    note: str | None = None


def take_turn(state: RunState, turn: ModelTurn) -> TurnTaken:
    """Apply a reply to the run. A reply without a tool call ends the run, with its text as the outcome.

    Raises IllegalMoveError while calls of the previous turn are open: they would never get their results.
    """
    if state.calls:
        raise IllegalMoveError("take a reply", f"calls are open: {', '.join(call.tool_use_id for call in state.calls)}")
    state = _add_usage(state, turn)
    calls = parse_calls(state, turn)
    text = join_text_blocks(turn.content)
    if state.is_closing:
        return _take_last_turn(state, calls, text)
    state = state.model_copy(update={"forced": _keep_forced(state, calls)})
    if turn.stop_reason == "refusal":
        return TurnTaken(escalate_run(state, Escalation.model_declined, text or "the model declined"), keep=False)
    if not calls:
        return _take_text(state, turn, text)
    state = _read_text(state, text)
    is_over_budget = is_out_of_steps(state, state.step) and any(_asks_for_a_step(call) for call in calls)
    if is_over_budget and state.forced is None:
        detail = f"all {state.limits.max_steps} steps are used up, and the agent asked for one more"
        state = escalate_run(state, Escalation.step_budget, detail)
    last = max([call.step for call in calls if call.step is not None], default=state.step)
    return TurnTaken(state.model_copy(update={"calls": calls, "step": last}))


def _take_text(state: RunState, turn: ModelTurn, text: str) -> TurnTaken:
    """Apply a reply without a tool call: it is the outcome if it is complete."""
    if turn.stop_reason == "pause_turn" and turn.content:
        return TurnTaken(state)
    if turn.stop_reason in CUT_OFF:
        note = "Your reply was cut off by the length limit. Go on in smaller pieces."
        return _take_unusable(state, keep=bool(text), note=note)
    if not text:
        return _take_unusable(state, keep=False, note="Your reply was empty. Call a tool, or answer in text.")
    return TurnTaken(complete_run(_read_text(state, text), text, ()))


def _keep_forced(state: RunState, calls: tuple[Call, ...]) -> ForcedTool | None:
    """If the reply contains the forced question, keep the reason it was forced."""
    forced = state.forced
    if forced is None or forced.asks is None:
        return None
    return forced if any(call.tool == forced.tool and call.outcome is None for call in calls) else None


def _take_last_turn(state: RunState, calls: tuple[Call, ...], text: str) -> TurnTaken:
    """Take the reply as the outcome, whatever it says. No tool can be called any more, except `finish`."""
    finish = next((c for c in calls if c.tool == FINISH and isinstance(c.arguments.get("outcome"), str)), None)
    arguments = finish.arguments if finish else {}
    refused = error_outcome(ToolFault.budget, "the time of this run is used up")
    state = complete_out_of_time(state, arguments.get("outcome", "").strip() or text, artifacts_in(arguments))
    outcomes = {call.tool_use_id: ToolOutcome(result="finished") if call is finish else refused for call in calls}
    calls = tuple(
        call if call.outcome else call.model_copy(update={"step": None, "outcome": outcomes[call.tool_use_id]})
        for call in calls
    )
    return TurnTaken(state.model_copy(update={"calls": calls}), keep=bool(calls or text))


def _asks_for_a_step(call: Call) -> bool:
    return call.outcome is not None and call.outcome.error is not None and call.outcome.error.kind == ToolFault.budget


def _add_usage(state: RunState, turn: ModelTurn) -> RunState:
    cost = None if state.cost_usd is None or turn.cost_usd is None else state.cost_usd + turn.cost_usd
    return state.model_copy(
        update={
            "turns": state.turns + 1,
            "usage": state.usage + turn.usage,
            "cost_usd": cost,
            "model": turn.model,
            "passed_over": turn.passed_over,
            "active_ms": state.active_ms + turn.duration_ms,
            "last_call": turn.usage.total if state.assignment else 0,
        }
    )


def _take_unusable(state: RunState, *, keep: bool, note: str) -> TurnTaken:
    count = state.unusable_replies + 1
    state = state.model_copy(update={"unusable_replies": count})
    if count < MAX_UNUSABLE_REPLIES:
        return TurnTaken(state, keep=keep, note=note)
    text = f"{count} replies in a row were empty or cut off"
    ending = Ending(status=RunStatus.failed, text=text, reason=RunFailure.model_unusable)
    return TurnTaken(state.model_copy(update={"ending": ending}), keep=keep)


def _read_text(state: RunState, text: str) -> RunState:
    """Read frame and plan from the text; no format is forced on the model."""
    state = state.model_copy(update={"unusable_replies": 0})
    if not text:
        return state
    if state.turns > 1:
        return state.model_copy(update={"last_finding": text[:JOURNAL_EXCERPT]})
    journal = frame_journal(state.journal, state.goal, text)
    return state.model_copy(update={"plan": parse_framing(text).plan[:JOURNAL_EXCERPT], "journal": journal})

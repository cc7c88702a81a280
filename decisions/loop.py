"""The run's state machine: what to do next, and what each answer makes of the state.

A turn is one model call and the calls it asked for. A run thinks (`plan` first, `reflect` after), makes the calls
of the turn batch by batch, and thinks again, until there is an ending.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from contracts.context import ContextFull, Summary
from contracts.delegation import Spent
from contracts.failures import Escalation, RunFailure, ToolFault
from contracts.run import Call, Ending, Forced, Pending, RunState, RunStatus
from contracts.tool import ToolKind, ToolOutcome, failed
from contracts.turn import ModelTurn
from decisions.builtins import CONTROL, ESCALATE, FINISH, JOURNAL, REFRAME
from decisions.calls import calls_of, next_batch, text_of
from decisions.framing import framing
from decisions.ids import call_digest
from decisions.journal import EXCERPT, framed, kept, reframed, with_artifacts
from decisions.limits import (
    escalation,
    is_nearly_out_of_time,
    is_out_of_steps,
    is_out_of_time,
    timed_out,
    used_up,
)
from decisions.thrash import Looked, looked

MAX_UNUSABLE_REPLIES = 3  # in a row, before the run ends `ModelUnusable`
CUT_OFF = ("max_tokens", "model_context_window_exceeded")  # stop reasons of a reply that is not whole
OUTSIDE = (ToolKind.signal, ToolKind.queue)
IN_DOUBT = failed(ToolFault.in_doubt, "interrupted; may have happened")


@dataclass(frozen=True)
class Think:
    """Call the model."""


@dataclass(frozen=True)
class Act:
    """Make these calls at the same time."""

    batch: tuple[Call, ...]


@dataclass(frozen=True)
class CloseTurn:
    """Every call has its outcome: hand the results to the conversation."""


@dataclass(frozen=True)
class Rotate:
    """Continue as new: the history is long, and nothing is in flight."""


@dataclass(frozen=True)
class End:
    ending: Ending


@dataclass(frozen=True)
class Wind:
    """The time is nearly used up: the next turn is the last one, and says what there is."""


@dataclass(frozen=True)
class Listen:
    """Its user has said something more, which joins the conversation before the next model call."""


Move = Think | Act | CloseTurn | Rotate | Wind | Listen | End


def next_move(state: RunState, *, history_is_long: bool, is_spoken_to: bool = False) -> Move:
    """What the run does next. Nothing is in flight when this is asked."""
    batch = next_batch(state)
    if is_out_of_time(state) and not _takes_no_time(batch):
        return End(timed_out(state))
    if batch:
        return Act(batch)
    if state.calls:
        return CloseTurn()
    if is_spoken_to and _may_go_on(state):
        return Listen()
    if ending := state.ending or used_up(state):
        return End(ending)
    return _onward(state, history_is_long=history_is_long)


def _may_go_on(state: RunState) -> bool:
    """Whether another turn can follow: an outcome is not risked for one that no budget is left for."""
    ending = state.ending
    return not state.is_closing and used_up(state) is None and (ending is None or ending.status is RunStatus.completed)


def _takes_no_time(batch: tuple[Call, ...]) -> bool:
    """What is settled inside the workflow: an outcome that is there already is not refused for the time it took."""
    return bool(batch) and all(call.tool in (*CONTROL, *JOURNAL) for call in batch)


def _onward(state: RunState, *, history_is_long: bool) -> Move:
    if history_is_long:
        return Rotate()
    return Wind() if is_nearly_out_of_time(state) else Think()


def reopened(state: RunState) -> RunState:
    """There is more to do than was known when the outcome was given."""
    return state.model_copy(update={"ending": None})


LAST_TURN = (
    "The time for this run is used up. This is its last turn, and no tool can be called in it. Say what has been done, "
    "where the results are, and what is left to do."
)


def wound_up(state: RunState) -> RunState:
    """From here on there is one turn more (B6)."""
    return state.model_copy(update={"is_closing": True, "forced": None})


@dataclass(frozen=True)
class TurnTaken:
    """What a reply made of the run: whether it enters the conversation, and a note to the model about it."""

    state: RunState
    keep: bool = True
    note: str | None = None


def take_turn(state: RunState, turn: ModelTurn) -> TurnTaken:
    """A reply without any tool call ends the run: its text is the outcome."""
    state = _counted(state, turn)
    calls = calls_of(state, turn)
    text = text_of(turn.content)
    if state.is_closing:
        return _last_turn(state, calls, text)
    state = state.model_copy(update={"forced": _still_forced(state, calls)})
    if turn.stop_reason == "refusal":
        return TurnTaken(_escalated(state, Escalation.model_declined, text or "the model declined"), keep=False)
    if not calls:
        return _said(state, turn, text)
    state = _heard(state, text)
    is_over_budget = is_out_of_steps(state, state.step) and any(_asks_for_a_step(call) for call in calls)
    if is_over_budget and state.forced is None:
        detail = f"all {state.limits.max_steps} steps are used up, and the agent asked for one more"
        state = _escalated(state, Escalation.step_budget, detail)
    last = max([call.step for call in calls if call.step is not None], default=state.step)
    return TurnTaken(state.model_copy(update={"calls": calls, "step": last}))


def _said(state: RunState, turn: ModelTurn, text: str) -> TurnTaken:
    """A reply without any tool call: the outcome, if it is whole."""
    if turn.stop_reason == "pause_turn" and turn.content:
        return TurnTaken(state)
    if turn.stop_reason in CUT_OFF:
        note = "Your reply was cut off by the length limit. Go on in smaller pieces."
        return _unusable(state, keep=bool(text), note=note)
    if not text:
        return _unusable(state, keep=False, note="Your reply was empty. Call a tool, or answer in text.")
    return TurnTaken(_completed(_heard(state, text), text, ()))


def _still_forced(state: RunState, calls: tuple[Call, ...]) -> Forced | None:
    """A question that was to be asked, and is asked by this reply, keeps its cause."""
    forced = state.forced
    if forced is None or forced.asks is None:
        return None
    return forced if any(call.tool == forced.tool and call.outcome is None for call in calls) else None


def _last_turn(state: RunState, calls: tuple[Call, ...], text: str) -> TurnTaken:
    """Whatever it says is the outcome. It can call nothing any more, except `finish`."""
    finish = next((c for c in calls if c.tool == FINISH and isinstance(c.arguments.get("outcome"), str)), None)
    said = finish.arguments if finish else {}
    refused = failed(ToolFault.budget, "the time of this run is used up")
    state = out_of_time(state, said.get("outcome", "").strip() or text, _artifacts_in(said))
    told = {call.tool_use_id: ToolOutcome(result="finished") if call is finish else refused for call in calls}
    calls = tuple(
        call if call.outcome else call.model_copy(update={"step": None, "outcome": told[call.tool_use_id]})
        for call in calls
    )
    return TurnTaken(state.model_copy(update={"calls": calls}), keep=bool(calls or text))


def out_of_time(state: RunState, outcome: str = "", artifacts: tuple[str, ...] = ()) -> RunState:
    """A partial outcome: what the agent says, or else what is known of its work."""
    left = state.journal.current_state or state.last_finding or f"{state.step} steps taken, and nothing summed up"
    return _completed(state, outcome or left, artifacts, is_partial=True)


def _asks_for_a_step(call: Call) -> bool:
    return call.outcome is not None and call.outcome.error is not None and call.outcome.error.kind == ToolFault.budget


def _counted(state: RunState, turn: ModelTurn) -> RunState:
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


def _unusable(state: RunState, *, keep: bool, note: str) -> TurnTaken:
    count = state.unusable_replies + 1
    state = state.model_copy(update={"unusable_replies": count})
    if count < MAX_UNUSABLE_REPLIES:
        return TurnTaken(state, keep=keep, note=note)
    text = f"{count} replies in a row were empty or cut off"
    ending = Ending(status=RunStatus.failed, text=text, reason=RunFailure.model_unusable)
    return TurnTaken(state.model_copy(update={"ending": ending}), keep=keep)


def _heard(state: RunState, text: str) -> RunState:
    """Frame and plan are read from what the model says; no format is forced on it."""
    state = state.model_copy(update={"unusable_replies": 0})
    if not text:
        return state
    if state.turns > 1:
        return state.model_copy(update={"last_finding": text[:EXCERPT]})
    journal = framed(state.journal, state.goal, text)
    return state.model_copy(update={"plan": framing(text).plan[:EXCERPT], "journal": journal})


def issued(state: RunState, batch: tuple[Call, ...], now: datetime) -> RunState:
    """The calls stand as pending before anything is dispatched (A3)."""
    pending = tuple(
        Pending(step=call.step, tool=call.tool, since=now, outside=call.kind in OUTSIDE)
        for call in batch
        if call.step is not None
    )
    return state.model_copy(update={"pending": state.pending + pending, "updated_at": now})


def reissued(state: RunState, step: int, now: datetime) -> RunState:
    """The same step, one attempt more."""
    pending = tuple(
        p.model_copy(update={"attempt": p.attempt + 1, "since": now}) if p.step == step else p for p in state.pending
    )
    return state.model_copy(update={"pending": pending, "updated_at": now})


def delegated(state: RunState, spent: Spent) -> RunState:
    """What a delegation has used is settled onto the run that made it."""
    return state.model_copy(update={"delegated": state.delegated + spent})


def approved(state: RunState, call: Call) -> tuple[RunState, Call]:
    """A person has approved exactly this call, with the arguments it has now."""
    changes = {"approval": call_digest(call.tool, call.arguments)}
    return _changed(state, call, **changes), call.model_copy(update=changes)


def accepted(state: RunState, call: Call, definition: str) -> tuple[RunState, Call]:
    """A person wants exactly this call made, although its tool is defined so by now."""
    changes = {"approval": call_digest(call.tool, call.arguments), "accepts": definition}
    return _changed(state, call, **changes), call.model_copy(update=changes)


def made_again(state: RunState, call: Call) -> tuple[RunState, Call]:
    """A person decided "run again": under a new key."""
    state = _changed(state, call, generation=call.generation + 1)
    return state, next(each for each in state.calls if each.tool_use_id == call.tool_use_id)


def _changed(state: RunState, call: Call, **changes: Any) -> RunState:
    calls = state.calls
    at = next((i for i, each in enumerate(calls) if each.tool_use_id == call.tool_use_id), None)
    if at is None:
        raise AssertionError(f"{call.tool} {call.tool_use_id} is no call of this turn")
    changed = (*calls[:at], calls[at].model_copy(update=changes), *calls[at + 1 :])
    return state.model_copy(update={"calls": changed})


def settled(state: RunState, call: Call, outcome: ToolOutcome, now: datetime) -> RunState:
    """A call has its outcome, and is pending no longer."""
    artifacts = state.artifacts + tuple(a for a in outcome.artifacts if a not in state.artifacts)
    update = {
        "calls": _changed(state, call, outcome=outcome).calls,
        "artifacts": artifacts,
        "pending": tuple(p for p in state.pending if p.step != call.step),
        "journal": with_artifacts(state.journal, outcome.artifacts),
        "active_ms": state.active_ms + outcome.duration_ms,
        "updated_at": now,
    }
    return state.model_copy(update=update)


def journaled(state: RunState, call: Call, now: datetime) -> RunState:
    """Carries out one of the journal's tools."""
    journal, outcome = kept(state.journal, call.tool, call.arguments)
    return settled(state.model_copy(update={"journal": journal}), call, outcome, now)


def controlled(state: RunState, call: Call, now: datetime) -> RunState:
    """Carries out `finish`, `escalate` or `reframe`."""
    said = {key: value for key, value in call.arguments.items() if isinstance(value, str)}
    if state.ending is not None:
        return settled(state, call, failed(ToolFault.interrupted, "the run has ended"), now)
    if call.tool == FINISH:
        return _finish(state, call, said.get("outcome", ""), now)
    if call.tool == ESCALATE:
        state = _escalated(state, Escalation.asked, said.get("reason") or "the agent gave no reason")
        return settled(state, call, ToolOutcome(result="escalated"), now)
    if call.tool == REFRAME:
        return _reframe(state, call, said.get("frame", ""), now)
    raise AssertionError(f"{call.tool} is no control tool")


def _finish(state: RunState, call: Call, outcome: str, now: datetime) -> RunState:
    sibling = next((c for c in state.calls if c.outcome is not None and c.outcome.status == "error"), None)
    if sibling is not None:
        fault = failed(ToolFault.not_finished, f"not finished: {sibling.tool} failed in this turn; look at its error")
        return settled(state, call, fault, now)
    if not outcome.strip():
        fault = failed(ToolFault.invalid_arguments, "`outcome` is required: say what was achieved")
        return settled(state, call, fault, now)
    completed = _completed(state, outcome.strip(), _artifacts_in(call.arguments))
    return settled(completed, call, ToolOutcome(result="finished"), now)


def _artifacts_in(arguments: dict[str, Any]) -> tuple[str, ...]:
    named = arguments.get("artifacts")
    return tuple(a for a in named if isinstance(a, str)) if isinstance(named, list) else ()


def _reframe(state: RunState, call: Call, frame: str, now: datetime) -> RunState:
    count, most = state.reframes + 1, state.limits.max_reframes
    if count > most:
        state = _escalated(state, Escalation.reframe_budget, f"all {most} reframes are used up")
        return settled(state, call, failed(ToolFault.budget, f"reframes used up ({most})"), now)
    state = state.model_copy(update={"reframes": count, "journal": reframed(state.journal, frame)})
    return settled(state, call, ToolOutcome(result=f"reframed ({count} of {most})"), now)


def closed_turn(state: RunState) -> Looked:
    """The turn's calls have their outcomes, which go into the conversation now. Does the run go in circles?"""
    return looked(state.model_copy(update={"calls": (), "forced": None}), state.calls)


def ended(state: RunState, ending: Ending, now: datetime) -> RunState:
    return state.model_copy(update={"ending": ending, "status": ending.status, "updated_at": now})


def halted(state: RunState, in_flight: Collection[str], now: datetime) -> RunState:
    """Answers what is still open: every tool use gets its result, also when the run ends before the call.

    `in_flight` are the tool uses that may have had their effect: the record must not read as if they had not.
    """
    interrupted = failed(ToolFault.interrupted, "the run ended before this call had a result")
    return _settled_all(state, lambda call: IN_DOUBT if call.tool_use_id in in_flight else interrupted, now)


def refused_before(state: RunState, why: str, now: datetime) -> RunState:
    """The calls that were asked for are not made."""
    return _settled_all(state, lambda _: failed(ToolFault.interrupted, why), now)


def _settled_all(state: RunState, outcome_of: Callable[[Call], ToolOutcome], now: datetime) -> RunState:
    for call in state.calls:
        if call.outcome is None:
            state = settled(state, call, outcome_of(call), now)
    return state


def summarised(state: RunState, summary: Summary) -> RunState:
    """What a summary has cost."""
    cost = None if state.cost_usd is None or summary.cost_usd is None else state.cost_usd + summary.cost_usd
    changes = {
        "usage": state.usage + summary.usage,
        "cost_usd": cost,
        "active_ms": state.active_ms + summary.duration_ms,
    }
    return state.model_copy(update=changes)


def overflowed(state: RunState, full: ContextFull) -> RunState:
    """The provider takes the conversation no more, and nothing is left to try."""
    detail = f"about {full.tokens:,} tokens do not fit the window of {full.window:,}, and all recoveries are used up"
    return _escalated(state, Escalation.context, detail)


def violated(state: RunState, reason: Escalation, detail: str) -> RunState:
    """A result from outside broke the protocol: the run escalates (A5)."""
    return _escalated(state, reason, detail)


def _completed(state: RunState, outcome: str, artifacts: tuple[str, ...], *, is_partial: bool = False) -> RunState:
    found = state.artifacts + tuple(a for a in artifacts if a not in state.artifacts)
    ending = Ending(status=RunStatus.completed, text=outcome, is_partial=is_partial)
    return state.model_copy(update={"ending": ending, "artifacts": found})


def _escalated(state: RunState, reason: Escalation, detail: str) -> RunState:
    if state.ending is not None:
        return state
    return state.model_copy(update={"ending": escalation(reason, detail)})

"""The transitions of a run's state that no rule decides: what was asked, approved, read at the start, noted and spent.

Those of a call are in `call_state`, those of a reply in `reply`. Each returns the new state.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from contracts.agent import StartSnapshot
from contracts.delegation import Spent
from contracts.failures import RunFailure
from contracts.run.compaction import Recovery, Summary
from contracts.run.question import Question
from contracts.run.signals import Decision
from contracts.run.state import Ending, ForcedTool, RunState, RunStatus
from contracts.run.turn import Acceptance, ModelTurn, PolicyReview
from decisions.run.limits import limits_in_force
from decisions.run.recovery import record_recovery

MAX_STEERED_IDS = 100  # request ids of steered messages, by which a repeated one is recognized
MAX_IGNORED_NOTICES = 20  # ignored signals in the state
MAX_WATCHERS = 100  # of a run's end; any others look at it by themselves


def apply_snapshot(state: RunState, snapshot: StartSnapshot) -> RunState:
    """Take over the agent's definition. What requests and questions are bound to stays that of the first snapshot."""
    state = state.model_copy(update={"ceiling": snapshot.ceiling})  # which bounds the limits below
    changes = {
        name: getattr(snapshot, name)
        for name in (
            *("agent", "model", "definition", "tools", "workspace"),
            *("peers", "mailboxes", "sessions", "fuse_reads", "is_typed", "notify", "pace", "accept"),
        )
    }
    changes |= {
        "limits": limits_in_force(state, snapshot.limits),
        "key_id": state.key_id if state.definition else snapshot.key_id,
        "secret": state.secret or snapshot.secret,  # keeps the nonces that were sent
        "answer_keys": state.answer_keys or snapshot.answer_keys,
        "policy": state.policy if state.definition else snapshot.policy,
        "window": None,  # perhaps of another model
    }
    return state.model_copy(update=changes)


def keep_received(inherited: RunState, own: RunState) -> RunState:
    """Return the state inherited from another run, with the signals that this run has received."""
    changes = {
        "steered": (*inherited.steered, *own.steered)[-MAX_STEERED_IDS:],
        "ignored": (*inherited.ignored, *own.ignored)[-MAX_IGNORED_NOTICES:],
        "watchers": own.watchers,
        "ending": own.ending,
        "sender": own.sender,
    }
    return inherited.model_copy(update=changes)


def mark_batched(state: RunState, at: datetime | None) -> RunState:
    """Record since when the model call waits for a batch, or that it does not."""
    return state.model_copy(update={"batched_at": at})


def settle_choice(state: RunState) -> RunState:
    """Remove the first open choice: a person has made it."""
    return state.model_copy(update={"choices": state.choices[1:]})


def open_question(state: RunState, question: Question) -> RunState:
    asked = (*state.asked, question)
    return state.model_copy(update={"asked": asked, "questions": state.questions + 1, "expired": None})


def close_question(state: RunState, closed: Question, *, expired: bool) -> RunState:
    """Close a question, whose answer is taken. If it has `expired` without one, answers that come late hear so."""
    asked = tuple(question for question in state.asked if question.id != closed.id)
    return state.model_copy(update={"asked": asked, "expired": closed.id if expired else state.expired})


def drop_questions(state: RunState) -> RunState:
    """Drop the questions that a cancel interrupted."""
    return state.model_copy(update={"asked": ()})


def approve_tool(state: RunState, tool: str) -> RunState:
    """Approve all further calls of the tool, and close the questions about others that the same answer has answered."""
    by_it = [q for q in state.asked if q.tool == tool and q.answer and q.answer.decision is Decision.approve_tool]
    asked = tuple(question for question in state.asked if question not in by_it)
    return state.model_copy(update={"approved_tools": (*state.approved_tools, tool), "asked": asked})


def accept_redefinition(state: RunState, tool: str, definition: str) -> RunState:
    """Accept the tool's new definition for all further calls."""
    return state.model_copy(update={"accepted": {**state.accepted, tool: definition}})


def accept_run_policy(state: RunState, policy: str) -> RunState:
    """Take the policy in place of the one that the run began with: a person has accepted it."""
    return state.model_copy(update={"policy": policy})


def reject_definition(state: RunState, definition: str) -> RunState:
    """Keep the agent's old definition: a person rejected the new one."""
    return state.model_copy(update={"refused_definition": definition})


def mark_interrupted(state: RunState, *, interrupted: bool = True) -> RunState:
    """Record whether work was lost with a worker since the last model turn."""
    return state.model_copy(update={"interrupted": interrupted})


def learn_window(state: RunState, window: int | None) -> RunState:
    return state.model_copy(update={"window": window})


def use_recovery(state: RunState, stage: Recovery) -> RunState:
    return state.model_copy(update={"recoveries": record_recovery(state.recoveries, stage, state.turns)})


def force_tool(state: RunState, forced: ForcedTool) -> RunState:
    return state.model_copy(update={"forced": forced})


def record_failure(state: RunState, text: str, reason: RunFailure) -> RunState:
    return state.model_copy(update={"ending": Ending(status=RunStatus.failed, text=text, reason=reason)})


def restore_ending(state: RunState, ending: Ending | None) -> RunState:
    """Take back an ending that came after the run was to stop, or before another message."""
    return state.model_copy(update={"ending": ending})


def add_delegated(state: RunState, spent: Spent) -> RunState:
    """Add what a delegation used."""
    return state.model_copy(update={"delegated": state.delegated + spent})


def count_follow_up(state: RunState) -> RunState:
    return state.model_copy(update={"follow_ups": state.follow_ups + 1})


def add_reply_cost(state: RunState, reply: Summary | ModelTurn | Acceptance | PolicyReview) -> RunState:
    """Add what a summary, a check or a review used, or a reply that the run does not take."""
    cost = None if state.cost_usd is None or reply.cost_usd is None else state.cost_usd + reply.cost_usd
    changes = {
        "usage": state.usage + reply.usage,
        "cost_usd": cost,
        "active_ms": state.active_ms + reply.duration_ms,
    }
    return add_review_costs(state.model_copy(update=changes), reply.reviews if isinstance(reply, ModelTurn) else ())


def add_review_costs(state: RunState, reviews: Iterable[PolicyReview]) -> RunState:
    """Add what the reviews of calls by models used."""
    for review in reviews:
        state = add_reply_cost(state, review)
    return state


def record_steer(state: RunState, request_id: str) -> RunState:
    return state.model_copy(update={"steered": (*state.steered, request_id)[-MAX_STEERED_IDS:]})


def add_watcher(state: RunState, workflow_id: str) -> RunState:
    """Add a workflow to signal as the run ends."""
    others = tuple(watcher for watcher in state.watchers if watcher != workflow_id)
    return state.model_copy(update={"watchers": (*others, workflow_id)[-MAX_WATCHERS:]})


def remove_first_watcher(state: RunState) -> RunState:
    return state.model_copy(update={"watchers": state.watchers[1:]})


def add_notice(state: RunState, notice: str) -> RunState:
    """Note a signal that had no effect."""
    return state.model_copy(update={"ignored": (*state.ignored, notice)[-MAX_IGNORED_NOTICES:]})


def add_event(state: RunState, line: dict[str, Any]) -> RunState:
    """Number an event, and add its trace line."""
    number = state.events + 1
    return add_trace_lines(state.model_copy(update={"events": number}), [{"key": f"event:{number}", **line}])


def add_trace_lines(state: RunState, lines: Iterable[dict[str, Any]]) -> RunState:
    """Add lines that the next activity writes to the trace."""
    return state.model_copy(update={"untold": (*state.untold, *lines)})


def clear_trace_lines(state: RunState) -> RunState:
    return state.model_copy(update={"untold": ()})

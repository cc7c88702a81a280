"""The transitions of a run's state that no rule decides: what was asked, approved, read at the start, noted and spent.

Those of a call are in `call_state`, those of a reply in `reply`. Each returns the new state.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from perdure.contracts.agent import StartSnapshot
from perdure.contracts.failures import RunFailure
from perdure.contracts.run.limits import Spent
from perdure.contracts.run.signals import Decision, Question
from perdure.contracts.run.state import Ending, ForcedTool, RunState, RunStatus, Watchers
from perdure.contracts.run.turn import Acceptance, ModelTurn, PolicyReview, Recovery, Summary
from perdure.decisions.run.limits import limits_in_force
from perdure.decisions.run.recovery import record_recovery

MAX_MODEL_NAME = 100  # characters of a server's name for a model that has no price


def apply_snapshot(state: RunState, snapshot: StartSnapshot) -> RunState:
    """Take over the agent's definition. What requests and questions are bound to stays that of the first snapshot."""
    state = state.evolve(ceiling=snapshot.ceiling)  # which bounds the limits below
    if not state.definition:
        state = state.evolve(key_id=snapshot.key_id, policy=snapshot.policy, planned=snapshot.planned)
    return state.evolve(
        agent=snapshot.agent,
        model=snapshot.model,
        definition=snapshot.definition,
        tools=snapshot.tools,
        workspace=snapshot.workspace,
        peers=snapshot.peers,
        mailboxes=snapshot.mailboxes,
        sessions=snapshot.sessions,
        fuse_reads=snapshot.fuse_reads,
        is_typed=snapshot.is_typed,
        pace=snapshot.pace,
        accept=snapshot.accept,
        notify=() if state.quiet else snapshot.notify,
        limits=limits_in_force(state, snapshot.limits),
        secret=state.secret or snapshot.secret,  # keeps the nonces that were sent
        answer_keys=state.answer_keys or snapshot.answer_keys,
        window=None,  # perhaps of another model
        account=state.account or snapshot.account,
        place=state.place or snapshot.place,
        places=state.places or snapshot.places,
    )


def keep_received(inherited: RunState, own: RunState) -> RunState:
    """Return the state inherited from another run, with the signals that this run has received."""
    return inherited.evolve(
        steered=inherited.steered.add(*own.steered),
        ignored=inherited.ignored.add(*own.ignored),
        watchers=own.watchers,
        ending=own.ending,
        sender=own.sender,
    )


def settle_choice(state: RunState) -> RunState:
    """Remove the first open choice: a person has made it."""
    return state.evolve(choices=state.choices[1:])


def open_question(state: RunState, question: Question) -> RunState:
    asked = (*state.asked, question)
    return state.evolve(asked=asked, questions=state.questions + 1, expired=None)


def close_question(state: RunState, closed: Question, *, expired: bool) -> RunState:
    """Close a question, whose answer is taken. If it has `expired` without one, answers that come late hear so."""
    asked = tuple(question for question in state.asked if question.id != closed.id)
    return state.evolve(asked=asked, expired=closed.id if expired else state.expired)


def drop_questions(state: RunState) -> RunState:
    """Drop the questions that a cancel interrupted."""
    return state.evolve(asked=())


def approve_tool(state: RunState, tool: str) -> RunState:
    """Approve all further calls of the tool, and close the questions about others that the same answer has answered."""
    by_it = [q for q in state.asked if q.tool == tool and q.answer and q.answer.decision is Decision.approve_tool]
    asked = tuple(question for question in state.asked if question not in by_it)
    return state.evolve(approved_tools=(*state.approved_tools, tool), asked=asked)


def accept_redefinition(state: RunState, tool: str, definition: str) -> RunState:
    """Accept the tool's new definition for all further calls."""
    return state.evolve(accepted={**state.accepted, tool: definition})


def accept_run_policy(state: RunState, policy: str) -> RunState:
    """Take the policy in place of the one that the run began with: a person has accepted it."""
    return state.evolve(policy=policy)


def reject_definition(state: RunState, definition: str) -> RunState:
    """Keep the agent's old definition: a person rejected the new one."""
    return state.evolve(refused_definition=definition)


def mark_interrupted(state: RunState, *, interrupted: bool = True) -> RunState:
    """Record whether work was lost with a worker since the last model turn."""
    return state.evolve(interrupted=interrupted)


def learn_window(state: RunState, window: int | None) -> RunState:
    return state.evolve(window=window)


def use_recovery(state: RunState, stage: Recovery) -> RunState:
    return state.evolve(recoveries=record_recovery(state.recoveries, stage, state.turns))


def force_tool(state: RunState, forced: ForcedTool) -> RunState:
    return state.evolve(forced=forced)


def record_failure(state: RunState, text: str, reason: RunFailure) -> RunState:
    return state.evolve(ending=Ending(status=RunStatus.failed, text=text, reason=reason))


def restore_ending(state: RunState, ending: Ending | None) -> RunState:
    """Take back an ending that came after the run was to stop, or before another message."""
    return state.evolve(ending=ending)


def add_delegated(state: RunState, spent: Spent) -> RunState:
    """Add what a delegation used."""
    return state.evolve(delegated=state.delegated + spent)


def spend(state: RunState, reply: Summary | ModelTurn | Acceptance | PolicyReview) -> RunState:
    """Add usage and cost. Without a price, the tokens of the model are kept beside the known cost."""
    spent = state.evolve(usage=state.usage + reply.usage)
    known = state.known_usd if state.cost_usd is None else state.cost_usd
    if reply.cost_usd is None:
        return spent.evolve(cost_usd=None, known_usd=known, unpriced=add_unpriced(state.unpriced, reply))
    if state.cost_usd is None:
        return spent.evolve(known_usd=known + reply.cost_usd)
    return spent.evolve(cost_usd=known + reply.cost_usd)


def add_unpriced(unpriced: Mapping[str, int], reply: Summary | ModelTurn | Acceptance | PolicyReview) -> dict[str, int]:
    """Add the tokens of a reply whose model has no known price, by the model."""
    model = reply.model[:MAX_MODEL_NAME] or "a model"  # a summary that is of no use names none
    return {**unpriced, model: unpriced.get(model, 0) + reply.usage.total}


def add_reply_cost(state: RunState, reply: Summary | ModelTurn | Acceptance | PolicyReview) -> RunState:
    """Add what a summary, a check or a review used, or a reply that the run does not take."""
    return add_review_costs(
        spend(state, reply).evolve(active_ms=state.active_ms + reply.duration_ms),
        reply.reviews if isinstance(reply, ModelTurn) else (),
    )


def add_review_costs(state: RunState, reviews: Iterable[PolicyReview]) -> RunState:
    """Add what the reviews of calls by models used."""
    for review in reviews:
        state = add_reply_cost(state, review)
    return state


def record_steer(state: RunState, request_id: str) -> RunState:
    return state.evolve(steered=state.steered.add(request_id))


def add_watcher(state: RunState, workflow_id: str) -> RunState:
    """Add a workflow to signal as the run ends."""
    others = (watcher for watcher in state.watchers if watcher != workflow_id)
    return state.evolve(watchers=Watchers(others).add(workflow_id))


def remove_first_watcher(state: RunState) -> RunState:
    return state.evolve(watchers=Watchers(state.watchers[1:]))


def add_notice(state: RunState, notice: str) -> RunState:
    """Note a signal that had no effect."""
    return state.evolve(ignored=state.ignored.add(notice))


def add_event(state: RunState, line: dict[str, Any]) -> RunState:
    """Number an event, and add its trace line."""
    number = state.events + 1
    return add_trace_lines(state.evolve(events=number), [{"key": f"event:{number}", **line}])


def add_trace_lines(state: RunState, lines: Iterable[dict[str, Any]]) -> RunState:
    """Add lines that the next activity writes to the trace."""
    return state.evolve(pending_trace=(*state.pending_trace, *lines))


def clear_trace_lines(state: RunState) -> RunState:
    return state.evolve(pending_trace=())

"""The search attributes of a run.

An upsert is an event in history, so they change with the run's status and not with each step. A run sets none that its
start has set.
"""

from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributePair, SearchAttributeUpdate, TypedSearchAttributes

from activities.telemetry.attributes import (
    AGENT_STATUS,
    CONVERSATION_ID,
    COST_USD,
    KEYS,
    PENDING_TOOLS,
    WAITING_FOR,
    format_keyword,
    list_begin_pairs,
    of_start,
)
from contracts.followup import FollowUpState, FollowUpStatus
from contracts.model_settings import Pace
from contracts.run.events import StartPayload
from contracts.run.question import Question
from contracts.run.state import RunState, RunStatus
from decisions.followup import state as followup
from decisions.followup import view
from decisions.run.limits import total_spent
from decisions.run.question import TEXTUAL
from decisions.text.formatting import waiting_for_people
from workflows.interceptors import is_confidential, is_unsearchable

UNSEARCHABLE = "without-search-attributes"  # the patch of runs that set none


def of_run(state: RunState) -> TypedSearchAttributes:
    """Return the attributes of a run in this state; those that do not apply are left out."""
    pairs = list_begin_pairs(state.agent, state.conversation_id, state.status, state.step)
    if questions := state.open_questions:
        pairs.append(SearchAttributePair(WAITING_FOR, _format_waiting_for(questions)))
    elif state.pace is Pace.batch and state.status is RunStatus.running:  # and so once, not for each batch
        pairs.append(SearchAttributePair(WAITING_FOR, "batches of model calls"))
    outside = [f"{p.tool}:{p.step}" for p in state.pending if p.outside]
    if outside:
        pairs.append(SearchAttributePair(PENDING_TOOLS, [format_keyword(tool) for tool in outside[:20]]))
    if cost := total_spent(state).usd:
        pairs.append(SearchAttributePair(COST_USD, cost))
    return TypedSearchAttributes(pairs)


class ShownAttributes:
    """The attributes that a workflow has set. It sets none if its namespace has none: unknown ones would stop the run.

    Create it before the workflow's first command: a patch then records the decision at the start of the history. So it
    holds on workers that are configured otherwise.
    """

    def __init__(self) -> None:
        self._shown: TypedSearchAttributes = workflow.info().typed_search_attributes
        may_be_unsearchable = is_unsearchable() or workflow.unsafe.is_replaying()
        self._is_unsearchable = may_be_unsearchable and workflow.patched(UNSEARCHABLE)

    def show_once(self, key: SearchAttributeKey[str], value: str) -> None:
        """Set the one attribute of a workflow that sets no others, unless an earlier execution has."""
        if self._shown.get(key) is None:
            self.update(TypedSearchAttributes([SearchAttributePair(key, value)]))

    def of_child(self, payload: StartPayload) -> TypedSearchAttributes | None:
        """Return what the start of a child run sets."""
        return None if self._is_unsearchable else of_start(payload)

    def update(self, new: TypedSearchAttributes) -> None:
        """Set what has changed, which costs one event."""
        if (updates := _updates_between(self._shown, new)) and not self._is_unsearchable:
            workflow.upsert_search_attributes(updates)
        self._shown = new


def _updates_between(shown: TypedSearchAttributes, new: TypedSearchAttributes) -> list[SearchAttributeUpdate[Any]]:
    changed: list[SearchAttributeUpdate[Any]] = []
    for key in KEYS:
        value = new.get(key)
        if value is None and shown.get(key) is not None:
            changed.append(key.value_unset())
        elif value is not None and value != shown.get(key):
            changed.append(key.value_set(value))
    return changed


_ENDS = {
    FollowUpStatus.resolved: RunStatus.completed,
    FollowUpStatus.failed: RunStatus.failed,
    FollowUpStatus.cancelled: RunStatus.cancelled,
}


def of_follow_up(state: FollowUpState) -> TypedSearchAttributes:
    """Return the attributes of a follow-up, with the statuses of runs, among which it is listed."""
    waits = RunStatus.waiting_on_human if followup.open_prompts(state) else RunStatus.waiting_on_tool
    status = _ENDS.get(state.state, waits if state.tasks else RunStatus.queued)
    pairs: list[SearchAttributePair[Any]] = [
        SearchAttributePair(AGENT_STATUS, status.value),
        SearchAttributePair(CONVERSATION_ID, format_keyword(state.definition.resume_target.session_id)),
    ]
    if about := view.follow_up_waiting_for(state, is_confidential=is_confidential()):
        pairs.append(SearchAttributePair(WAITING_FOR, about))
    return TypedSearchAttributes(pairs)


def _format_waiting_for(questions: Sequence[Question]) -> str:
    """Return the text of `WaitingFor`, without a question's own text if the run is encrypted."""
    if is_confidential() and any(question.kind in TEXTUAL for question in questions):
        return "human: a question" if len(questions) == 1 else f"human: {len(questions)} questions"
    return waiting_for_people(questions)

"""The search attributes of a run.

An upsert is an event in history, so they change with the run's status and not with each step. A run sets none that its
start has set.
"""

from collections.abc import Callable, Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributePair, SearchAttributeUpdate, TypedSearchAttributes

from perdure.activities.telemetry.attributes import (
    COST_USD,
    KEYS,
    PENDING_TOOLS,
    WAITING_FOR,
    format_keyword,
    list_begin_pairs,
    of_start,
)
from perdure.contracts.model_settings import Pace
from perdure.contracts.run.events import StartPayload
from perdure.contracts.run.signals import Question
from perdure.contracts.run.state import RunState, RunStatus
from perdure.decisions.run.limits import total_spent
from perdure.decisions.run.question import QUESTIONS
from perdure.decisions.text.formatting import truncate, waiting_for_people
from perdure.workflows.interceptors import is_confidential, is_unsearchable

UNSEARCHABLE = "without-search-attributes"  # the patch of runs that set none


def of_run(state: RunState, *, is_confidential: bool) -> TypedSearchAttributes:
    """Return the attributes of a run in this state; those that do not apply are left out."""
    pairs = list_begin_pairs(state.agent, state.conversation_id, state.status, state.step)
    if questions := state.open_questions:
        pairs.append(SearchAttributePair(WAITING_FOR, _format_waiting_for(questions, is_confidential=is_confidential)))
    elif task := next(iter(state.open_tasks.values()), None):
        named = "a task" if is_confidential else f"task {truncate(task.id, 80)} of server {task.server}"
        pairs.append(SearchAttributePair(WAITING_FOR, named))
    elif state.pace is Pace.batch and state.status is RunStatus.running:  # and so once, not for each batch
        pairs.append(SearchAttributePair(WAITING_FOR, "batches of model calls"))
    outside = [f"{p.tool}:{p.step}" for p in state.pending if p.outside or p.step in state.open_tasks]
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
            self.update(lambda _: TypedSearchAttributes([SearchAttributePair(key, value)]))

    def of_child(self, payload: StartPayload) -> TypedSearchAttributes | None:
        """Return what the start of a child run sets."""
        return None if self._is_unsearchable else of_start(payload)

    def update(self, attributes_for: Callable[[bool], TypedSearchAttributes]) -> None:
        """Set what has changed, which costs one event. The attributes are given for a run that is encrypted or not.

        Only the values depend on that, never whether something has changed: encryption may be switched on or off while
        a run waits, and its replay must make the same events.
        """
        plain, hidden = attributes_for(False), attributes_for(True)
        changed = [key for key in KEYS if self._shown.get(key) not in (plain.get(key), hidden.get(key))]
        if changed and not self._is_unsearchable:
            new = hidden if is_confidential() else plain
            workflow.upsert_search_attributes([_update_of(key, new.get(key)) for key in changed])
        self._shown = plain


def _update_of(key: SearchAttributeKey[Any], value: Any) -> SearchAttributeUpdate[Any]:
    return key.value_unset() if value is None else key.value_set(value)


def _format_waiting_for(questions: Sequence[Question], *, is_confidential: bool) -> str:
    """Return the text of `WaitingFor`, without a question's own text if the run is encrypted."""
    if is_confidential and any(QUESTIONS[question.kind].is_textual for question in questions):
        return "human: a question" if len(questions) == 1 else f"human: {len(questions)} questions"
    return waiting_for_people(questions)

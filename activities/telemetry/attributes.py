"""The search attributes of runs, by name and type. People list and filter by them; workflows set them."""

from typing import Any

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from perdure.contracts.agent import DEFAULT_AGENT
from perdure.contracts.run.events import StartPayload
from perdure.contracts.run.state import RunStatus

AGENT_NAME = SearchAttributeKey.for_keyword("AgentName")
AGENT_STATUS = SearchAttributeKey.for_keyword("AgentStatus")  # a `RunStatus`, also of follow-ups
WAITING_FOR = SearchAttributeKey.for_keyword("WaitingFor")  # the open question: `human: approve X`, `human: asks: …`
AGENT_STEP = SearchAttributeKey.for_int("AgentStep")  # tool calls so far
CONVERSATION_ID = SearchAttributeKey.for_keyword("ConversationId")  # as given at the start, or of the run's lane
PENDING_TOOLS = SearchAttributeKey.for_keyword_list("PendingTools")  # tools with an awaited result: `tool:step`
COST_USD = SearchAttributeKey.for_float("CostUsd")  # delegated runs included

KEYS: tuple[SearchAttributeKey[Any], ...] = (
    AGENT_NAME,
    AGENT_STATUS,
    WAITING_FOR,
    AGENT_STEP,
    CONVERSATION_ID,
    PENDING_TOOLS,
    COST_USD,
)

DRY_RUN = "DryRun"  # a memo of dry runs, not an attribute: no list is filtered by it
FAILED_SUBTASKS = "FailedSubtasks"  # a memo of runs whose subtasks failed
MAX_CHARACTERS = 200  # characters of a value: the server ends a run that sets one over 2 KiB

# The server's own.
SCHEDULED_BY = SearchAttributeKey.for_keyword("TemporalScheduledById")
REPORTED_PROBLEMS = SearchAttributeKey.for_keyword_list("TemporalReportedProblems")
PAUSE_INFO = SearchAttributeKey.for_keyword_list("TemporalPauseInfo")  # set while an activity is paused


def format_keyword(text: str) -> str:
    """Return one line of a name or id, with nothing escaped, so that a search finds it."""
    return " ".join(text.split())[:MAX_CHARACTERS]


def list_begin_pairs(
    agent: str | None, conversation_id: str | None, status: RunStatus = RunStatus.running, step: int = 0
) -> list[SearchAttributePair[Any]]:
    """Return the attributes that a run has when it begins to work. At its start they are free, later an event."""
    pairs: list[SearchAttributePair[Any]] = [
        SearchAttributePair(AGENT_NAME, format_keyword(agent or DEFAULT_AGENT)),
        SearchAttributePair(AGENT_STATUS, status.value),
        SearchAttributePair(AGENT_STEP, step),
    ]
    if conversation_id:
        pairs.append(SearchAttributePair(CONVERSATION_ID, format_keyword(conversation_id)))
    return pairs


def of_start(payload: StartPayload) -> TypedSearchAttributes:
    """Return the attributes that the start of a run sets, so that the run need not."""
    return TypedSearchAttributes(list_begin_pairs(payload.agent, payload.conversation_id))

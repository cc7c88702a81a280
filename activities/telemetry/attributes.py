"""The search attributes of runs, by name and type. People list and filter by them; workflows set them."""

from typing import Any

from temporalio.common import SearchAttributeKey

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

REPORTED_PROBLEMS = SearchAttributeKey.for_keyword_list("TemporalReportedProblems")  # the server's own

"""The search attributes of runs, by name and type: what a person can list and filter by. Workflows set them."""

from typing import Any

from temporalio.common import SearchAttributeKey

AGENT_NAME = SearchAttributeKey.for_keyword("AgentName")
AGENT_STATUS = SearchAttributeKey.for_keyword("AgentStatus")
WAITING_FOR = SearchAttributeKey.for_keyword("WaitingFor")
AGENT_STEP = SearchAttributeKey.for_int("AgentStep")
CONVERSATION_ID = SearchAttributeKey.for_keyword("ConversationId")
PENDING_TOOLS = SearchAttributeKey.for_keyword_list("PendingTools")
COST_USD = SearchAttributeKey.for_float("CostUsd")

KEYS: tuple[SearchAttributeKey[Any], ...] = (
    AGENT_NAME,
    AGENT_STATUS,
    WAITING_FOR,
    AGENT_STEP,
    CONVERSATION_ID,
    PENDING_TOOLS,
    COST_USD,
)

PROBLEMS = SearchAttributeKey.for_keyword_list("TemporalReportedProblems")  # the server's own

"""The search attributes of runs, by name and type: what a person can list and filter by. Workflows set them."""

from typing import Any

from temporalio.common import SearchAttributeKey

AGENT_NAME = SearchAttributeKey.for_keyword("AgentName")  # whose run it is
AGENT_STATUS = SearchAttributeKey.for_keyword("AgentStatus")  # a `RunStatus`, of follow-ups too
WAITING_FOR = SearchAttributeKey.for_keyword("WaitingFor")  # the open question: `human: approve X`, `human: asks: …`
AGENT_STEP = SearchAttributeKey.for_int("AgentStep")  # tool calls so far
CONVERSATION_ID = SearchAttributeKey.for_keyword("ConversationId")  # that it is a turn of, or was given
PENDING_TOOLS = SearchAttributeKey.for_keyword_list("PendingTools")  # whose results are awaited: `tool:step`
COST_USD = SearchAttributeKey.for_float("CostUsd")  # with all that it delegated

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

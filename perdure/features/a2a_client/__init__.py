"""Agents elsewhere as tools: the tool kind `a2a`, whose calls are tasks of A2A.

connection  requests to an agent, and its errors
tasks       a task as a run sees it: its questions, its outcome
tool        the tool kind `a2a`
"""

from perdure.registry import Feature

FEATURE = Feature(tool_kinds={"a2a": "perdure.features.a2a_client.tool:open_agent_tool"})

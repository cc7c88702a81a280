"""What a tool outside is asked: the same on every attempt of a call, whichever way it goes."""

from contracts.events import ToolRequestEvent, ToolRequestPayload

PREFIX = "agentic.tool_request."  # what the type of a request begins with, and then names the tool


def request_event(payload: ToolRequestPayload, key: str) -> ToolRequestEvent:
    return ToolRequestEvent(type=f"{PREFIX}{payload.tool}", payload=payload, dedupe_key=key)

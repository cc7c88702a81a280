"""What a tool outside is asked: the same on every attempt of a call, whichever way it goes."""

from contracts.run.events import ToolRequestEvent, ToolRequestPayload
from contracts.run.state import Call, Pending, RunState
from contracts.tool import ToolKind
from decisions.ids import request_key, request_nonce
from decisions.run.resume import origin_of

PREFIX = "agentic.tool_request."  # what the type of a request begins with, and then names the tool


def request_event(payload: ToolRequestPayload, key: str, nonce: str | None = None) -> ToolRequestEvent:
    return ToolRequestEvent(type=f"{PREFIX}{payload.tool}", payload=payload, dedupe_key=key, nonce=nonce)


def nonce_of(state: RunState, call: Call) -> str | None:
    """Return what the result of this call must bring back at the gateway, the same on every attempt of it.

    None if the result does not come from outside by itself, or if the run has no secret to derive it from.
    """
    if call.kind is not ToolKind.signal or not state.secret or call.step is None:
        return None
    origin = origin_of(state, call.step)
    key = request_key(origin.run_id if origin else state.run_id, call.step, call.generation)
    return request_nonce(state.secret, key)


def readable_nonce(state: RunState, pending: Pending) -> str | None:
    """Return the nonce of a request that is sent nowhere: the program that does the work reads it from the run."""
    route = next((route for route in state.tools if route.name == pending.tool), None)
    call = next((call for call in state.calls if call.step == pending.step), None)
    return None if call is None or route is None or route.is_posted else nonce_of(state, call)

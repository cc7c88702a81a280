"""The request to a tool outside: the same on every attempt of a call, by every transport."""

from perdure.contracts.run.events import ToolRequestEvent, ToolRequestPayload
from perdure.contracts.run.state import Call, Pending, RunState
from perdure.contracts.tool import ToolKind
from perdure.decisions.ids import request_key, request_nonce
from perdure.decisions.run.resume import origin_of

REQUEST_TYPE_PREFIX = "agentic.tool_request."  # of a request's type, followed by the tool's name


def request_event(payload: ToolRequestPayload, key: str, nonce: str | None = None) -> ToolRequestEvent:
    return ToolRequestEvent(type=f"{REQUEST_TYPE_PREFIX}{payload.tool}", payload=payload, dedupe_key=key, nonce=nonce)


def nonce_of(state: RunState, call: Call) -> str | None:
    """Return the nonce that the call's result must carry at the gateway: the same on every attempt.

    None if the result does not arrive as a signal, or if the run has no secret to derive it from.
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

"""The kind `signal`: the request is sent out, and the result arrives as the signal `tool_result`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from activities.tools.http import post_event, to_request_event
from activities.tools.interface import CallContext
from contracts.agent import ToolSchema
from contracts.failures import ToolFault
from contracts.tool import ToolOutcome, ToolRoute, error_outcome

HAND_OUT_TIMEOUT = 30.0  # seconds; the route's own timeout is how long the run waits for the result


@dataclass(eq=False, repr=False)
class SignalTool:
    """A tool whose result arrives by signal. The request is POSTed to `url`, if any, else read from the run."""

    route: ToolRoute
    schema: ToolSchema
    url: str | None
    client: httpx.AsyncClient
    headers: Mapping[str, str] = field(default_factory=dict)

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:
        """Send the request. The outcome only reports whether that worked."""
        if self.url is None:
            return ToolOutcome(result="waiting for the result")
        event = to_request_event(self.route.name, arguments, context)
        answer = await post_event(self.client, self.url, event, HAND_OUT_TIMEOUT, self.headers)
        if not 200 <= answer.status < 300:
            return error_outcome(ToolFault.http_error, f"{answer.status} from {self.route.name}: {answer.excerpt()}")
        return ToolOutcome(result="handed out")

"""The kind `http`: the tool request event is POSTed, and the answer is the result."""

import asyncio
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httpx

from activities.retry_after import retry_after
from activities.toolkit import CallContext, TransientFailure
from contracts.agent import ToolSchema
from contracts.events import ToolRequestEvent, ToolRequestPayload
from contracts.failures import ToolFault
from contracts.strict_json import read_json
from contracts.tool import ToolOutcome, ToolRoute, failed
from decisions.requests import request_event

PASSING = frozenset({408, 425, 429})  # and all of 5xx
MOST_BYTES = 64 * 1024 * 1024  # of an answer


def asked(tool: str, arguments: dict[str, Any], context: CallContext) -> ToolRequestEvent:
    """What is sent for a call that a worker makes."""
    payload = ToolRequestPayload(
        run_id=context.run_id,
        step=context.step,
        tool=tool,
        tool_payload=arguments,
        requested_at=context.requested_at,
    )
    return request_event(payload, context.idempotency_key, context.nonce)


class HttpTool:
    """2xx is the result (JSON or text); timeouts, refused connections, 408, 425, 429 and 5xx pass; other 4xx go
    to the model.
    """

    def __init__(self, route: ToolRoute, schema: ToolSchema, url: str, client: httpx.AsyncClient) -> None:
        self.route = route
        self.schema = schema
        self._url = url
        self._client = client

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:
        event = asked(self.route.name, arguments, context)
        status, content_type, body = await post(self._client, self._url, event, self.route.timeout.total_seconds())
        if status is None:
            return failed(ToolFault.too_large, f"the answer is larger than {MOST_BYTES:,} bytes")
        if not 200 <= status < 300:
            return failed(
                ToolFault.http_error, f"{status} from {self.route.name}: {body[:2000].decode(errors='replace')}"
            )
        if "json" in content_type:
            with suppress(ValueError):
                return ToolOutcome(result=read_json(bytes(body)))
        return ToolOutcome(result=body.decode(errors="replace"))


async def post(
    client: httpx.AsyncClient, url: str, event: ToolRequestEvent, timeout: float
) -> tuple[int | None, str, bytes]:
    """Status, content type and body; status None where the body is over the limit. Raises TransientFailure."""
    headers = {"idempotency-key": in_ascii(event.dedupe_key), "content-type": "application/json"}
    tool = event.payload.tool
    body = bytearray()
    try:
        async with (
            asyncio.timeout(timeout),  # of the whole call; httpx counts from one byte to the next
            client.stream("POST", url, content=event.model_dump_json(), headers=headers, timeout=timeout) as response,
        ):
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MOST_BYTES:
                    return None, "", b""
    except (TimeoutError, httpx.TimeoutException) as error:
        raise TransientFailure(ToolFault.timeout, f"{tool} did not answer within {timeout:g} s") from error
    except httpx.HTTPError as error:
        raise TransientFailure(ToolFault.unreachable, f"{tool} cannot be reached: {error}") from error
    if response.status_code in PASSING or response.status_code >= 500:
        said = bytes(body[:2000]).decode(errors="replace")
        raise TransientFailure(
            ToolFault.http_error, f"{response.status_code} from {tool}: {said}", retry_after(response.headers)
        )
    return response.status_code, response.headers.get("content-type", ""), bytes(body)


def in_ascii(key: str) -> str:
    """As a header takes it: percent-encoded, where a run's id has other letters."""
    return key if key.isascii() else quote(key, safe="", errors="surrogatepass")

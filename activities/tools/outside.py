"""Tools outside of the worker: over HTTP (`http`), in another worker (`queue`), and by a signal (`signal`)."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import httpx
from temporalio import activity
from temporalio.client import Client

from perdure.activities.effects.attempts import heartbeating
from perdure.activities.http import IDENTITY, BodyEncodingError, decode_pieces, retry_after
from perdure.activities.media.check import media_type_of
from perdure.activities.media.store import ResultFiles
from perdure.activities.project import Project
from perdure.activities.security import redact_model
from perdure.activities.tools.interface import CallContext, TransientToolError
from perdure.activities.tools.outcome import SMALL_BYTES, fit_result, take_share
from perdure.contracts.agent import ToolSchema
from perdure.contracts.failures import ToolFault
from perdure.contracts.models import replace_lone_escapes
from perdure.contracts.run.events import ToolRequestEvent, ToolRequestPayload
from perdure.contracts.strict_input import parse_strict_json
from perdure.contracts.tool import MAX_RESULT_BYTES, LargeResult, ToolOutcome, ToolRoute, error_outcome
from perdure.decisions.ids import run_id_of_workflow
from perdure.decisions.tool_requests import request_event

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
MAX_EXCERPT_BYTES = 2000  # of an error's body
TRANSIENT_STATUSES = frozenset({408, 425, 429})  # and all of 5xx


def to_request_event(tool: str, arguments: dict[str, Any], context: CallContext) -> ToolRequestEvent:
    """Return the request event of a call."""
    payload = ToolRequestPayload(
        run_id=context.run_id,
        step=context.step,
        tool=tool,
        tool_payload=arguments,
        requested_at=context.requested_at,
    )
    return request_event(payload, context.idempotency_key, context.nonce)


@dataclass(eq=False, repr=False)
class HttpTool:
    """A tool at a URL. A 2xx response is the result: JSON, text, or an image or a PDF, which the model sees.

    Timeouts, refused connections, 408, 425, 429 and 5xx are transient; the model sees any other status.
    """

    route: ToolRoute
    schema: ToolSchema
    url: str
    client: httpx.AsyncClient
    headers: Mapping[str, str] = field(default_factory=dict)

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:
        event = to_request_event(self.route.name, arguments, context)
        answer = await post_event(self.client, self.url, event, self.route.timeout.total_seconds(), self.headers)
        if refusal := answer.to_failure(self.route.name):
            return refusal
        if (kind := media_type_of(answer.body)) and len(answer.body) <= MAX_RESULT_BYTES:
            kept = ResultFiles(f"{self.route.name}-{context.step:02}", context.workspace, context.store)
            return await asyncio.to_thread(kept.to_outcome, kind, answer.body)
        if len(answer.body) <= SMALL_BYTES:
            return answer.to_outcome()
        return await asyncio.to_thread(answer.to_outcome)  # parsing megabytes would block every other run


@dataclass(frozen=True)
class HttpAnswer:
    """A response of at most `MAX_RESULT_BYTES` + 1 bytes. `unreadable` is the reason if its body cannot be decoded."""

    status: int
    content_type: str
    body: bytes
    unreadable: str = ""

    def to_failure(self, tool: str) -> ToolOutcome | None:
        """Return the error outcome of an unsuccessful or unreadable response."""
        if not 200 <= self.status < 300:
            return error_outcome(ToolFault.http_error, f"{self.status} from {tool}: {self.excerpt()}")
        if self.unreadable:
            message = f"the call was made, but the answer of {tool} cannot be read: {self.unreadable}"
            return error_outcome(ToolFault.http_error, message)
        return None

    def to_outcome(self) -> ToolOutcome:
        if "json" in self.content_type and len(self.body) <= MAX_RESULT_BYTES:
            with suppress(ValueError):
                return ToolOutcome(result=parse_strict_json(replace_lone_escapes(self.body.decode())))
        return ToolOutcome(result=self.body.decode(errors="replace"))

    def excerpt(self) -> str:
        return self.unreadable or self.body[:MAX_EXCERPT_BYTES].decode(errors="replace")


async def post_event(
    client: httpx.AsyncClient,
    url: str,
    event: ToolRequestEvent,
    timeout: float,
    headers: Mapping[str, str],
) -> HttpAnswer:
    """POST the event to `url`. Raises TransientToolError if the call may be retried."""
    keyed = {**headers, **key_header(event.dedupe_key)}
    return await post_json(client, url, event.payload.tool, event.model_dump_json(), timeout, keyed)


async def post_json(  # noqa: PLR0913 - the parts of one request
    client: httpx.AsyncClient,
    url: str,
    name: str,
    body: str,
    timeout: float,
    headers: Mapping[str, str],
    limit: int = MAX_RESULT_BYTES,
) -> HttpAnswer:
    """POST to `url`, without following redirects. Without a `limit`, no result is read, and the start of an error.

    Raises TransientToolError, with the receiver's `name`, if the call may be retried, and httpx.InvalidURL.
    """
    try:
        async with (
            asyncio.timeout(timeout),  # of the whole call; httpx's is from one byte to the next
            client.stream(
                "POST",
                url,
                content=body,
                headers={**headers, "content-type": "application/json", **IDENTITY},
                timeout=timeout,
                follow_redirects=False,  # the headers are for this host only
            ) as response,
        ):
            answer = await _read_answer(response, limit)
    except (TimeoutError, httpx.TimeoutException) as error:
        raise TransientToolError(ToolFault.timeout, f"{name} did not answer within {timeout:g} s") from error
    except httpx.HTTPError as error:
        reason = str(error) or "the connection broke"  # a reset has no text
        raise TransientToolError(ToolFault.unreachable, f"{name} cannot be reached: {reason}") from error
    if answer.status in TRANSIENT_STATUSES or answer.status >= 500:
        message = f"{answer.status} from {name}: {answer.excerpt()}"
        raise TransientToolError(ToolFault.http_error, message, retry_after(response.headers))
    return answer


async def _read_answer(response: httpx.Response, limit: int) -> HttpAnswer:
    """Read the response. The part beyond `SMALL_BYTES` waits for a share of the worker's memory."""
    content_type = response.headers.get("content-type", "")
    body = bytearray()
    if not limit and response.is_success:
        return HttpAnswer(response.status_code, content_type, b"")
    try:
        async for piece in decode_pieces(response.headers.get("content-encoding", ""), response.aiter_raw()):
            body += piece
            if len(body) > SMALL_BYTES:
                await take_share()
            if len(body) > (limit or MAX_EXCERPT_BYTES):
                break
    except BodyEncodingError as error:
        return HttpAnswer(response.status_code, content_type, b"", str(error))
    return HttpAnswer(response.status_code, content_type, bytes(body[: MAX_RESULT_BYTES + 1]))


def key_header(key: str) -> dict[str, str]:
    """Return the header of an idempotency key: percent-encoded if it is not ASCII."""
    return {"idempotency-key": key if key.isascii() else quote(key, safe="", errors="surrogatepass")}


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


@dataclass(eq=False, repr=False)
class QueueTool:
    """Offers the tool; the workflow makes its calls."""

    route: ToolRoute
    schema: ToolSchema

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:  # noqa: ARG002 - a tool's
        raise AssertionError(f"{self.route.name} is called by the workflow")


class QueueResults:
    def __init__(self, client: Client, project: Project) -> None:
        self._client = client
        self._project = project

    @activity.defn
    async def keep_result(self, large: LargeResult) -> ToolOutcome:
        """Store the result that the run holds as an artifact, and return an excerpt."""
        info = activity.info()
        async with heartbeating(lambda: {"step": large.step, "tool": large.tool}):
            run = self._client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
            result = await run.query("result", large)
            outcome = redact_model(ToolOutcome(result=result), self._project.secrets)
            workspace = self._project.workspace(run_id_of_workflow(info.workflow_id or ""))
            return await asyncio.to_thread(fit_result, outcome, large, workspace)

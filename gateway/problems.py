"""Errors as RFC 9457 problem details: one line that says what is wrong and never quotes the request."""

import logging
from collections.abc import Callable, Coroutine
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException as RoutingError
from temporalio.service import RPCError, RPCStatusCode

from activities.followup.topic import NotAwaited
from activities.security.secrets import NO_SECRETS, Secrets
from contracts.conversation import LaneFault
from contracts.models import sparse
from decisions.conversation.lane import RETRY_AFTER
from decisions.text.formatting import cut
from perdure.client.errors import NoSuchRun, NotReachable, Refused, ResultRefused, TooLarge
from perdure.client.lanes import NotTaken

MEDIA_TYPE = "application/problem+json"
AGAIN = {"Retry-After": "2"}  # seconds, if a server is down

_log = logging.getLogger(__name__)


class Kind(StrEnum):
    """The kind of a problem, if the status alone does not say it: `type` is `urn:perdure:<kind>`."""

    refused = "refused"
    """The run or lane rejected the request; `detail` has the reason."""
    request_reused = "request-id-reused"
    """The request id was used before with other content. Use another id."""
    key_reused = "idempotency-key-reused"
    """The key started a run with another body. `detail` has both digests. Use another key."""
    result_conflict = "result-conflict"
    """The run already has another result for this step, which stays. `detail` has both digests."""
    lane_full = "lane-full"
    """The conversation's queue is full. Retry after `Retry-After`."""
    lane_busy = "lane-busy"
    """A turn is running, and `when_busy` was `reject`. Retry after `Retry-After`, or queue."""
    lane_closing = "lane-closing"
    """The conversation is being cancelled. Retry after `Retry-After`."""
    not_awaited = "not-awaited"
    """The event replies to nothing, so no task can wait for it, or is too large. It was dropped."""
    too_many_streams = "too-many-streams"
    """This gateway has no free stream. Retry after `Retry-After`, or use another gateway."""


class Problem(BaseModel):
    """RFC 9457 problem details. `field` names the part of the request at fault, if any."""

    type: str = Field(description="The kind of problem; about:blank if the status says all.")
    title: str
    status: int
    detail: str
    field: str | None = sparse(None)


class Failure(HTTPException):
    """An error response of the gateway."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        kind: Kind | None = None,
        field: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail, headers)
        self.kind, self.field = kind, field


def answer_to(failure: Failure, secrets: Secrets = NO_SECRETS) -> JSONResponse:
    problem = Problem(
        type=f"urn:perdure:{failure.kind}" if failure.kind else "about:blank",
        title=HTTPStatus(failure.status_code).phrase,
        status=failure.status_code,
        detail=secrets.redact(cut(str(failure.detail), 1000)),
        field=failure.field and cut(failure.field, 200),
    )
    return JSONResponse(problem.model_dump(), failure.status_code, dict(failure.headers or {}), media_type=MEDIA_TYPE)


def handlers(secrets: Secrets) -> dict[Any, Callable[[Request, Any], Coroutine[Any, Any, Response]]]:
    """Return a handler for each exception that ends a request."""

    def handler_of(read: Callable[[Any], Failure]) -> Callable[[Request, Any], Coroutine[Any, Any, Response]]:
        async def answer_problem(request: Request, error: Any) -> Response:  # noqa: ARG001 - Starlette's signature
            return answer_to(read(error), secrets)

        return answer_problem

    known: dict[Any, Callable[[Any], Failure]] = {
        Failure: lambda error: error,
        RoutingError: _of_routing,
        RequestValidationError: _of_validation,
        NoSuchRun: lambda error: Failure(404, str(error)),
        NotTaken: _of_lane,
        TooLarge: lambda error: Failure(413, str(error)),
        ResultRefused: _of_result,
        Refused: lambda error: Failure(409, str(error), kind=Kind.refused),
        NotAwaited: lambda error: Failure(422, str(error), kind=Kind.not_awaited),
        NotReachable: lambda error: Failure(503, str(error), headers=AGAIN),
        RPCError: _of_rpc,
        OSError: _of_store,
        Exception: lambda _: Failure(500, "the gateway failed; the error is in its log"),
    }
    return {kind: handler_of(read) for kind, read in known.items()}


def _of_result(error: ResultRefused) -> Failure:
    return Failure(409, str(error), kind=Kind.result_conflict if error.is_conflict else Kind.refused)


def _of_routing(error: RoutingError) -> Failure:
    reason = "there is nothing at this address" if error.status_code == 404 else str(error.detail)
    return Failure(error.status_code, reason, headers=dict(error.headers or {}))


def _of_validation(error: RequestValidationError) -> Failure:
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    field = ".".join(path[1:] if path[0] in ("body", "query", "path", "header") else path)
    reason = "unknown field" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
    return Failure(422, f"{field}: {reason}" if field else f"the body: {reason}", field=field or None)


# The status, the kind of problem, and whether a retry may succeed.
_OF_LANES: dict[LaneFault | None, tuple[int, Kind, bool]] = {
    LaneFault.invalid_input: (422, Kind.refused, False),
    LaneFault.request_reused: (409, Kind.request_reused, False),
    LaneFault.lane_full: (429, Kind.lane_full, True),
    LaneFault.lane_busy: (409, Kind.lane_busy, True),
    LaneFault.no_such_turn: (404, Kind.refused, False),
    LaneFault.lane_closing: (409, Kind.lane_closing, True),
}


def _of_lane(error: NotTaken) -> Failure:
    status, kind, is_retryable = _OF_LANES.get(error.kind, (409, Kind.refused, False))
    headers = {"Retry-After": f"{RETRY_AFTER:.0f}"} if is_retryable else None
    return Failure(status, str(error), kind=kind, headers=headers)


def _of_rpc(error: RPCError) -> Failure:
    """Convert an error of Temporal that the client functions did not."""
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return Failure(422, f"Temporal rejected the request: {cut(error.message, 300)}")
    _log.warning("Temporal: %s", cut(error.message, 300))
    return Failure(503, f"Temporal is not available: {cut(error.message, 300)}", headers=AGAIN)


def _of_store(error: OSError) -> Failure:
    """Convert an error of the object store of large payloads."""
    _log.warning("%s", cut(str(error), 300))
    return Failure(503, "the object store with this data does not answer", headers=AGAIN)


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe these statuses as problems, for OpenAPI."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}

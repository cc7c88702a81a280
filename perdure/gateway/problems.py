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

from perdure.activities.security import NO_SECRETS, Secrets
from perdure.client.errors import (
    BadStartError,
    RejectedError,
    ResultRejectedError,
    RunNotFoundError,
    StartTooLargeError,
    TemporalUnavailableError,
)
from perdure.client.lanes import RequestRejectedError
from perdure.contracts.conversation import LaneFault
from perdure.contracts.models import omit_default
from perdure.decisions.lane import RETRY_AFTER
from perdure.decisions.text.formatting import truncate
from perdure.gateway.tokens import TokenFileError

MEDIA_TYPE = "application/problem+json"
RETRY_SOON = {"Retry-After": "2"}  # seconds, if a server is down

_log = logging.getLogger(__name__)


class ProblemKind(StrEnum):
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


class ProblemDetails(BaseModel):
    """RFC 9457 problem details. `field` names the part of the request at fault, if any."""

    type: str = Field(description="The kind of problem; about:blank if the status says all.")
    title: str
    status: int
    detail: str
    field: str | None = omit_default(None)


class ApiError(HTTPException):
    def __init__(
        self,
        status: int,
        detail: str,
        *,
        kind: ProblemKind | None = None,
        field: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail, headers)
        self.kind, self.field = kind, field


def problem_response(failure: ApiError, secrets: Secrets = NO_SECRETS) -> JSONResponse:
    problem = ProblemDetails(
        type=f"urn:perdure:{failure.kind}" if failure.kind else "about:blank",
        title=HTTPStatus(failure.status_code).phrase,
        status=failure.status_code,
        detail=secrets.redact(truncate(str(failure.detail), 1000)),
        field=failure.field and truncate(failure.field, 200),
    )
    return JSONResponse(problem.model_dump(), failure.status_code, dict(failure.headers or {}), media_type=MEDIA_TYPE)


def _from_result_error(error: ResultRejectedError) -> ApiError:
    return ApiError(409, str(error), kind=ProblemKind.result_conflict if error.is_conflict else ProblemKind.refused)


def _from_routing_error(error: RoutingError) -> ApiError:
    reason = "there is nothing at this address" if error.status_code == 404 else str(error.detail)
    return ApiError(error.status_code, reason, headers=dict(error.headers or {}))


def _from_validation_error(error: RequestValidationError) -> ApiError:
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    field = ".".join(path[1:] if path[0] in ("body", "query", "path", "header") else path)
    reason = "unknown field" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
    return ApiError(422, f"{field}: {reason}" if field else f"the body: {reason}", field=field or None)


# The status, the kind of problem, and whether a retry may succeed.
_LANE_PROBLEMS: dict[LaneFault | None, tuple[int, ProblemKind, bool]] = {
    LaneFault.invalid_input: (422, ProblemKind.refused, False),
    LaneFault.request_reused: (409, ProblemKind.request_reused, False),
    LaneFault.lane_full: (429, ProblemKind.lane_full, True),
    LaneFault.lane_busy: (409, ProblemKind.lane_busy, True),
    LaneFault.no_such_turn: (404, ProblemKind.refused, False),
    LaneFault.lane_closing: (409, ProblemKind.lane_closing, True),
}


def _from_lane_error(error: RequestRejectedError) -> ApiError:
    status, kind, is_retryable = _LANE_PROBLEMS.get(error.kind, (409, ProblemKind.refused, False))
    headers = {"Retry-After": f"{RETRY_AFTER:.0f}"} if is_retryable else None
    return ApiError(status, str(error), kind=kind, headers=headers)


def _from_rpc_error(error: RPCError) -> ApiError:
    """Convert an error of Temporal that the client functions did not."""
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return ApiError(422, f"Temporal rejected the request: {truncate(error.message)}")
    _log.warning("Temporal: %s", truncate(error.message))
    return ApiError(503, f"Temporal is not available: {truncate(error.message)}", headers=RETRY_SOON)


def _from_token_file_error(error: TokenFileError) -> ApiError:
    _log.error("%s", error)
    return ApiError(503, "the gateway cannot read its tokens or the key of its sessions; its operator must fix this")


def _from_store_error(error: OSError) -> ApiError:
    """Convert an error of the object store of large payloads."""
    _log.warning("%s", truncate(str(error)))
    return ApiError(503, "the object store with this data does not answer", headers=RETRY_SOON)


def describe_problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe these statuses as problems, for OpenAPI."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


# The problem of each exception that ends a request; the first kind that fits counts.
_PROBLEMS: dict[type[Exception], Callable[[Any], ApiError]] = {
    ApiError: lambda error: error,
    RoutingError: _from_routing_error,
    RequestValidationError: _from_validation_error,
    RunNotFoundError: lambda error: ApiError(404, str(error)),
    RequestRejectedError: _from_lane_error,
    BadStartError: lambda error: ApiError(422, str(error), field=error.field),
    StartTooLargeError: lambda error: ApiError(413, str(error)),
    ResultRejectedError: _from_result_error,
    RejectedError: lambda error: ApiError(409, str(error), kind=ProblemKind.refused),
    TemporalUnavailableError: lambda error: ApiError(503, str(error), headers=RETRY_SOON),
    RPCError: _from_rpc_error,
    TokenFileError: _from_token_file_error,
    OSError: _from_store_error,
    Exception: lambda _: ApiError(500, "the gateway failed; the error is in its log"),
}


def create_handlers(secrets: Secrets) -> dict[Any, Callable[[Request, Any], Coroutine[Any, Any, Response]]]:
    async def answer_problem(_: Request, error: Exception) -> Response:
        to_problem = next(convert for kind, convert in _PROBLEMS.items() if isinstance(error, kind))
        return problem_response(to_problem(error), secrets)

    return dict.fromkeys(_PROBLEMS, answer_problem)

"""Every refusal as RFC 9457 problem details: one line that says what is wrong, never what was sent."""

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
AGAIN = {"Retry-After": "2"}  # seconds, where it is a server that is away

_log = logging.getLogger(__name__)


class Kind(StrEnum):
    """What tells refusals apart where their status does not: `type` is `urn:perdure:<kind>`."""

    refused = "refused"
    """The run or lane says no, and `detail` says why. Another request may do."""
    request_reused = "request-id-reused"
    """The request's id was used before, for something else. Take another one."""
    key_reused = "idempotency-key-reused"
    """The key has started a run with another body. `detail` has the digests of both. Take another key."""
    result_conflict = "result-conflict"
    """The run has taken another result for this step, which counts. `detail` has the digests of both."""
    lane_full = "lane-full"
    """The conversation has as many requests as it takes. Come back after `Retry-After`."""
    lane_busy = "lane-busy"
    """A turn is running, and `when_busy` was `reject`. Come back after `Retry-After`, or queue."""
    lane_closing = "lane-closing"
    """The conversation is being cancelled. Come back after `Retry-After`."""
    not_awaited = "not-awaited"
    """An event that replies to nothing, so that nobody can wait for it, or one that is too large. It was not kept."""
    too_many_streams = "too-many-streams"
    """This gateway follows as many runs as it can. Come back after `Retry-After`, or ask another gateway."""


class Problem(BaseModel):
    """RFC 9457. `field` names the part of the request that is at fault, where it is one."""

    type: str = Field(description="What kind of problem it is; about:blank where the status says all of it.")
    title: str
    status: int
    detail: str
    field: str | None = sparse(None)


class Failure(HTTPException):
    """A refusal of the gateway's own."""

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
    """For each way in which a request ends otherwise than well."""

    def told(read: Callable[[Any], Failure]) -> Callable[[Request, Any], Coroutine[Any, Any, Response]]:
        async def handle(request: Request, error: Any) -> Response:  # noqa: ARG001 - Starlette's signature
            return answer_to(read(error), secrets)

        return handle

    known: dict[Any, Callable[[Any], Failure]] = {
        Failure: lambda error: error,
        RoutingError: _of_routing,
        RequestValidationError: _of_validation,
        NoSuchRun: lambda error: Failure(404, str(error)),
        NotTaken: _of_lane,
        TooLarge: lambda error: Failure(413, str(error)),
        ResultRefused: lambda error: Failure(409, str(error), kind=_CONFLICTS[error.is_conflict]),
        Refused: lambda error: Failure(409, str(error), kind=Kind.refused),
        NotAwaited: lambda error: Failure(422, str(error), kind=Kind.not_awaited),
        NotReachable: lambda error: Failure(503, str(error), headers=AGAIN),
        RPCError: _of_rpc,
        OSError: _of_store,
        Exception: lambda _: Failure(500, "the gateway failed; what happened is in its log"),
    }
    return {kind: told(read) for kind, read in known.items()}


_CONFLICTS = {True: Kind.result_conflict, False: Kind.refused}


def _of_routing(error: RoutingError) -> Failure:
    why = "there is nothing at this address" if error.status_code == 404 else str(error.detail)
    return Failure(error.status_code, why, headers=dict(error.headers or {}))


def _of_validation(error: RequestValidationError) -> Failure:
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    field = ".".join(place[1:] if place[0] in ("body", "query", "path", "header") else place)
    why = "there is no such field" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
    return Failure(422, f"{field}: {why}" if field else f"the body: {why}", field=field or None)


# The status, the kind of problem, and whether it may go well a little later.
_OF_LANES: dict[LaneFault | None, tuple[int, Kind, bool]] = {
    LaneFault.invalid_input: (422, Kind.refused, False),
    LaneFault.request_reused: (409, Kind.request_reused, False),
    LaneFault.lane_full: (429, Kind.lane_full, True),
    LaneFault.lane_busy: (409, Kind.lane_busy, True),
    LaneFault.no_such_turn: (404, Kind.refused, False),
    LaneFault.lane_closing: (409, Kind.lane_closing, True),
}


def _of_lane(error: NotTaken) -> Failure:
    status, kind, comes_again = _OF_LANES.get(error.kind, (409, Kind.refused, False))
    headers = {"Retry-After": f"{RETRY_AFTER:.0f}"} if comes_again else None
    return Failure(status, str(error), kind=kind, headers=headers)


def _of_rpc(error: RPCError) -> Failure:
    """What no function of ours has translated."""
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return Failure(422, f"Temporal does not take it: {cut(error.message, 300)}")
    _log.warning("Temporal: %s", cut(error.message, 300))
    return Failure(503, f"Temporal does not do it now: {cut(error.message, 300)}", headers=AGAIN)


def _of_store(error: OSError) -> Failure:
    """The object store of large payloads, which no function of ours has asked for."""
    _log.warning("%s", cut(str(error), 300))
    return Failure(503, "what this needs lies on an object store, which does not answer", headers=AGAIN)


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI description: these are answered as problems."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}

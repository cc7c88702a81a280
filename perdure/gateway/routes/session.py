"""The session of the page: sign in with a token, see who is signed in, sign out."""

from datetime import datetime

from fastapi import APIRouter, Request, Response
from pydantic import Field

from perdure.contracts.models import FrozenModel, StrictModel
from perdure.gateway.auth import (
    TAKES_TOKEN,
    Caller,
    Credential,
    CurrentGateway,
    ScopedRoute,
    bearer_of,
    caller_of,
    find_token,
    identify,
    no_credential,
)
from perdure.gateway.problems import describe_problems
from perdure.gateway.requests import note_login_failure
from perdure.gateway.tokens import Scope

router = APIRouter(prefix="/v1/session", tags=["people"], route_class=ScopedRoute, dependencies=[TAKES_TOKEN])


class SignInBody(StrictModel):
    """The token to sign in with, in place of the header `Authorization`."""

    token: str = Field(min_length=1, max_length=200, repr=False)


class SessionInfo(FrozenModel):
    """The caller, and what they may do."""

    name: str  # is recorded with everything that the caller sends
    credential: Credential
    person: str | None  # whom a proxy names; null with a token or a cookie
    scopes: tuple[Scope, ...]
    groups: tuple[str, ...]  # the groups of `[people]` that have the name
    expires_at: datetime | None  # the end of the session, or of the token; null: none


def _describe(caller: Caller) -> SessionInfo:
    ends = caller.session.expires_at if caller.session else caller.token.expires_at if caller.token else None
    return SessionInfo(
        name=caller.name,
        credential=caller.credential,
        person=caller.person,
        scopes=caller.scopes,
        groups=caller.sender.groups,
        expires_at=ends,
    )


@router.post("", responses=describe_problems(400, 401, 408, 413, 415, 422, 500, 503))
async def sign_in(
    gateway: CurrentGateway, request: Request, response: Response, body: SignInBody | None = None
) -> SessionInfo:
    """Sign in with a token, in `Authorization` or the body: the answer sets a cookie that counts in its place.

    It lasts an hour after its last use, 12 hours in all, and no longer than the token.
    """
    # No page of another origin can sign a person in: neither the header nor JSON is sent there without a preflight.
    written = bearer_of(request) or (body.token.strip() if body else "")
    if not written:
        note_login_failure(request.scope, "no_token")
        raise no_credential()
    is_secure = gateway.is_behind_tls or request.headers.get("Origin", "").startswith("https://")
    token = find_token(request, written)
    session = await gateway.sessions.begin(response, token, is_secure=is_secure)
    response.headers["Cache-Control"] = "no-store"
    caller = caller_of(gateway, token, session)
    request.state.caller = caller
    return _describe(caller)


@router.get("", responses=describe_problems(400, 401, 500, 503))
async def read_session(request: Request, response: Response) -> SessionInfo:
    """Return who the caller is, by token, cookie or proxy; 401 without any."""
    caller = await identify(request)
    if caller is None:
        raise no_credential()  # not a failed login: the page asks whether to show its form
    response.headers["Cache-Control"] = "no-store"
    return _describe(caller)


@router.delete(
    "", status_code=204, response_description="Signed out", responses=describe_problems(400, 401, 403, 500, 503)
)
async def sign_out(gateway: CurrentGateway, request: Request, response: Response) -> None:
    """End the session: the answer removes its cookie. Revoke the token to end all of its sessions."""
    if await identify(request) is None:
        raise no_credential()
    request.state.is_renewed = False
    await gateway.sessions.end(request, response)

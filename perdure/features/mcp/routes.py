"""Logins to MCP servers at the gateway: the link, and the address that the authorization server sends people to."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse
from fastapi.routing import APIRoute

from perdure.contracts.models import FrozenModel
from perdure.decisions.people.terms import name_of
from perdure.features.mcp.activities.config import HttpServer
from perdure.features.mcp.offer import open_grants, servers_with_access
from perdure.gateway.auth import CurrentCaller, CurrentGateway, Gateway, ScopedRoute, needs_scope
from perdure.gateway.problems import ApiError, describe_problems
from perdure.gateway.requests import note_login_failure
from perdure.gateway.tokens import Scope
from perdure.settings import ProjectError, Settings

CALLBACK = "/v1/mcp/callback"
COOKIE = "perdure-mcp-login"

router = APIRouter(prefix="/v1/mcp", tags=["people"], route_class=ScopedRoute)


@dataclass(frozen=True)
class Logins:
    """The servers that people may log in to at this gateway, by name."""

    servers: Mapping[str, HttpServer]


class LoginLink(FrozenModel):
    """The address at which a person logs in."""

    url: str


def open_logins(settings: Settings, _environment: Mapping[str, str]) -> Logins:
    """Return the servers with `approvers`, and those that each requester logs in to. Raises ProjectError."""
    remote = [each for each in servers_with_access(settings).values() if isinstance(each, HttpServer)]
    own = {each.name: each for each in remote if each.oauth and each.oauth.is_at_gateway}
    if own:
        open_grants(settings)  # which could not be encrypted without keys
    if own and not settings.file.gateway.public_url:
        place = settings.at("mcp", next(iter(own)))
        raise ProjectError(f"{place}: a login at the gateway needs public_url in [gateway]")
    return Logins(own)


@router.post(
    "/{name}/login",
    dependencies=[needs_scope(Scope.answer)],
    responses=describe_problems(400, 401, 403, 404, 408, 409, 413, 415, 422, 500, 503),
)
async def begin_mcp_login(
    gateway: CurrentGateway,
    holder: CurrentCaller,
    name: Annotated[str, Path(max_length=64)],
    response: Response,
    requester: Annotated[str, Query(max_length=200)] = "",
) -> LoginLink:
    """Begin a login to an MCP server: for the project as a member of its `approvers`, or as one `requester`, who is the
    caller in any case. The browser that begins it must end it.
    """
    from perdure.features.mcp.activities.grants import GrantError
    from perdure.features.mcp.login import begin_login

    logins: Logins = gateway.parts["mcp"]
    server = logins.servers.get(name)
    if server is None or server.oauth is None:
        raise ApiError(404, f"no login to an MCP server {name!r} is possible here")
    whose = name_of(holder.sender) if server.oauth.is_personal else ""
    if requester not in ("", whose):
        raise ApiError(403, f"this login to {name} is for {requester}; {holder.name} is not")
    if not server.oauth.is_personal and not set(server.oauth.approvers) & set(holder.sender.groups):
        raise ApiError(403, f"a login to {name} is for {' or '.join(server.oauth.approvers)}; {holder.name} is not")
    public, browser = _public_url(gateway), secrets.token_urlsafe(32)
    try:
        store = open_grants(gateway.session.settings)
        url, _ = await begin_login(server, store, f"{public}{CALLBACK}", holder.name, browser, whose)
    except (GrantError, ProjectError, OSError) as error:
        raise ApiError(409, str(error)) from None
    # Lax: the browser comes back from another site. It is of use for this one login alone.
    is_secure = public.startswith("https://")
    response.set_cookie(COOKIE, browser, 600, path=CALLBACK, secure=is_secure, httponly=True, samesite="lax")
    response.headers["Cache-Control"] = "no-store"
    return LoginLink(url=url)


async def end_mcp_login(  # noqa: PLR0913 - the parameters of OAuth
    gateway: CurrentGateway,
    request: Request,
    state: Annotated[str, Query(max_length=200)] = "",
    code: Annotated[str, Query(max_length=4000)] = "",
    iss: Annotated[str | None, Query(max_length=2000)] = None,
    error: Annotated[str, Query(max_length=200)] = "",
) -> PlainTextResponse:
    """Take the person back from the authorization server, once, in the browser that began the login."""
    from perdure.features.mcp.activities.grants import GrantError
    from perdure.features.mcp.login import finish_login
    from perdure.features.mcp.questions import settle_login

    browser = request.cookies.get(COOKIE, "")
    if error or not (state and code and browser):
        note_login_failure(request.scope, "no_login")
        raise ApiError(400, "the login was not completed: begin it again")
    try:
        store = open_grants(gateway.session.settings)
        grant = await finish_login(store, state, code, iss, browser)
    except (GrantError, ProjectError, OSError) as failure:
        note_login_failure(request.scope, "no_login")
        raise ApiError(400, str(failure)) from None
    await settle_login(gateway.session.client, store, grant)
    gateway.lists.clear()
    whose = f" as {grant.requester}" if grant.requester else ""
    text = f"Logged in to {grant.server}{whose}. The runs that waited go on; you can close this page.\n"
    done = PlainTextResponse(text)
    done.delete_cookie(COOKIE, path=CALLBACK)
    done.headers["Cache-Control"] = "no-store"
    done.headers["Referrer-Policy"] = "no-referrer"
    return done


router.add_api_route(
    "/callback",
    end_mcp_login,
    responses=describe_problems(400, 422, 500, 503),
    response_class=PlainTextResponse,
    route_class_override=APIRoute,  # it takes whatever parameters an authorization server adds
)


def _public_url(gateway: Gateway) -> str:
    return (gateway.session.settings.file.gateway.public_url or "").rstrip("/")

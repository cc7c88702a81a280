"""The application: routes, static files of the web page, middleware and error handlers."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import FileResponse
from fastapi.routing import APIRoute
from starlette.routing import Match

from perdure.contracts.models import build_models
from perdure.gateway.auth import Gateway
from perdure.gateway.problems import ApiError, ProblemDetails, create_handlers, problem_response
from perdure.gateway.requests import AccessLog, BoundedBodies, EncodedSlashes
from perdure.gateway.routes import conversations, files, health, project, questions, runs, session
from perdure.registry import load_each

ABOUT = "Start, read, follow and answer agent runs. Refusals are problem details (RFC 9457)."
STATIC_FILES = Path(__file__).parent
STATIC_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

_page = APIRouter(include_in_schema=False)


@_page.get("/")
@_page.get("/page.js")
@_page.get("/page.css")
@_page.get("/page.svg")
async def _get_page_file(request: Request) -> FileResponse:
    return FileResponse(STATIC_FILES / (request.scope["route"].path[1:] or "page.html"), headers=STATIC_HEADERS)


ROUTERS = (
    runs.router,
    files.router,
    conversations.router,
    questions.router,
    project.router,
    *load_each("routes"),
    session.router,
    health.router,
    _page,
)


async def _method_not_allowed(request: Request, _: Exception) -> Response:
    """Answer 405 with the methods of all routes of the address; Starlette names those of one."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    allowed = {method for route in matching for method in route.methods or ()} or {"GET", "HEAD"}
    return problem_response(ApiError(405, "method not allowed", headers={"Allow": ", ".join(sorted(allowed))}))


def make_app(gateway: Gateway) -> FastAPI:
    build_models()
    app = FastAPI(
        title="Perdure",
        summary="Agents that outlast their processes",
        description=ABOUT,
        version=version("perdure"),
        docs_url=None,  # its scripts would come from another host
        redoc_url=None,
        redirect_slashes=False,  # a redirect cannot hold an address with an encoded slash
        exception_handlers=create_handlers(gateway.session.settings.secrets),
    )
    app.state.gateway = gateway
    app.add_exception_handler(405, _method_not_allowed)
    for router in ROUTERS:
        app.include_router(router)
    app.add_middleware(BoundedBodies)
    app.add_middleware(AccessLog)
    app.add_middleware(EncodedSlashes)
    describe = app.openapi

    def openapi_with_problems() -> dict[str, Any]:
        schema = describe()
        schema["components"]["schemas"].setdefault("Problem", ProblemDetails.model_json_schema())
        return schema

    app.openapi = openapi_with_problems  # type: ignore[method-assign]  # FastAPI's documented way
    return app

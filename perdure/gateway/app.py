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
PAGE = Path(__file__).parent / "page"
PAGE_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
PAGE_FILES = {path.relative_to(PAGE).as_posix(): path for path in PAGE.rglob("*.*") if path.suffix in PAGE_TYPES}
PAGE_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
}
PAGE_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {source}" for name, source in PAGE_POLICY.items()),
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

_page = APIRouter(include_in_schema=False)


@_page.get("/")
async def _get_page() -> FileResponse:
    return FileResponse(PAGE_FILES["index.html"], headers=PAGE_HEADERS)


@_page.get("/page/{name:path}")
async def _get_page_file(name: str) -> FileResponse:
    path = PAGE_FILES.get(name)
    if path is None:
        raise ApiError(404, "the page has no such file")
    return FileResponse(path, headers=PAGE_HEADERS, media_type=PAGE_TYPES[path.suffix])


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

"""The application: all routes, and what holds of each answer."""

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI

from gateway import conversations, events, health, page, questions, runs, webhooks
from gateway.access import Gateway
from gateway.bodies import BoundedBodies
from gateway.problems import Problem, handlers

ABOUT = "Start, read, follow and answer agent runs. Refusals are problem details (RFC 9457)."
ROUTERS = (
    runs.router,
    conversations.router,
    questions.router,
    events.router,
    webhooks.router,
    health.router,
    page.router,
)


def make_app(gateway: Gateway) -> FastAPI:
    app = FastAPI(
        title="Perdure",
        summary="Agents that outlast their processes",
        description=ABOUT,
        version=version("perdure"),
        docs_url=None,  # they would come from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=handlers(gateway.session.settings.secrets),
    )
    app.state.gateway = gateway
    for router in ROUTERS:
        app.include_router(router)
    app.add_middleware(BoundedBodies)
    describe = app.openapi

    def described() -> dict[str, Any]:
        schema = describe()
        schema["components"]["schemas"].setdefault("Problem", Problem.model_json_schema())
        return schema

    app.openapi = described  # type: ignore[method-assign]  # FastAPI's documented way
    return app

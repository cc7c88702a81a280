"""`http.md`: the gateway's routes, as its OpenAPI description has them."""

from collections.abc import Iterator
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, cast

from fastapi.routing import APIRoute
from pydantic import BaseModel

from perdure.activities.security import NO_SECRETS
from perdure.contracts.conversation import LaneView
from perdure.contracts.run.state import RunView
from perdure.gateway.app import ROUTERS, make_app
from perdure.gateway.auth import Gateway
from perdure.gateway.problems import ProblemDetails
from perdure.gateway.tokens import Scope
from perdure.registry import load, optional
from tests.reference import events, workflow
from tests.reference.fields import Fields
from tests.reference.markdown import code, page, slug, table
from tests.reference.meanings import docstring, meanings

INTRO = """\
What `perdure gateway` serves. [The gateway](../gateway.md) says how to use it; `GET /openapi.json` describes the same
as OpenAPI 3.1. A token goes into `Authorization: Bearer …`, a body has `Content-Type: application/json` and at most 1
MiB, except a file's. An answer of 400 or more is a [problem](#problemdetails), unless a route says otherwise."""

IN_WORKFLOW = {model: f"workflow.md#{model.__name__.lower()}" for model in (RunView, LaneView)}
ELSEWHERE = (
    events.ELSEWHERE
    | {"Headers": "events.md#headers", "Event": "events.md#an-event-from-outside"}
    | {model.__name__: where for model, where in IN_WORKFLOW.items()}
)


def http() -> str:
    nothing = SimpleNamespace(session=SimpleNamespace(settings=SimpleNamespace(secrets=NO_SECRETS)))
    app = make_app(cast(Gateway, nothing))
    added = [load(row.routes) for row in optional().values() if row.routes]
    for router in added:
        if router not in ROUTERS:
            app.include_router(router)
    whole = app.openapi()
    described = whole["paths"]
    routes = [
        route
        for router in (*(router for router in ROUTERS if router not in added), *added)
        for route in router.routes
        if isinstance(route, APIRoute) and route.include_in_schema
    ]
    parts = [INTRO, "## Scopes", SCOPES, _scopes(), "## Routes"]
    rows, summary = [], []
    for route in routes:
        method = min(route.methods or ())
        operation = described[route.path_format][method.lower()]
        name = f"{method} {route.path_format}"
        rows.append((f"[`{name}`](#{slug(name)})", _scope(operation), docstring(route.endpoint).split("\n\n")[0]))
        summary += [f"### {name}", *_sections(route, operation, whole["components"]["schemas"])]
    parts += [table(("route", "scope", "does"), rows), *summary, "## Shapes"]
    for model in _shapes(routes):
        parts += [f"### {model.__name__}", docstring(model), Fields(ELSEWHERE, "serialization").table(model)]
    return page("HTTP", *parts)


SCOPES = "The permissions of a token; none includes another. `perdure token create NAME --scope …` makes a token."


def _scopes() -> str:
    said = meanings(Scope)
    return table(("scope", "allows to"), ((code(each.value), said.get(each.name, "")) for each in Scope))


def _scope(operation: dict[str, Any]) -> str:
    named = [scope for each in operation.get("security", ()) for scope in each["token"]]
    return ", ".join(map(code, named)) or "none"


def _sections(route: APIRoute, operation: dict[str, Any], defs: dict[str, Any]) -> Iterator[str]:
    yield docstring(route.endpoint)
    rows = [
        (code(each["name"]), each["in"], _value(each, defs), each.get("description", ""))
        for each in operation.get("parameters", ())
        if each["in"] != "path"
    ]
    if rows:
        yield table(("parameter", "in", "value", "means"), rows)
    if body := _body(route):
        if where := _where(body):
            yield f"**Body:** {where}"
        else:
            yield f"**Body:** {docstring(body)}"
            yield Fields(ELSEWHERE).table(body)
    elif described := operation.get("requestBody"):
        yield f"**Body:** {', '.join(map(code, described['content']))}"
    yield f"**Answers:** {_answers(route, operation)}"


def _value(parameter: dict[str, Any], defs: dict[str, Any]) -> str:
    schema = parameter["schema"]
    default = schema.get("default")
    words = Fields.words(schema, defs)
    return "required" if parameter.get("required") else f"{words}{f'; {default} if left out' if default else ''}"


def _body(route: APIRoute) -> type[BaseModel] | None:
    fields = route.dependant.body_params
    kinds = [each for field in fields for each in workflow.models_in(field.field_info.annotation)]
    return kinds[0] if kinds else None


def _where(model: type[BaseModel]) -> str | None:
    """The place that describes a body or an answer that is not of the gateway itself."""
    for each in model.__mro__:
        if title := workflow.in_events().get(each):
            return f"[{title}](events.md#{slug(title)})"
    return f"[{model.__name__}]({IN_WORKFLOW[model]})" if model in IN_WORKFLOW else None


def _answers(route: APIRoute, operation: dict[str, Any]) -> str:
    well, refused = [], []
    for status, answer in sorted(operation["responses"].items()):
        if int(status) >= 400 and "application/problem+json" in answer["content"]:
            refused.append(status)
        else:
            well.append(f"{status} {_answer(route, int(status), answer)}")
    problems = f"; [problems](#problemdetails) {', '.join(refused)}" if refused else ""
    return ", ".join(well) + problems


def _answer(route: APIRoute, status: int, answer: dict[str, Any]) -> str:
    own = (route.responses or {}).get(status, {}).get("model") or route.response_model
    summary = answer["description"]
    meant = (
        "" if summary in ("Successful Response", HTTPStatus(status).phrase) else f" ({summary[0].lower()}{summary[1:]})"
    )
    if not (isinstance(own, type) and issubclass(own, BaseModel)):
        return f"{', '.join(map(code, answer.get('content', {})))}{meant}".strip()
    return (_where(own) or f"[{own.__name__}](#{own.__name__.lower()})") + meant


def _shapes(routes: list[APIRoute]) -> list[type[BaseModel]]:
    answers = [each for route in routes for each in workflow.models_in(route.response_model)]
    return [*(each for each in dict.fromkeys(answers) if not _where(each)), ProblemDetails]

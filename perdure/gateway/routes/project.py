"""The project: an overview of it, its agents, and dead letters."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AfterValidator, AwareDatetime

from perdure.client.dead_letters import DeadLetterList, read_dead_letters
from perdure.client.overview import LISTS, Overview
from perdure.contracts.models import MAX_DURATION
from perdure.gateway.auth import CurrentGateway, ScopedRoute, needs_scope
from perdure.gateway.problems import describe_problems
from perdure.gateway.tokens import Scope
from perdure.process.agents import AgentList

MAX_DEAD_LETTERS = 200

router = APIRouter(
    prefix="/v1",
    tags=["project"],
    route_class=ScopedRoute,
    responses=describe_problems(400, 401, 403, 408, 413, 422, 500, 503),
)


def _check_time(since: datetime) -> datetime:
    if not datetime.now(UTC) - MAX_DURATION <= since <= datetime.now(UTC):
        raise ValueError(f"expected a time of the last {MAX_DURATION.days} days")
    return since


Since = Annotated[AwareDatetime, AfterValidator(_check_time)]


@router.get("/overview", dependencies=[needs_scope(Scope.read)])
async def read_overview(
    gateway: CurrentGateway,
    since: Annotated[
        Since | None,
        Query(description="The time, such as `2026-11-25T00:00:00+01:00`; by default the last 24 hours."),
    ] = None,
) -> Overview:
    """Return the project in short: runs and costs by agent, open and failed runs, and what needs a person."""
    return await gateway.lists.read(("overview", since), lambda: gateway.perdure.overview(since), LISTS)


@router.get("/agents", dependencies=[needs_scope(Scope.read)])
async def list_agents(gateway: CurrentGateway) -> AgentList:
    """List the project's agents with their tools and JSON Schemas, as the gateway's own project has them."""
    return await gateway.lists.read("agents", gateway.perdure.agents, lists=0)


@router.get("/dead-letters", dependencies=[needs_scope(Scope.read)])
async def list_dead_letters(
    gateway: CurrentGateway, limit: Annotated[int, Query(ge=1, le=MAX_DEAD_LETTERS)] = 50
) -> DeadLetterList:
    """List events that began nothing and notices that failed, as `perdure list --dead`, the latest first."""
    client = gateway.session.client
    return await gateway.lists.read(("dead-letters", limit), lambda: read_dead_letters(client, limit), lists=2)

"""The gateway's list of schedules."""

from typing import Annotated

from fastapi import APIRouter, Query

from perdure.contracts.models import FrozenModel
from perdure.features.schedules.client import ScheduleInfo, list_schedules
from perdure.gateway.auth import CurrentGateway, Gateway, ScopedRoute, needs_scope
from perdure.gateway.problems import describe_problems
from perdure.gateway.tokens import Scope

MAX_SCHEDULES = 200

router = APIRouter(prefix="/v1", tags=["schedules"], route_class=ScopedRoute)


class ScheduleList(FrozenModel):
    """The schedules by name, each with its `next` start. `is_partial`: there are more."""

    schedules: tuple[ScheduleInfo, ...]
    is_partial: bool


@router.get(
    "/schedules",
    dependencies=[needs_scope(Scope.read)],
    responses=describe_problems(400, 401, 403, 408, 413, 422, 500, 503),
)
async def list_all_schedules(
    gateway: CurrentGateway, limit: Annotated[int, Query(ge=1, le=MAX_SCHEDULES)] = 50
) -> ScheduleList:
    """List the project's schedules, as `perdure schedule list`."""
    return await gateway.lists.read(("schedules", limit), lambda: _read_schedules(gateway, limit))


async def _read_schedules(gateway: Gateway, limit: int) -> ScheduleList:
    rows = list[ScheduleInfo]()
    async for row in list_schedules(gateway.session.client, gateway.session.settings.task_queue):
        rows.append(row)
        if len(rows) > limit:
            break
    return ScheduleList(schedules=tuple(sorted(rows[:limit], key=lambda row: row.name)), is_partial=len(rows) > limit)

"""Health and readiness, for supervisors and load balancers."""

import asyncio

from fastapi import APIRouter, Response
from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.service import RPCError

from perdure.contracts.models import FrozenModel
from perdure.gateway.auth import CurrentGateway
from perdure.gateway.problems import describe_problems
from perdure.session import Session

CHECK_TIMEOUT = 3.0  # seconds for a check
CHECK_EVERY = 3.0  # seconds that a result is reused

router = APIRouter(tags=["health"], responses=describe_problems(500))


class Health(FrozenModel):
    status: str  # `ok`


class Readiness(FrozenModel):
    """`worker`: a worker polls the task queue, or did in the last minutes."""

    ready: bool
    temporal: bool
    worker: bool


@router.get("/healthz")
async def get_health() -> Health:
    """Return `ok`: the process answers."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Readiness, "description": "Not ready"}})
async def get_readiness(gateway: CurrentGateway, response: Response) -> Readiness:
    """Return whether Temporal answers and a worker polls the task queue; 503 if not. At most 3 seconds old."""
    now = asyncio.get_running_loop().time
    async with gateway.checking:
        if gateway.readiness is None or now() - gateway.readiness[0] >= CHECK_EVERY:
            seen = await _check_readiness(gateway.session)
            gateway.readiness = now(), seen
    readiness: Readiness = gateway.readiness[1]
    if not readiness.ready:
        response.status_code = 503
    return readiness


async def _check_readiness(session: Session) -> Readiness:
    temporal = worker = False
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            await session.client.workflow_service.get_system_info(GetSystemInfoRequest(), retry=True)
            temporal = True
            worker = await session.has_worker()
    except (TimeoutError, RPCError):
        pass
    return Readiness(ready=temporal and worker, temporal=temporal, worker=worker)

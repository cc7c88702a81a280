"""Whether the gateway works, for whoever restarts it or sends it requests."""

import asyncio

from fastapi import APIRouter, Response
from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.service import RPCError

from contracts.value import Value
from gateway.access import Here
from gateway.problems import described

PATIENCE = 3.0  # seconds for each look

router = APIRouter(tags=["health"], responses=described(500))


class Health(Value):
    status: str  # `ok`


class Readiness(Value):
    """`worker`: somebody works on our task queue, or did in the last minutes."""

    ready: bool
    temporal: bool
    worker: bool


@router.get("/healthz")
async def health() -> Health:
    """The process answers."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Readiness, "description": "Not ready"}})
async def readiness(here: Here, response: Response) -> Readiness:
    """Temporal answers, and a worker is on our task queue; 503 says which is not so."""
    temporal = worker = False
    try:
        async with asyncio.timeout(PATIENCE):
            await here.session.client.workflow_service.get_system_info(GetSystemInfoRequest())
            temporal = True
            worker = await here.session.has_worker()
    except (TimeoutError, RPCError):
        pass
    if not (temporal and worker):
        response.status_code = 503
    return Readiness(ready=temporal and worker, temporal=temporal, worker=worker)

"""Whether the gateway works, for whoever restarts it or sends it requests."""

import asyncio

from fastapi import APIRouter, Response
from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.service import RPCError

from contracts.models import Value
from gateway.auth import Here
from gateway.problems import described
from perdure.session import Session

PATIENCE = 3.0  # seconds for each look
LOOK_EVERY = 3.0  # seconds; whoever asks in between is told what was seen last

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
    """Temporal answers, and a worker is on our task queue; 503 says which is not so. As seen within 3 seconds."""
    now = asyncio.get_running_loop().time
    async with here.looking:
        if here.readiness is None or now() - here.readiness[0] >= LOOK_EVERY:
            seen = await _look(here.session)
            here.readiness = now(), seen
    readiness: Readiness = here.readiness[1]
    if not readiness.ready:
        response.status_code = 503
    return readiness


async def _look(session: Session) -> Readiness:
    temporal = worker = False
    try:
        async with asyncio.timeout(PATIENCE):
            await session.client.workflow_service.get_system_info(GetSystemInfoRequest())
            temporal = True
            worker = await session.has_worker()
    except (TimeoutError, RPCError):
        pass
    return Readiness(ready=temporal and worker, temporal=temporal, worker=worker)

"""The gateway's list of mailboxes."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query

from perdure.features.mailbox.places import MailboxList, list_mailboxes
from perdure.gateway.auth import CurrentGateway, ScopedRoute, needs_scope
from perdure.gateway.problems import describe_problems
from perdure.gateway.tokens import Scope

MAX_MAILBOXES = 200

router = APIRouter(prefix="/v1", tags=["mailboxes"], route_class=ScopedRoute)


@router.get(
    "/mailboxes",
    dependencies=[needs_scope(Scope.read)],
    responses=describe_problems(400, 401, 403, 408, 413, 422, 500, 503),
)
async def list_all_mailboxes(
    gateway: CurrentGateway, limit: Annotated[int, Query(ge=1, le=MAX_MAILBOXES)] = 50
) -> MailboxList:
    """List the mailboxes that bridges of the gateway's `PERDURE_HOME` have served, as their folders are now."""
    home = gateway.session.settings.home
    return await gateway.lists.read(
        ("mailboxes", limit), lambda: asyncio.to_thread(list_mailboxes, home, limit), lists=0
    )

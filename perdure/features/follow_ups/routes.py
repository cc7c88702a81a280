"""The gateway's list of follow-ups."""

from typing import Annotated

from fastapi import APIRouter, Query

from perdure.client.run_list import RunFilter
from perdure.contracts.models import FrozenModel
from perdure.features.follow_ups.client import ListedFollowUp, list_follow_ups
from perdure.gateway.auth import CurrentGateway, ScopedRoute, needs_scope
from perdure.gateway.lists import Conversation, Cursor, Since, Status, decode_cursor, encode_cursor, naming_cursor
from perdure.gateway.problems import describe_problems
from perdure.gateway.tokens import Scope

MAX_FOLLOW_UPS = 200

router = APIRouter(prefix="/v1", tags=["follow-ups"], route_class=ScopedRoute)


class FollowUpList(FrozenModel):
    """A page of follow-ups, which may hold fewer than `limit`; on the last one `cursor` is null."""

    follow_ups: tuple[ListedFollowUp, ...]
    cursor: str | None  # for the next page


@router.get(
    "/follow-ups",
    dependencies=[needs_scope(Scope.read)],
    responses=describe_problems(400, 401, 403, 408, 413, 422, 500, 503),
)
async def list_all_follow_ups(  # noqa: PLR0913 - the filters
    gateway: CurrentGateway,
    *,
    status: Status = None,
    since: Since = None,
    conversation: Conversation = None,
    limit: Annotated[int, Query(ge=1, le=MAX_FOLLOW_UPS)] = 50,
    cursor: Cursor = None,
) -> FollowUpList:
    """List follow-ups, latest first, as `perdure list --follow-ups`: open ones with the time of their next event."""
    only, after = RunFilter(since=since, status=status, conversation=conversation), decode_cursor(cursor)
    with naming_cursor():
        page = await gateway.lists.read(
            ("follow-ups", only, limit, after),
            lambda: list_follow_ups(gateway.session.client, only, limit, after, gateway.queries),
        )
    return FollowUpList(follow_ups=page.follow_ups, cursor=encode_cursor(page.next))

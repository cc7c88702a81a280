"""Open questions of all runs and follow-ups, with the exact call of an approval."""

from typing import Annotated

from fastapi import APIRouter, Query

from perdure.client.door import groups_of
from perdure.client.questions import QuestionFilter, QuestionList
from perdure.contracts.models import Duration
from perdure.contracts.run.signals import QuestionKind
from perdure.gateway.auth import CurrentCaller, CurrentGateway, ScopedRoute, needs_scope
from perdure.gateway.problems import describe_problems
from perdure.gateway.routes.runs import READ_QUERY_TIMEOUT
from perdure.gateway.tokens import Scope

MAX_QUESTIONS = 200

router = APIRouter(prefix="/v1", tags=["people"], route_class=ScopedRoute)


@router.get(
    "/questions",
    dependencies=[needs_scope(Scope.read)],
    responses=describe_problems(400, 401, 403, 408, 413, 422, 500, 503),
)
async def list_open_questions(  # noqa: PLR0913 - the filters
    gateway: CurrentGateway,
    holder: CurrentCaller,
    *,
    agent: Annotated[str | None, Query(max_length=200, description="The agent of the run.")] = None,
    tool: Annotated[str | None, Query(max_length=200, description="The tool of the call.")] = None,
    kind: Annotated[QuestionKind | None, Query(description="The kind of the question.")] = None,
    group: Annotated[str | None, Query(max_length=200, description="One of the groups that are asked.")] = None,
    for_me: Annotated[
        bool, Query(description="Only those that the token's name may answer and has not approved.")
    ] = False,
    older_than: Annotated[Duration | None, Query(description="The time that it is open, such as `4h`.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_QUESTIONS)] = 100,
) -> QuestionList:
    """List all open questions; answer one at `/v1/runs/{run_id}/answer`."""
    groups = groups_of(gateway.session.settings.file.people, holder.name) if for_me else ()
    person = holder.name if for_me else None
    only = QuestionFilter(agent, tool, kind, group, person, groups, older_than)
    return await gateway.lists.read(
        ("questions", limit, only),
        lambda: gateway.perdure.questions(only, limit, READ_QUERY_TIMEOUT, gateway.queries),
    )

"""Activities that must not go on yet: one pauses itself on the server, leaves its worker, and begins anew later.

While it is paused it costs nothing, has no timeout but its schedule-to-close, and the Web UI shows it as paused. The
reason that the server keeps begins with the name of what holds it, by which `release_held` finds it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import PauseActivityRequest, UnpauseActivityRequest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from perdure.activities.effects.attempts import HOLDS_KEY, this_attempt
from perdure.activities.providers.rate_limit import RateLimitedError
from perdure.activities.temporal import own_workflow_id
from perdure.contracts.failures import HELD
from perdure.decisions.ids import query_equals
from perdure.decisions.text.formatting import truncate

IDENTITY = "perdure"
MAX_REASON = 500  # characters
RETRY_PAUSE = 5.0  # seconds, if the server does not pause an activity
RELEASES_AT_ONCE = 20
_log = logging.getLogger(__name__)


class HeldError(RateLimitedError):
    """An activity must not begin, or not go on. `by` is the name of what holds it, without blanks; `why` is for people.

    Raise it before a request that may cost something or have an effect. It uses up no attempt.
    """

    def __init__(self, by: str, why: str) -> None:
        super().__init__(
            truncate(f"{by} {why}", MAX_REASON),
            type=HELD,
            next_retry_delay=timedelta(0),
            category=ApplicationErrorCategory.BENIGN,
        )
        self.by = by


Guard = Callable[[], Awaitable[None]]  # raises HeldError if the current activity must not go on
_guards: ContextVar[Sequence[Guard]] = ContextVar("_guards", default=())


async def must_not_be_held() -> None:
    """Raise HeldError if something holds the current activity. Await it before each request to a provider."""
    for guard in _guards.get():
        await guard()


class HoldInterceptor(Interceptor):
    """Pauses activities that are held. `acting` are the types that may call a model or have an effect outside."""

    def __init__(self, client: Client, guards: Sequence[Guard], acting: Sequence[str]) -> None:
        self.client = client
        self.guards = guards
        self.acting = frozenset(acting)

    def intercept_activity(
        self,
        next: ActivityInboundInterceptor,  # noqa: A002 - the SDK's
    ) -> ActivityInboundInterceptor:
        return _Inbound(next, self)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, given: HoldInterceptor) -> None:
        super().__init__(inner)
        self._given = given

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's
        info = activity.info()
        if info.activity_type not in self._given.acting or info.is_local:
            return await super().execute_activity(input)
        _guards.set(self._given.guards)
        try:
            await must_not_be_held()
            return await super().execute_activity(input)
        except ApplicationError as held:  # redacted, it is no HeldError any more
            if held.type != HELD:
                raise
            await _pause_own(self._given.client, held)
            # After the pause: the answer to a heartbeat of a paused activity would cancel it.
            attempt = this_attempt()
            activity.heartbeat({**attempt.beat_details, HOLDS_KEY: attempt.holds + 1})
            raise


async def _pause_own(client: Client, held: ApplicationError) -> None:
    info = activity.info()
    request = PauseActivityRequest(
        namespace=info.namespace,
        execution=WorkflowExecution(workflow_id=own_workflow_id(), run_id=info.workflow_run_id or ""),
        identity=IDENTITY,
        id=info.activity_id,
        reason=held.message,
    )
    try:
        await client.workflow_service.pause_activity(request, retry=True)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:  # else its run has ended, or has cancelled it
            _log.warning("a held activity could not be paused, and tries again: %s", truncate(error.message, 200))
            await asyncio.sleep(RETRY_PAUSE)


@dataclass(frozen=True)
class HeldActivity:
    """An activity that waits on the server, paused. `by` is the name of what holds it, and `why` what it said."""

    workflow_id: str
    execution: str
    activity_id: str
    activity_type: str
    by: str
    why: str
    since: datetime


def held_activity(workflow_id: str, execution: str, pending: PendingActivityInfo) -> HeldActivity | None:
    """Return the pending activity if it paused itself; None for others, also those that a person paused."""
    paused = pending.pause_info
    if not pending.paused or paused.manual.identity != IDENTITY:
        return None
    by, _, why = paused.manual.reason.partition(" ")
    since = paused.pause_time.ToDatetime(UTC)
    return HeldActivity(workflow_id, execution, pending.activity_id, pending.activity_type.name, by, why, since)


def held_query(task_queue: str) -> str:
    """Return the list filter for workflows of a task queue with a paused activity."""
    return f"ExecutionStatus = 'Running' AND TemporalPauseInfo IS NOT NULL AND {query_equals('TaskQueue', task_queue)}"


async def find_held(client: Client, task_queue: str) -> AsyncIterator[HeldActivity]:
    """Yield the held activities of a task queue. The server's list is about a second old. Raises RPCError."""
    limit = asyncio.Semaphore(RELEASES_AT_ONCE)

    async def describe(workflow_id: str, execution: str) -> list[HeldActivity]:
        async with limit:
            try:
                found = await client.get_workflow_handle(workflow_id, run_id=execution).describe()
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    return []
                raise
        activities = found.raw_description.pending_activities
        return [held for pending in activities if (held := held_activity(workflow_id, execution, pending))]

    page = client.list_workflows(held_query(task_queue), page_size=200)
    while await _fetch_next(page):
        for listed in await asyncio.gather(*(describe(row.id, row.run_id) for row in page.current_page or ())):
            for held in listed:
                yield held


async def _fetch_next(page: Any) -> bool:
    if page.current_page is not None and not page.next_page_token:
        return False
    await page.fetch_next_page()
    return True


async def release_held(client: Client, task_queue: str, by: str) -> int:
    """Unpause the activities that `by` holds, and return their number. They begin anew. Raises RPCError."""
    limit, released = asyncio.Semaphore(RELEASES_AT_ONCE), 0

    async def release(held: HeldActivity) -> None:
        execution = WorkflowExecution(workflow_id=held.workflow_id, run_id=held.execution)
        request = UnpauseActivityRequest(
            namespace=client.namespace, execution=execution, identity=IDENTITY, id=held.activity_id
        )
        async with limit:
            try:
                await client.workflow_service.unpause_activity(request, retry=True)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:  # else it has ended
                    raise

    tasks = [asyncio.create_task(release(held)) async for held in find_held(client, task_queue) if held.by == by]
    released = len(tasks)
    await asyncio.gather(*tasks)
    return released

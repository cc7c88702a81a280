"""Activities that must not go on yet: one pauses itself on the server, leaves its worker, and begins again later.

While it is paused it costs nothing, has no timeout but its schedule-to-close, and the Web UI shows it as paused. The
reason that the server keeps begins with the name of what holds it (`perdure.activities.effects.held`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import PauseActivityRequest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from perdure.activities.effects.attempts import HOLD_KEY, HOLDS_KEY, Attempt, this_attempt
from perdure.activities.effects.held import IDENTITY, unpause
from perdure.activities.providers.rate_limit import RateLimitedError
from perdure.activities.temporal import own_workflow_id
from perdure.contracts.failures import HELD
from perdure.contracts.tool import Hold, Holdable
from perdure.decisions.text.formatting import truncate

MAX_REASON = 500  # characters
RETRY_PAUSE = 5.0  # seconds, if the server does not pause an activity
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
Confirm = Callable[[], Awaitable[bool]]
_confirms: ContextVar[list[Confirm]] = ContextVar("_confirms")


def confirm_hold(confirm: Confirm) -> None:
    """Have `confirm` awaited once the current activity is paused. If it returns False, nothing holds it any more.

    So a release is never missed that comes between the decision to wait and the pause.
    """
    if (confirms := _confirms.get(None)) is not None:
        confirms.append(confirm)


async def must_not_be_held() -> None:
    """Raise HeldError if something holds the current activity. Await it before each request to a provider."""
    for guard in _guards.get():
        await guard()


class HoldInterceptor(Interceptor):
    """Pauses activities that are held. `acting` are the types that may call a model or have an effect outside: before
    each of their attempts the guards are asked.
    """

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
        _guards.set(self._given.guards)
        if info.is_local:  # it cannot be paused: if it is held, its run makes it again as a normal one
            if info.activity_type in self._given.acting:
                await must_not_be_held()
            return await super().execute_activity(input)
        confirms: list[Confirm] = []
        _confirms.set(confirms)
        try:
            if info.activity_type in self._given.acting:
                await must_not_be_held()
            result = await super().execute_activity(input)
        except ApplicationError as held:  # redacted, it is no HeldError any more
            if held.type != HELD:
                raise
            await _through_own_pause(_pause_own(self._given.client, held, confirms))
            attempt = this_attempt()
            activity.heartbeat(
                {**attempt.beat_details, HOLDS_KEY: attempt.holds + 1, HOLD_KEY: _to_hold(held, attempt)}
            )
            raise
        else:
            hold = this_attempt().hold
            return result.evolve(hold=Hold.model_validate(hold)) if hold and isinstance(result, Holdable) else result


def _to_hold(held: ApplicationError, attempt: Attempt) -> dict[str, Any]:
    """Return the JSON of a hold, which goes on from an earlier one."""
    by, _, why = held.message.partition(" ")
    since = attempt.hold["since"] if attempt.hold else datetime.now(UTC)
    return Hold(by=by, why=why, since=since).model_dump(mode="json")


async def _through_own_pause(work: Coroutine[Any, Any, None]) -> None:
    """Await the pause. The SDK cancels an activity whose heartbeat is answered with it: here that is no news."""
    task = asyncio.create_task(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is None or not details.paused:
                task.cancel()
                raise
    task.result()


async def _pause_own(client: Client, held: ApplicationError, confirms: Sequence[Confirm]) -> None:
    info = activity.info()
    workflow_id, execution = own_workflow_id(), info.workflow_run_id or ""
    request = PauseActivityRequest(
        namespace=info.namespace,
        execution=WorkflowExecution(workflow_id=workflow_id, run_id=execution),
        identity=IDENTITY,
        id=info.activity_id,
        reason=held.message,
    )
    try:
        await client.workflow_service.pause_activity(request, retry=True)
        if not all([await confirm() for confirm in confirms]):
            await unpause(client, workflow_id, execution, info.activity_id)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:  # else its run has ended, or has cancelled it
            _log.warning("a held activity could not be paused, and tries again: %s", truncate(error.message, 200))
            await asyncio.sleep(RETRY_PAUSE)


class Holds:
    """The questions of a run about its holds."""

    @activity.defn
    async def is_held(self, run_id: str) -> bool:  # noqa: ARG002 - an activity takes a request
        """Return whether something holds the calling run, such as a pause."""
        try:
            await must_not_be_held()
        except HeldError:
            return True
        return False

"""The guards of a worker: it begins no call that may be another server's, and none that is held."""

from collections.abc import Sequence
from typing import Any

from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from perdure.activities.effects.holding import HoldInterceptor
from perdure.client.errors import TemporalUnavailableError
from perdure.client.guard import ServerGuard, guard_of
from perdure.contracts.failures import WORKER_SHUTDOWN
from perdure.registry import features, load_each

ACTING = ("plan", "reflect", "read_and_reflect", "summarize", "accept_outcome", "check_policy", "call_tool")
ACTING_SILENTLY = ("update_task",)  # its result, which is none, does not say that it was held


def guard_interceptors(client: Client) -> list[Interceptor]:
    """Return the interceptors of a guarded client's workers; none for another client."""
    guard = guard_of(client)
    return [_GuardInterceptor(guard)] if guard else []


def all_acting() -> list[str]:
    """Return the types of a worker's activities that may call a model or have an effect outside."""
    return [*ACTING, *ACTING_SILENTLY, *(name for feature in features().values() for name in feature.acting)]


def hold_interceptor(client: Client, task_queue: str, acting: Sequence[str]) -> HoldInterceptor:
    """Return what pauses activities of these types while a feature holds them."""
    return HoldInterceptor(client, [guard(client, task_queue) for guard in load_each("guard")], acting)


class _GuardInterceptor(Interceptor):
    def __init__(self, guard: ServerGuard) -> None:
        self._guard = guard

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's
        return _Inbound(next, self._guard)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, guard: ServerGuard) -> None:  # noqa: A002 - the SDK's
        super().__init__(next)
        self._guard = guard

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's
        """Give the call back before it begins, as a worker that is stopped does."""
        if not self._guard.is_sure:
            try:
                await self._guard.check()
            except TemporalUnavailableError as error:
                benign = ApplicationErrorCategory.BENIGN
                raise ApplicationError(str(error), type=WORKER_SHUTDOWN, category=benign) from None
        return await self.next.execute_activity(input)

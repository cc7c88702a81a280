"""The guard of a worker against another server: it begins no call that may be another server's."""

from typing import Any

from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from perdure.client.errors import TemporalUnavailableError
from perdure.client.guard import ServerGuard, guard_of
from perdure.contracts.failures import WORKER_SHUTDOWN


def guard_interceptors(client: Client) -> list[Interceptor]:
    """Return the interceptors of a guarded client's workers; none for another client."""
    guard = guard_of(client)
    return [_GuardInterceptor(guard)] if guard else []


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

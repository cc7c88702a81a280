"""Nothing secret leaves an activity: not by what it returns, nor by what it reports on the way or fails with.

Results are redacted where they come to be, since the transcript cache keeps them too and the hash chain must fit. The
rest has one way out, through the worker's interceptor.
"""

from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from activities.security.secrets import Secrets

V = TypeVar("V", bound=BaseModel)


def redacted(value: V, secrets: Secrets) -> V:
    """The same value where it holds no secret."""
    if not secrets:
        return value
    fields = value.model_dump()
    clean = secrets.redact_value(fields)
    return value if clean is fields else type(value).model_validate(clean)


def redacted_error(error: BaseException, secrets: Secrets) -> BaseException:
    """The same error where neither it nor what caused it holds a secret; else one that Temporal treats alike."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    clean_cause = redacted_error(cause, secrets) if cause else None
    ours = error if isinstance(error, ApplicationError) else ApplicationError(str(error), type=type(error).__name__)
    message, details = secrets.redact(ours.message), list(ours.details)
    clean_details = secrets.redact_value(details)
    if message == ours.message and clean_details is details and clean_cause is cause:
        return error
    clean = ApplicationError(
        message,
        *clean_details,
        type=ours.type,
        non_retryable=ours.non_retryable,
        next_retry_delay=ours.next_retry_delay,
        category=ours.category,
    )
    clean.__cause__ = clean_cause
    return clean.with_traceback(error.__traceback__)


class Redaction(Interceptor):
    """For workers: of every activity's heartbeats and failures."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's
        return _Inbound(next, self._secrets)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, secrets: Secrets) -> None:
        super().__init__(inner)
        self._secrets = secrets

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        super().init(_Outbound(outbound, self._secrets))

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's
        try:
            return await super().execute_activity(input)
        except Exception as error:
            clean = redacted_error(error, self._secrets)
            if clean is error:
                raise
            raise clean from clean.__cause__


class _Outbound(ActivityOutboundInterceptor):
    def __init__(self, inner: ActivityOutboundInterceptor, secrets: Secrets) -> None:
        super().__init__(inner)
        self._secrets = secrets

    def heartbeat(self, *details: Any) -> None:
        super().heartbeat(*self._secrets.redact_value(list(details)))

"""The redaction of what a worker's activities send to the server: heartbeats and failures."""

from typing import Any

from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from perdure.activities.security import Secrets


def redact_error(error: BaseException, secrets: Secrets) -> BaseException:
    """Return the error if it and its causes hold no secret, else a redacted one that Temporal treats alike."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    clean_cause = redact_error(cause, secrets) if cause else None
    failure = error if isinstance(error, ApplicationError) else ApplicationError(str(error), type=type(error).__name__)
    message, details = secrets.redact(failure.message), list(failure.details)
    clean_details = secrets.redact_value(details)
    if message == failure.message and clean_details is details and clean_cause is cause:
        return error
    clean = ApplicationError(
        message,
        *clean_details,
        type=failure.type,
        non_retryable=failure.non_retryable,
        next_retry_delay=failure.next_retry_delay,
        category=failure.category,
    )
    clean.__cause__ = clean_cause
    return clean.with_traceback(error.__traceback__)


class RedactionInterceptor(Interceptor):
    """A worker interceptor that redacts heartbeats and failures."""

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
        except ApplicationError as error:
            # An expected failure has no stack: the server cuts a failure above 4 KiB, its message and type with it.
            clean = redact_error(error, self._secrets).with_traceback(None)
            raise clean from clean.__cause__
        except Exception as error:
            clean = redact_error(error, self._secrets)
            if clean is error:
                raise
            raise clean from clean.__cause__


class _Outbound(ActivityOutboundInterceptor):
    def __init__(self, inner: ActivityOutboundInterceptor, secrets: Secrets) -> None:
        super().__init__(inner)
        self._secrets = secrets

    def heartbeat(self, *details: Any) -> None:
        super().heartbeat(*self._secrets.redact_value(list(details)))

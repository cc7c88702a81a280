"""Provider failures as named kinds: retryable or not, with the delay that the server asked for."""

import random
from datetime import timedelta

import anthropic
import httpx2
from temporalio.exceptions import ApplicationError

from activities.http.retry_after import retry_after
from contracts.failures import RunFailure, Stop

RETRYABLE_STATUSES = frozenset({408, 409, 425, 429})  # the only retryable 3xx and 4xx
UNSUPPORTED_STATUSES = frozenset({501, 505})  # the only 5xx that are not retryable
REQUEST_STATUSES = frozenset({400, 413, 422})
# An error within a stream has only a name; the second of two is Bedrock's.
RATE_KINDS = ("rate_limit_error", "throttlingexception")
REQUEST_KINDS = ("invalid_request_error", "validationexception", "request_too_large")
CALLER_KINDS = ("authentication_error", "permission_error", "not_found_error", "billing_error")
TOO_LONG_PHRASES = (
    "prompt is too long",
    "exceed_context_size",
    "exceed context limit",
    "context window",
    "input is too long",
    "context length",
    "maximum context",
    "context size",
)
MAX_PROVIDER_MESSAGE = 2000  # characters of a provider's message


class NotMessagesApiError(Exception):
    """The server's stream is not the Messages API. The message describes the stream."""


def to_model_failure(error: Exception, secret: str | None = None) -> ApplicationError:
    """Return the provider's failure as a named kind. `secret` is removed: some servers quote the key."""
    message = _error_message(error)
    message = (message.replace(secret, "[key]") if secret else message)[:MAX_PROVIDER_MESSAGE]
    if not isinstance(error, anthropic.APIStatusError):
        return _to_connection_failure(error, message)
    kind, status, headers = str(getattr(error, "type", None) or "").lower(), error.status_code, error.response.headers
    if _is_about_length(status, kind) and any(sign in message.lower() for sign in TOO_LONG_PHRASES):
        return ApplicationError(message, type=Stop.context_too_long, non_retryable=True)
    if status == 429 or kind in RATE_KINDS:
        return _retryable_failure(RunFailure.rate_limited, f"the provider limits the rate: {message}", headers)
    if _is_refusal(status, kind):
        url, where = error.request.url, ""
        if status in (404, 405):  # without credentials or query
            where = f" at {url.scheme}://{url.netloc.decode('ascii', 'replace').rpartition('@')[2]}{url.path}"
        return _model_refused_error(f"the provider refused the request ({status}){where}: {message}")
    return _retryable_failure(RunFailure.model_unavailable, f"the provider failed ({status}): {message}", headers)


def _to_connection_failure(error: Exception, message: str) -> ApplicationError:
    cause = error.__cause__ or error
    if isinstance(cause, httpx2.LocalProtocolError) and "header" in str(cause).lower():
        # The client's message quotes the header, which may be the key.
        return _model_refused_error("a key, or another header of the request, is none that HTTP takes")
    if isinstance(error, NotMessagesApiError):
        return model_unavailable_error(f"what the model's server sends is not the Messages API: {message}")
    if isinstance(cause, httpx2.ReadTimeout):
        return model_unavailable_error("the model's server sent nothing for longer than `turn_timeout` allows")
    if isinstance(error, anthropic.APIConnectionError):
        return model_unavailable_error(f"no connection to the model: {message}")
    return model_unavailable_error(f"the model's answer broke off: {type(error).__name__} {message}")


def _is_refusal(status: int, kind: str) -> bool:
    if status < 300:
        return kind in REQUEST_KINDS or kind in CALLER_KINDS
    return status in UNSUPPORTED_STATUSES or (status < 500 and status not in RETRYABLE_STATUSES)


def _is_about_length(status: int, kind: str) -> bool:
    """Return True if such a failure can mean that the prompt is too long; others mention windows and contexts too."""
    if status < 300:
        return kind not in (*RATE_KINDS, *CALLER_KINDS, "overloaded_error")
    return status in REQUEST_STATUSES


def model_unavailable_error(message: str) -> ApplicationError:
    return ApplicationError(message, type=RunFailure.model_unavailable)


def _error_message(error: Exception) -> str:
    body = error.body if isinstance(error, anthropic.APIStatusError) else None
    if isinstance(body, dict) and isinstance(body.get("error"), dict) and body["error"].get("message"):
        return str(body["error"]["message"])
    return str(error.__cause__ or error)


def _model_refused_error(message: str) -> ApplicationError:
    return ApplicationError(message, type=RunFailure.model_refused, non_retryable=True)


def _retryable_failure(kind: RunFailure, message: str, headers: httpx2.Headers) -> ApplicationError:
    """Return a retryable failure with the server's delay, spread so that many runs do not retry at once."""
    asked = retry_after(headers)
    if asked is None:
        return ApplicationError(message, type=kind)
    wait = asked * random.uniform(1.0, 1.1)  # noqa: S311 - spreads load, guards nothing
    return ApplicationError(message, type=kind, next_retry_delay=timedelta(seconds=wait))


def is_missing_credentials(error: Exception) -> bool:
    """Return True if a cloud's library has no credentials; its errors are not the SDK's own."""
    if isinstance(error, RuntimeError):
        return str(error).startswith("Could not resolve")
    return type(error).__module__.partition(".")[0] in ("boto3", "botocore", "google")

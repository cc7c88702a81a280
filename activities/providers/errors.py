"""Provider failures as named kinds: retryable or not, with the delay that the server asked for."""

import random
from datetime import timedelta
from typing import Any

import httpx2
from temporalio.exceptions import ApplicationError

from perdure.activities.http import retry_after
from perdure.contracts.failures import RunFailure, Stop

RETRYABLE_STATUSES = frozenset({408, 409, 425, 429})  # the only retryable 3xx and 4xx
UNSUPPORTED_STATUSES = frozenset({501, 505})  # the only 5xx that are not retryable
REQUEST_STATUSES = frozenset({400, 413, 422})
# An error within a stream has only names: Anthropic's, OpenAI's and Bedrock's.
RATE_KINDS = ("rate_limit_error", "rate_limit_exceeded", "throttlingexception")
REQUEST_KINDS = ("invalid_request_error", "validationexception", "request_too_large")
NO_CREDIT = "insufficient_quota"  # OpenAI's 429 that no wait mends
CALLER_KINDS = ("authentication_error", "permission_error", "not_found_error", "billing_error", NO_CREDIT)
KIND_FIELDS = ("type", "code", "status")  # of an error in a body
TOO_LONG_KIND = "context_length_exceeded"
TOO_LONG_PHRASES = (
    "prompt is too long",
    "exceed_context_size",
    "exceed context limit",
    "context window",
    "input is too long",
    "context length",
    "maximum context",
    "context size",
    "exceeds the maximum number of tokens",
)
# llama.cpp's 500s
REFUSED_PHRASES = ("image input is not supported", "failed to parse tool call arguments", "roles must alternate")
MAX_PROVIDER_MESSAGE = 2000  # characters of a provider's message


class NoReplyError(ApplicationError):
    """The provider has made no reply, so it charges nothing."""


class WrongApiError(Exception):
    """The server's answer is not of the expected API. The message names that, and describes the answer."""


def to_model_failure(error: Any, secret: str | None = None) -> ApplicationError:
    """Return the provider's failure as a named kind. `secret` is removed: some servers quote the key."""
    failure = _name_failure(error, secret)
    if not _made_no_reply(error):
        return failure
    return NoReplyError(
        failure.message,
        type=failure.type,
        non_retryable=failure.non_retryable,
        next_retry_delay=failure.next_retry_delay,
    )


def _made_no_reply(error: Any) -> bool:
    """Return whether the server answered with an error in place of a reply, or was not reached."""
    cause = error.__cause__ or error
    unsent = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.LocalProtocolError)
    return getattr(error, "status_code", 200) >= 300 or isinstance(cause, unsent)


def _name_failure(error: Any, secret: str | None) -> ApplicationError:
    message = _error_message(error)
    message = (message.replace(secret, "[key]") if secret else message)[:MAX_PROVIDER_MESSAGE]
    status, kinds = _status_of(error), _kinds_of(error)
    if status is None:
        return _to_connection_failure(error, message)
    if _is_about_length(status, kinds) and (TOO_LONG_KIND in kinds or _has_phrase(message, TOO_LONG_PHRASES)):
        return ApplicationError(message, type=Stop.context_too_long, non_retryable=True)
    headers = error.response.headers if hasattr(error, "response") else httpx2.Headers()
    if NO_CREDIT not in kinds and (status == 429 or kinds.intersection(RATE_KINDS)):
        return _retryable_failure(RunFailure.rate_limited, f"the provider limits the rate: {message}", headers)
    if _is_refusal(status, kinds, message):
        place = _place_of(error) if status in (404, 405) else ""
        return model_refused_error(f"the provider refused the request ({status}){place}: {message}")
    return _retryable_failure(RunFailure.model_unavailable, f"the provider failed ({status}): {message}", headers)


def _status_of(error: Any) -> int | None:
    """Return the status of an SDK's error, None if there was no answer.

    An error within a stream has 200, or the status that it names as its code.
    """
    status: int | None = getattr(error, "status_code", None)
    codes = [_inner_error(error).get(name) for name in ("code", "status")] if status == 200 else []
    return next((code for code in codes if isinstance(code, int) and 400 <= code < 600), status)


def _kinds_of(error: Any) -> frozenset[str]:
    names = [getattr(error, name, None) for name in ("type", "code")] + list(map(_inner_error(error).get, KIND_FIELDS))
    return frozenset(name.lower() for name in names if isinstance(name, str))


def _inner_error(error: Any) -> dict[str, Any]:
    """Return the fields of an error in its body, {} if there are none."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else body
    return inner if isinstance(inner, dict) else {}


def _place_of(error: Any) -> str:
    """Return the request's address, without credentials or query."""
    url = error.request.url
    return f" at {url.scheme}://{url.netloc.decode('ascii', 'replace').rpartition('@')[2]}{url.path}"


def _has_phrase(message: str, phrases: tuple[str, ...]) -> bool:
    return any(phrase in message.lower() for phrase in phrases)


def _to_connection_failure(error: Exception, message: str) -> ApplicationError:
    cause = error.__cause__ or error
    if isinstance(cause, httpx2.LocalProtocolError) and "header" in str(cause).lower():
        # The client's message quotes the header, which may be the key.
        return model_refused_error("a key, or another header of the request, is none that HTTP takes")
    if isinstance(error, WrongApiError):
        return model_unavailable_error(f"what the model's server sends is not {message}")
    if isinstance(error, httpx2.ReadTimeout) or isinstance(cause, httpx2.ReadTimeout):
        return model_unavailable_error("the model's server sent nothing for longer than `turn_timeout` allows")
    if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout):
        return model_unavailable_error(f"no connection to the model: {message}")
    return model_unavailable_error(f"the model's answer broke off: {type(error).__name__} {message}")


def _is_refusal(status: int, kinds: frozenset[str], message: str) -> bool:
    if status < 300:
        return bool(kinds.intersection((*REQUEST_KINDS, *CALLER_KINDS)))
    if status == 500 and _has_phrase(message, REFUSED_PHRASES):
        return True
    return status in UNSUPPORTED_STATUSES or NO_CREDIT in kinds or (status < 500 and status not in RETRYABLE_STATUSES)


def _is_about_length(status: int, kinds: frozenset[str]) -> bool:
    """Return True if such a failure can mean that the prompt is too long; others mention windows and contexts too."""
    if status < 300:
        return not kinds.intersection((*RATE_KINDS, *CALLER_KINDS, "overloaded_error"))
    return status in REQUEST_STATUSES


def model_unavailable_error(message: str) -> ApplicationError:
    return ApplicationError(message, type=RunFailure.model_unavailable)


def _error_message(error: Exception) -> str:
    body = getattr(error, "body", None)
    text = body.get("error") if isinstance(body, dict) else body
    message = _inner_error(error).get("message") or text
    return message if message and isinstance(message, str) else str(error.__cause__ or error)


def model_refused_error(message: str) -> ApplicationError:
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

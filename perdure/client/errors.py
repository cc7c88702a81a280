"""Exceptions of operations on runs; each message is one line for the caller."""

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.decisions.errors import ReportedError, format_validation_error
from perdure.decisions.text.formatting import truncate

_TRANSIENT_CODES = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.ABORTED,
)

# What a value of another shape than expected raises: of another version, or of another program's workflow.
UNEXPECTED_SHAPE = (ValidationError, LookupError, TypeError, AttributeError, ValueError)


class TemporalUnavailableError(ReportedError):
    """Temporal does not answer, or its configuration is not safe to use."""


class NotSearchableError(TemporalUnavailableError):
    """The namespace lacks a search attribute that a list needs."""


class RunNotFoundError(ReportedError):
    """No run has this id."""


class UnreadableRunError(ReportedError):
    """The history or the record of a run has another shape than this version expects."""


class RejectedError(ReportedError):
    """The run or the server rejected the request."""


class BadStartError(RejectedError):
    """The start names or holds what cannot work, in this `field` of its body."""

    def __init__(self, reason: str, field: str) -> None:
        super().__init__(reason)
        self.field = field


class StartTooLargeError(RejectedError):
    """The start is too large for a run."""


class AnswerRejectedError(RejectedError):
    """The run rejected the answer. The message may quote its question."""


class ResultRejectedError(RejectedError):
    """The run rejected a result from outside. `is_conflict`: it has another result for that step."""

    def __init__(self, reason: str, *, is_conflict: bool) -> None:
        super().__init__(reason)
        self.is_conflict = is_conflict


class RunNotCompletedError(ReportedError):
    """The run ended without a result.

    `reason` is the kind of its end, `text` the explanation, and `handoff` the state of the work and the next steps, for
    the person who continues it.
    """

    ending = "ended"

    def __init__(self, run_id: str, reason: str, text: str, handoff: str = "") -> None:
        super().__init__(": ".join(filter(None, (f"run {run_id} {self.ending}", reason, text))))
        self.run_id, self.reason, self.text, self.handoff = run_id, reason, text, handoff


class RunEscalatedError(RunNotCompletedError):
    """The run handed its task to a person. `reason` is an `Escalation`."""

    ending = "escalated"


class RunFailedError(RunNotCompletedError):
    """The run failed, or ran out of time. `reason` is a `RunFailure`."""

    ending = "failed"


class RunCancelledError(RunNotCompletedError):
    """The run was cancelled, or terminated in Temporal."""

    ending = "was cancelled"


@contextmanager
def convert_unreadable(run_id: str) -> Iterator[None]:
    """Convert the errors of a block that reads one run to one line that names it."""
    try:
        yield
    except UNEXPECTED_SHAPE as error:
        text = f"{type(error).__name__}: {error}"
        reason = format_validation_error(error) if isinstance(error, ValidationError) else text
        raise UnreadableRunError(f"run {run_id} cannot be read by this version: {truncate(reason)}") from error


@contextmanager
def convert_rpc_errors(subject: str) -> Iterator[None]:
    """Convert the block's errors of Temporal's client, about a subject such as "run x"."""
    try:
        yield
    except RPCError as error:
        raise convert_rpc_error(error, subject) from None


def convert_rpc_error(error: RPCError, subject: str) -> Exception:
    if error.status is RPCStatusCode.NOT_FOUND:
        closed = "already completed" in error.message
        return RejectedError(f"{subject} has ended") if closed else RunNotFoundError(f"there is no {subject}")
    return to_unavailable_error(error) or RejectedError(truncate(error.message))


def to_unavailable_error(error: RPCError) -> TemporalUnavailableError | None:
    """Return an exception if Temporal is down or busy: the call may be repeated, and may have taken effect."""
    is_too_large = "larger than max" in error.message  # gRPC has no other status for it
    if error.status not in _TRANSIENT_CODES or is_too_large:
        return None
    return TemporalUnavailableError(f"Temporal does not answer: {truncate(error.message)}")

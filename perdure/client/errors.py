"""Exceptions of operations on runs; each message is one line for the caller."""

from temporalio.service import RPCError, RPCStatusCode

from decisions.text.formatting import cut

_PASSING = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.ABORTED,
)


class NotReachable(Exception):
    """Temporal does not answer, or its configuration is not safe to use."""


class NoSuchRun(Exception):
    """No run has this id."""


class Refused(Exception):
    """The run or the server rejected the request."""


class TooLarge(Refused):
    """The start is too large for a run."""


class AnswerRefused(Refused):
    """The run rejected the answer. The message may quote its question."""


class ResultRefused(Refused):
    """The run rejected a result from outside. `is_conflict`: it has another result for that step."""

    def __init__(self, reason: str, *, is_conflict: bool) -> None:
        super().__init__(reason)
        self.is_conflict = is_conflict


def translated(error: RPCError, subject: str) -> Exception:
    """Convert an error of Temporal's client about `named`, such as "run x"."""
    if error.status is RPCStatusCode.NOT_FOUND:
        closed = "already completed" in error.message
        return Refused(f"{subject} has ended") if closed else NoSuchRun(f"there is no {subject}")
    return unanswered(error) or Refused(cut(error.message, 300))


def unanswered(error: RPCError) -> NotReachable | None:
    """Return an exception if Temporal is down or busy: the call may be repeated, and may have taken effect."""
    is_too_large = "larger than max" in error.message  # gRPC has no other status for it
    if error.status not in _PASSING or is_too_large:
        return None
    return NotReachable(f"Temporal does not answer: {cut(error.message, 200)}")

"""Why something could not be done with runs, as whoever asked should hear it."""

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
    """Temporal does not answer, or must not be spoken to as it is configured."""


class NoSuchRun(Exception):
    """There is no run of this id."""


class Refused(Exception):
    """The run, or the server, does not take what was sent."""


class TooLarge(Refused):
    """A run could not begin with as much as this start says."""


class AnswerRefused(Refused):
    """The run does not take the answer. The message may quote what it asks."""


class ResultRefused(Refused):
    """The run does not take a result from outside. `is_conflict`: it has another one for that step."""

    def __init__(self, reason: str, *, is_conflict: bool) -> None:
        super().__init__(reason)
        self.is_conflict = is_conflict


def translated(error: RPCError, named: str) -> Exception:
    """What Temporal's client says of "run x", or of something else."""
    if error.status is RPCStatusCode.NOT_FOUND:
        closed = "already completed" in error.message
        return Refused(f"{named} has ended") if closed else NoSuchRun(f"there is no {named}")
    return unanswered(error) or Refused(cut(error.message, 300))


def unanswered(error: RPCError) -> NotReachable | None:
    """Where Temporal did not say no, but is away or too busy: the same may be asked again. It may have been done."""
    is_too_large = "larger than max" in error.message  # gRPC has no other status for it
    if error.status not in _PASSING or is_too_large:
        return None
    return NotReachable(f"Temporal does not answer: {cut(error.message, 200)}")

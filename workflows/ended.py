"""How a turn of a conversation ended, as its lane hears it: by its result, its failure, or by looking."""

from dataclasses import dataclass
from typing import Any

from temporalio.exceptions import ApplicationError, CancelledError, ChildWorkflowError, TerminatedError

from contracts.conversation import TurnEnd
from contracts.failures import RunFailure
from contracts.reconcile import Standing

_STANDINGS = {
    Standing.completed: TurnEnd.completed,
    Standing.cancelled: TurnEnd.cancelled,
    Standing.terminated: TurnEnd.cancelled,
    Standing.timed_out: TurnEnd.timed_out,
}


@dataclass(frozen=True)
class Ended:
    """`said` is the outcome, or why there is none."""

    end: TurnEnd
    said: str = ""


def of_standing(standing: Standing) -> Ended:
    return Ended(_STANDINGS.get(standing, TurnEnd.failed))


def of_event(event: dict[str, Any]) -> Ended:
    payload = event["payload"]
    if event["type"] == "agent.completed":
        return Ended(TurnEnd.completed, payload["outcome"])
    return Ended(TurnEnd.escalated, f"{payload['reason']}: {payload['detail']}")


def of_failure(error: ChildWorkflowError) -> Ended:
    match error.cause:
        case ApplicationError() as cause:
            end = TurnEnd.timed_out if cause.type == RunFailure.hard_limit else TurnEnd.failed
            return Ended(end, cause.message)
        case CancelledError():
            return Ended(TurnEnd.cancelled)
        case TerminatedError() as cause:
            return Ended(TurnEnd.cancelled, f"terminated: {cause.message}")
        case cause:
            return Ended(TurnEnd.timed_out, str(cause))

"""How a turn of a conversation ended, as its lane hears it: by its result, its failure, or by looking."""

from dataclasses import dataclass
from typing import Any

from temporalio.exceptions import ApplicationError, CancelledError, ChildWorkflowError, TerminatedError

from contracts.conversation import TurnEnd
from contracts.failures import RunFailure
from contracts.reconcile import Standing
from decisions.endings import said_in

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
    end = TurnEnd.completed if event["type"] == "agent.completed" else TurnEnd.escalated
    return Ended(end, said_in(event))


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

"""A run's status as the state of a task, in the words of A2A."""

from collections.abc import Mapping

from perdure.contracts.failures import RunFailure
from perdure.contracts.run.state import RunStatus

SUBMITTED, INPUT, WORKING, LOGIN, REJECTED = (
    "TASK_STATE_SUBMITTED",
    "TASK_STATE_INPUT_REQUIRED",
    "TASK_STATE_WORKING",
    "TASK_STATE_AUTH_REQUIRED",
    "TASK_STATE_REJECTED",
)
OPEN = (SUBMITTED, INPUT, WORKING, LOGIN)
TASK_STATES: Mapping[RunStatus, str] = {
    RunStatus.queued: SUBMITTED,
    RunStatus.running: WORKING,
    RunStatus.waiting_on_tool: WORKING,
    RunStatus.waiting_on_human: INPUT,
    RunStatus.completed: "TASK_STATE_COMPLETED",
    RunStatus.escalated: "TASK_STATE_FAILED",
    RunStatus.cancelled: "TASK_STATE_CANCELED",
    RunStatus.timed_out: "TASK_STATE_FAILED",
    RunStatus.failed: "TASK_STATE_FAILED",
}
LOGIN_QUESTION = "question:login:"  # the start of the names of logins that a run waits for
_NEVER_BEGAN = (RunFailure.invalid_input, RunFailure.unknown_agent, RunFailure.bad_project)


def state_of_open(status: RunStatus, held_by: str) -> str:
    """Return the state of an open run; `held_by` is the name of what holds its next call, or empty.

    One that is about to close is still at work: its outcome cannot be read yet.
    """
    is_login = held_by.startswith(LOGIN_QUESTION) and status is not RunStatus.waiting_on_human
    state = LOGIN if is_login else TASK_STATES[status]
    return state if state in OPEN else WORKING


def state_of_end(status: RunStatus, kind: str) -> str:
    """Return the state of an ended run; `kind` is that of its failure."""
    return REJECTED if kind in _NEVER_BEGAN else TASK_STATES[status]

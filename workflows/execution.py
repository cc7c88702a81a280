"""Activities as a workflow runs them: on a worker that can decrypt them, cancelled in order, or local first.

A local activity runs in the worker that has the workflow, and costs the server one line of history: no task of its own,
and no further workflow task. But while it runs it is shown nowhere, and no signal is handled. So it has little time and
one attempt; a full disk or a share that hangs is waited out by a normal activity.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, FailureError, TimeoutType
from temporalio.exceptions import TimeoutError as TimedOut
from temporalio.workflow import ActivityCancellationType, ActivityHandle

from perdure.contracts.bounds import ENDLESS, Backoff
from perdure.contracts.conversation import Ended
from perdure.contracts.failures import HELD, WORKER_SHUTDOWN, Stop, ToolFault
from perdure.contracts.models import HEARTBEAT_TIMEOUT, MAX_DURATION
from perdure.contracts.run.limits import Limits
from perdure.contracts.run.turn import READS_TIME, TURN_MARGIN
from perdure.contracts.tool import (
    CALL_MARGIN,
    RETRIES_USED_UP,
    RETRY_DELAYS,
    Effect,
    QueueRoute,
    ToolOutcome,
    ToolRoute,
    error_outcome,
)
from perdure.decisions.run.limits import longest_turn
from perdure.decisions.run.recovery import FailureKind
from perdure.workflows.activities import Activities

T = TypeVar("T")

MAX_STOP_TIME = timedelta(minutes=3)  # for running effects to end after a cancel
READ_STOP_TIME = timedelta(seconds=5)  # for reads and model calls: their worker may hear of it at its next heartbeat
STOP_TIME_PER_LEVEL = timedelta(seconds=20)  # for each level of runs below it, which has its own files to close


class Cancellation:
    def __init__(self) -> None:
        self.reason: str | None = None
        self.levels = 0  # of runs below this one that have to stop first
        self._stoppable: list[asyncio.Task[Any]] = []
        self._stopped = False
        self._stopping: asyncio.Task[None] | None = None  # kept, since the event loop holds no task

    def request(self, reason: str) -> None:
        """Start nothing from now on, and stop what is cancellable. The first reason stays."""
        if self.reason is None:
            self.reason = reason
            self._stopping = asyncio.create_task(self._cancel_tasks())

    async def _cancel_tasks(self) -> None:
        # A task that is cancelled as its activity ends loses the result, so results of this activation come first.
        await workflow.wait_condition(lambda: True)
        for task in list(self._stoppable):
            task.cancel()
        self._stopped = True

    def raise_if_cancelled(self) -> None:
        """Raises CancelledError once a cancel is requested; to be called before each next step."""
        if self.reason is not None:
            raise asyncio.CancelledError

    async def cancellable(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine that a cancel stops. Raises CancelledError if that ended it, or came before it."""
        if self.reason is not None:
            coroutine.close()
            raise asyncio.CancelledError
        task = asyncio.create_task(coroutine)
        self._stoppable.append(task)
        try:
            return await task
        finally:
            self._stoppable.remove(task)

    async def shield(self, coroutine: Coroutine[Any, Any, T], limit: Callable[[], timedelta] | None = None) -> T:
        """Await a coroutine to its end, and turn Temporal's cancel into a request.

        Raises CancelledError if it lasts longer than `limit`, asked at a request, or somewhat more with runs below it.
        """
        task = asyncio.create_task(coroutine)
        deadline: float | None = None
        while not task.done():
            if deadline is None and limit is not None and self.reason is not None:
                deadline = workflow.time() + (limit() + self.levels * STOP_TIME_PER_LEVEL).total_seconds()
            was_requested = self.reason is not None
            try:
                await workflow.wait_condition(
                    lambda: task.done() or (self._stopped and not was_requested),  # noqa: B023 - awaited in this round
                    timeout=None if deadline is None else max(deadline - workflow.time(), 0.001),
                    timeout_summary="finish what is running, then stop",
                )
            except asyncio.CancelledError:
                self.request(workflow.cancellation_reason() or "cancelled in Temporal")
            except TimeoutError:
                raise asyncio.CancelledError from None
        return task.result()


_KIND_OF_STOP: dict[str, FailureKind] = {Stop.in_doubt: FailureKind.in_doubt, Stop.not_begun: FailureKind.not_begun}


def classify_failure(error: ActivityError) -> FailureKind:
    """Classify the error of an activity whose cancel waits for its end and stops it only before its effect."""
    cause = error.cause
    if isinstance(cause, CancelledError):
        return FailureKind.cancelled
    if isinstance(cause, ApplicationError):
        return (
            FailureKind.lost
            if cause.type == WORKER_SHUTDOWN
            else _KIND_OF_STOP.get(cause.type or "", FailureKind.failed)
        )
    if isinstance(cause, TimedOut):
        return FailureKind.lost if cause.type is TimeoutType.HEARTBEAT else FailureKind.late
    return FailureKind.lost


def to_tool_outcome(error: ActivityError, effect: Effect) -> ToolOutcome:
    """Return the failure as an outcome for the model."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        note = " (it may have happened)" if effect is Effect.once else RETRIES_USED_UP
        note = "" if cause.non_retryable else note
        return error_outcome(
            cause.type or ToolFault.tool_error, f"{cause.message}{note}", retryable=not cause.non_retryable
        )
    happened = "" if effect is Effect.read else "; it may have happened"
    return error_outcome(ToolFault.timeout, f"the call did not come to an end in time{happened}", retryable=True)


Policy = dict[str, Any]  # the options of an activity, as Temporal names them

# The only type of cancellation that returns how a cancelled activity ended.
WAIT_FOR_END = ActivityCancellationType.WAIT_CANCELLATION_COMPLETED

# A dead worker is found within this time. `[worker] heartbeat` replaces it (`perdure.workflows.interceptors`), and an
# activity heartbeats according to the timeout that it was scheduled with (`perdure.activities.effects.attempts`).
HEARTBEAT = HEARTBEAT_TIMEOUT

NO_RETRY = RetryPolicy(maximum_attempts=1)


def retrying(pauses: Backoff) -> RetryPolicy:
    """Return Temporal's form of the pauses."""
    return RetryPolicy(
        initial_interval=timedelta(seconds=pauses.first),
        backoff_coefficient=pauses.factor,
        maximum_interval=timedelta(seconds=pauses.most),
        maximum_attempts=0 if pauses.retries == ENDLESS else 1 + pauses.retries,
    )


# The activity decides retry delays (`perdure.activities.model.turn.PAUSES`) and counts attempts. Rate-limited calls are
# not attempts, but Temporal counts them, so the limit here is high. Temporal itself only retries a turn that was lost
# with its worker, which another worker can take at once.
MODEL_RETRIES = retrying(Backoff(1, 1, retries=999))

# B1: three retries, after 0.5, 2 and 8 s, if a repeat does no harm. B2: a repeat of a `once` call could have its effect
# twice, so there is none. If a worker is lost, the ledger or a person settles the call, in an activity of its own.
TOOL_RETRIES: dict[Effect, RetryPolicy] = {
    Effect.read: retrying(RETRY_DELAYS),
    Effect.keyed: retrying(RETRY_DELAYS),
    Effect.once: NO_RETRY,
}

# The run's own files: retrying until the disk is back loses nothing, and the run must not end without its record.
FILES: Policy = {
    "start_to_close_timeout": timedelta(minutes=5),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": retrying(Backoff(1, 30)),
}

# A message that is sent. The attempt keeps to the project's outbox timeout by itself: if Temporal cut it off first, a
# keyed message would be sent forever. A dead worker is found by its heartbeat.
SENDING: Policy = FILES | {"start_to_close_timeout": MAX_DURATION + CALL_MARGIN}

# A notice to people. A channel that is down, or whose address has to be corrected, has three days.
NOTIFYING: Policy = {
    "schedule_to_close_timeout": timedelta(days=3),
    "start_to_close_timeout": timedelta(minutes=1),
    "retry_policy": retrying(Backoff(1, 600)),
}

# The run's own files within a workflow task, which has ten seconds (`perdure.workflows.execution`).
LOCAL_ACTIVITY: Policy = {
    "schedule_to_close_timeout": timedelta(seconds=5),
    "retry_policy": NO_RETRY,
}

# A large result of another worker. The call is over: if its result cannot be stored, the model gets an error.
KEEPING: Policy = {
    "start_to_close_timeout": timedelta(minutes=1),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": retrying(Backoff(1, 8, retries=4)),
}

# Beyond the summarizing model's own time: reading the conversation, writing the trace. The activity stops the model by
# itself, and then does without one; if Temporal cut it off first, it would be retried forever.
SUMMARY_MARGIN = timedelta(minutes=2)

# The wait for the end of a run: each attempt is a check, and sets the delay of the next one.
WATCHING: Policy = {
    "start_to_close_timeout": timedelta(seconds=20),
    "retry_policy": retrying(Backoff(1, 5)),
}

# An answer that a person gave to a lane: its run accepts or refuses it at once. If no worker has the run, or it is
# wedged, the answer must not hold up the lane, which then sends it to the run as a signal.
ANSWERING_TURNS: Policy = {
    "start_to_close_timeout": timedelta(seconds=20),
    "retry_policy": retrying(Backoff(1, 2, retries=2)),
}

# A query of the server's index for a turn that an earlier lane left open. If it fails, the conversation continues.
FINDING_OPEN_TURN: Policy = {
    "start_to_close_timeout": timedelta(seconds=20),
    "retry_policy": retrying(Backoff(1, 8, retries=4)),
}

# A pass of the reconciler. Repeating it does no harm, so it is retried until it succeeds: the schedule starts no second
# one while it runs.
MAX_RECONCILE_TIME = timedelta(minutes=10)
RECONCILE_RETRIES = retrying(Backoff(1, 60))

# A message for an agent that lives outside, however long no bridge of its folder is running.
MAILING: Policy = {
    "start_to_close_timeout": timedelta(minutes=1),
    "retry_policy": retrying(Backoff(1, 30)),
}

# Its withdrawal, if a bridge is running. One that is missed is found by the next bridge.
WITHDRAWING: Policy = {
    "start_to_close_timeout": timedelta(seconds=10),
    "schedule_to_close_timeout": timedelta(seconds=10),
    "retry_policy": retrying(Backoff(1, 100)),
}


def model_turn_policy(limits: Limits) -> Policy:
    return {
        "start_to_close_timeout": longest_turn(limits) + TURN_MARGIN,
        "heartbeat_timeout": HEARTBEAT,
        "retry_policy": MODEL_RETRIES,
    }


def fused_turn_policy(limits: Limits) -> Policy:
    """One attempt: if it does not get to its end, the reads and the turn become activities of their own."""
    return {
        "start_to_close_timeout": READS_TIME + longest_turn(limits) + TURN_MARGIN,
        "heartbeat_timeout": HEARTBEAT,
        "retry_policy": NO_RETRY,
    }


def summary_policy(limits: Limits) -> Policy:
    return FILES | {"start_to_close_timeout": longest_turn(limits) + SUMMARY_MARGIN}


def tool_call_policy(route: ToolRoute, effect: Effect) -> Policy:
    return {
        "start_to_close_timeout": route.timeout + CALL_MARGIN,
        "heartbeat_timeout": HEARTBEAT,
        "retry_policy": TOOL_RETRIES[effect],
    }


def queue_call_policy(route: ToolRoute, queue: QueueRoute, effect: Effect) -> Policy:
    return {
        "task_queue": queue.task_queue,
        "schedule_to_start_timeout": route.timeout,
        "start_to_close_timeout": route.timeout,
        "heartbeat_timeout": queue.heartbeat,
        "retry_policy": TOOL_RETRIES[effect],
    }


Q = TypeVar("Q")
R = TypeVar("R")

KEY_WAIT = timedelta(seconds=10)  # people add keys and restart workers
_UNKNOWN_KEY = "UnknownKeyError"  # the codec's own error, as Temporal names it


async def execute_activity(
    cancellation: Cancellation,
    activity: Callable[[Any, Q], Awaitable[R]],
    request: Q,
    summary: str,
    policy: Policy = FILES,
) -> R:
    """Run an activity, and again until a worker can decrypt its request. Raises ActivityError if it fails.

    A worker without the run's key has not begun it, so this repeats whatever the retry policy allows. So does a hold
    that ended while the worker asked the server for it. A cancel of this task asks the activity to stop, and waits for
    how it ends.
    """
    named: Any = activity

    while True:
        try:
            result: R = await workflow.execute_activity(
                named, request, summary=summary, cancellation_type=WAIT_FOR_END, **policy
            )
            return result
        except ActivityError as error:
            if _was_held(error):
                continue
            if not _was_undecryptable(error):
                raise
        await cancellation.cancellable(workflow.sleep(KEY_WAIT, summary="a worker lacks the key of this run"))


def _was_held(error: ActivityError) -> bool:
    return isinstance(error.cause, ApplicationError) and error.cause.type == HELD


def _was_undecryptable(error: ActivityError) -> bool:
    """Return whether the arguments could not be decrypted, so that nothing has happened."""
    cause = error.cause.cause if isinstance(error.cause, ApplicationError) else None
    return isinstance(cause, ApplicationError) and cause.type == _UNKNOWN_KEY


async def execute_locally_first(
    cancellation: Cancellation, activity: Callable[[Any, Q], Awaitable[R]], request: Q, summary: str
) -> R:
    """Run a repeatable activity as a local one, and if that fails as a normal one.

    A continue-as-new must not follow directly: a signal that comes just then would be lost.

    Raises ActivityError, and asyncio.CancelledError.
    """
    named: Any = activity
    try:
        result: R = await workflow.execute_local_activity(named, request, summary=summary, **LOCAL_ACTIVITY)
    except FailureError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # by the run itself; a worker that shuts down cancels, too
            raise asyncio.CancelledError from None
    else:
        return result
    return await execute_activity(cancellation, activity, request, summary)


def start_watch(workflow_id: str, summary: str, *, is_ending: bool = False) -> ActivityHandle[Ended]:
    """Begin to wait for the end of a workflow that this one has no handle for, since it did not start it."""
    args: list[Any] = [workflow_id, *([True] if is_ending else [])]
    return workflow.start_activity_method(Activities.watch_run, args=args, summary=summary, **WATCHING)


async def watch_or_cancel(workflow_id: str, summary: str) -> None:
    """Wait for the end of a workflow; a cancel of the wait cancels that workflow, and still waits for its end."""
    try:
        await start_watch(workflow_id, summary)
    except ActivityError as error:
        if not isinstance(error.cause, CancelledError):
            raise
        with suppress(ApplicationError):  # it has ended
            await workflow.get_external_workflow_handle(workflow_id).cancel()
        await start_watch(workflow_id, summary)

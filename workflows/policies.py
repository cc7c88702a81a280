"""Timeouts and retries of every activity, each with its reason."""

from datetime import timedelta
from typing import Any

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

from contracts.duration import HEARTBEAT_TIMEOUT, MAX_DURATION
from contracts.run.fused_turn import READS_TIME
from contracts.run.limits import Limits
from contracts.run.turn import TURN_MARGIN
from contracts.tool import CALL_MARGIN, RETRY_DELAYS, Effect, QueueRoute, ToolRoute
from decisions.run.limits import longest_turn

Policy = dict[str, Any]  # the options of an activity, as Temporal names them

# The only type of cancellation that returns how a cancelled activity ended.
WAIT_FOR_END = ActivityCancellationType.WAIT_CANCELLATION_COMPLETED

# A dead worker is found within this time. `[worker] heartbeat` replaces it (`workflows.interceptors`), and an activity
# heartbeats according to the timeout that it was scheduled with (`activities.effects.beats`).
HEARTBEAT = HEARTBEAT_TIMEOUT

# The activity decides retry delays (`activities.model.turn.PAUSES`) and counts attempts. Rate-limited calls are not
# attempts, but Temporal counts them, so the limit here is high. Temporal itself only retries a turn that was lost with
# its worker, which another worker can take at once.
MODEL_RETRIES = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    backoff_coefficient=1.0,
    maximum_attempts=1000,
)

# B1: three retries, after 0.5, 2 and 8 s, if a repeat does no harm.
_REPEATABLE = RetryPolicy(
    initial_interval=timedelta(seconds=RETRY_DELAYS[0]),
    backoff_coefficient=RETRY_DELAYS[1] / RETRY_DELAYS[0],
    maximum_interval=timedelta(seconds=RETRY_DELAYS[-1]),
    maximum_attempts=1 + len(RETRY_DELAYS),
)

# B2: a repeat could have the effect twice, so there is none. If a worker is lost, the ledger or a person settles the
# call, in an activity of its own.
_NEVER_AGAIN = RetryPolicy(maximum_attempts=1)

TOOL_RETRIES: dict[Effect, RetryPolicy] = {
    Effect.read: _REPEATABLE,
    Effect.keyed: _REPEATABLE,
    Effect.once: _NEVER_AGAIN,
}

# The run's own files: retrying until the disk is back loses nothing, and the run must not end without its record.
FILES: Policy = {
    "start_to_close_timeout": timedelta(minutes=5),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30)),
}

# A message that is sent. The attempt keeps to the project's outbox timeout by itself: if Temporal cut it off first, a
# keyed message would be sent forever. A dead worker is found by its heartbeat.
SENDING: Policy = FILES | {"start_to_close_timeout": MAX_DURATION + CALL_MARGIN}

# A notice to people. A channel that is down, or whose address has to be corrected, has three days.
NOTIFYING: Policy = {
    "schedule_to_close_timeout": timedelta(days=3),
    "start_to_close_timeout": timedelta(minutes=1),
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=10)),
}

# The run's own files within a workflow task, which has ten seconds (`workflows.execution`).
LOCAL_ACTIVITY: Policy = {
    "schedule_to_close_timeout": timedelta(seconds=5),
    "retry_policy": RetryPolicy(maximum_attempts=1),
}

# A large result of another worker. The call is over: if its result cannot be stored, the model gets an error.
KEEPING: Policy = {
    "start_to_close_timeout": timedelta(minutes=1),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=5),
}

# Beyond the summarizing model's own time: reading the conversation, writing the trace. The activity stops the model by
# itself, and then does without one; if Temporal cut it off first, it would be retried forever.
SUMMARY_MARGIN = timedelta(minutes=2)

# The wait for the end of a run: each attempt is a look, and sets the delay of the next one.
WATCHING: Policy = {
    "start_to_close_timeout": timedelta(seconds=20),
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=5)),
}

# An answer that a person gave to a lane: its run accepts or refuses it at once. If no worker has the run, or it is
# wedged, the answer must not hold up the lane, which then sends it to the run as a signal.
ANSWERING_TURNS: Policy = {
    "start_to_close_timeout": timedelta(seconds=20),
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=3),
}

# A query of the server's index for a turn that an earlier lane left open. If it fails, the conversation continues.
LOOK_BACK: Policy = {
    "start_to_close_timeout": timedelta(seconds=20),
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=5),
}

# A look of the reconciler. Repeating it does no harm, so it is retried until it succeeds: the schedule starts no second
# one while it runs.
MAX_RECONCILE_TIME = timedelta(minutes=10)
RECONCILE_RETRIES = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=1))

# The tasks of a folder's bridges, however long no bridge is running.
CARRYING: Policy = {
    "start_to_close_timeout": timedelta(minutes=5),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30)),
}

# A look at the silent runs of a mailbox. If it fails, the next one is due later.
LOOKING_AT_TURNS: Policy = {
    "start_to_close_timeout": timedelta(minutes=1),
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=5),
}


# The wait for a reply of a batch. The provider ends a batch within 24 hours. A turn is sent three times at most, and
# again for at most three further pieces of its reply.
BATCHED_TURN: Policy = {
    "schedule_to_close_timeout": timedelta(hours=160),
    "retry_policy": RetryPolicy(maximum_attempts=1),
}

# The next attempt looks for the batch that this one may have sent. A provider that is down is waited for.
CREATING_BATCH: Policy = {
    "start_to_close_timeout": timedelta(minutes=10),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": RetryPolicy(
        initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=1), maximum_attempts=30
    ),
}

# Each attempt is a look, and sets the delay of the next one. The batch has ended after 24 hours.
LOOKING_AT_BATCH: Policy = {
    "start_to_close_timeout": timedelta(minutes=1),
    "schedule_to_close_timeout": timedelta(hours=26),
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=5)),
}

# Completing activities: repeating it does no harm, and the replies are kept for 29 days.
DELIVERING_BATCH: Policy = FILES | {"start_to_close_timeout": timedelta(hours=1)}


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
        "retry_policy": RetryPolicy(maximum_attempts=1),
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

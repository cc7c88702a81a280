"""Timeouts and retries of every activity, each with its why."""

from datetime import timedelta
from typing import Any

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

from contracts.duration import LONGEST
from contracts.tool import CALL_MARGIN, RETRY_DELAYS, Effect

# Only with this the run hears how an activity ended that it asked to stop.
WAIT_FOR_END = ActivityCancellationType.WAIT_CANCELLATION_COMPLETED

# A dead worker is found within this; the activities beat every second.
HEARTBEAT = timedelta(seconds=10)

# The activity decides retry delays (`activities.model.turn.PAUSES`) and counts attempts. Rate-limited calls are not
# attempts, but Temporal counts them, so the limit here is high. Temporal itself only retries a turn that was lost with
# its worker, which another worker can take at once.
MODEL_RETRIES = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    backoff_coefficient=1.0,
    maximum_attempts=1000,
)

# B1: three retries, after 0.5, 2 and 8 s, where a repeat does no harm.
_REPEATABLE = RetryPolicy(
    initial_interval=timedelta(seconds=RETRY_DELAYS[0]),
    backoff_coefficient=RETRY_DELAYS[1] / RETRY_DELAYS[0],
    maximum_interval=timedelta(seconds=RETRY_DELAYS[-1]),
    maximum_attempts=1 + len(RETRY_DELAYS),
)

# B2: a repeat could do the thing twice, so there is none. What a lost worker leaves behind, the ledger or a person
# settles, in an activity of its own.
_NEVER_AGAIN = RetryPolicy(maximum_attempts=1)

TOOL_RETRIES: dict[Effect, RetryPolicy] = {
    Effect.read: _REPEATABLE,
    Effect.keyed: _REPEATABLE,
    Effect.once: _NEVER_AGAIN,
}

# An activity that was lost with its worker, after all its attempts, is made anew this often. What kills whoever makes
# it must not go on for ever.
MOST_LOST = 3

# Our own files: nothing is lost by trying until the disk is back, and the run must not end without its record.
FILES: dict[str, Any] = {
    "start_to_close_timeout": timedelta(minutes=5),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30)),
}

# A message that goes out. How long one attempt may take, the project's outbox says, and the attempt keeps to it: where
# Temporal cut it off first, one that honours keys would be sent for ever. A dead worker is found by its heartbeat.
SENDING: dict[str, Any] = FILES | {"start_to_close_timeout": LONGEST + CALL_MARGIN}

# Our own files within a workflow task, which has ten seconds (`workflows.agent_run.local_first`).
IN_PASSING: dict[str, Any] = {
    "schedule_to_close_timeout": timedelta(seconds=5),
    "retry_policy": RetryPolicy(maximum_attempts=1),
}

# A large result of another worker. The call is made and over: where it cannot be kept, the model is told so.
KEEPING: dict[str, Any] = {
    "start_to_close_timeout": timedelta(minutes=1),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=5),
}

# Beyond the summarising model's own time: reading the conversation, writing the trace. The activity gives the model up
# by itself, and then does without one; where Temporal cut it off first, it would be tried for ever.
SUMMARY_MARGIN = timedelta(minutes=2)

# The wait for the end of a run: each attempt is a look, and says itself when the next one is due.
WATCHING: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=20),
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=5)),
}

# An answer that a person gave to a lane: its run takes it at once, or says that it does not fit. Where no worker has
# the run, or it is wedged, the answer must not hold up the lane: it is left with the run then, as a signal.
ANSWER: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=20),
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=3),
}

# Whether an earlier lane left a turn open, the server's index tells. Where it cannot, the conversation goes on.
LOOK_BACK: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=20),
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=5),
}

# A look of the reconciler. It repeats nothing that harms, so it is tried until it comes through: a second one would
# not be started beside it.
MOST_LOOKING = timedelta(minutes=10)
LOOK_RETRIES = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=1))

# What the bridges of a folder are to do, however long none is there: the order stands.
CARRYING: dict[str, Any] = {
    "start_to_close_timeout": timedelta(minutes=5),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30)),
}

# A look at the runs of a mailbox that are silent. Where it does not come through, the next one is due later.
LOOKING_AT_TURNS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(minutes=1),
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=5),
}

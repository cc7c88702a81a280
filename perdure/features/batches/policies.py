"""Timeouts and retries of the activities, each with its reason."""

from datetime import timedelta

from perdure.contracts.bounds import Backoff
from perdure.workflows.execution import FILES, HEARTBEAT, NO_RETRY, Policy, retrying

# The wait for a reply of a batch. The provider ends a batch within 24 hours. A turn is sent three times at most, and
# again for at most three further pieces of its reply.
BATCHED_TURN: Policy = {
    "schedule_to_close_timeout": timedelta(hours=160),
    "retry_policy": NO_RETRY,
}

# The next attempt looks for the batch that this one may have sent. A provider that is down is waited for.
CREATING_BATCH: Policy = {
    "start_to_close_timeout": timedelta(minutes=10),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": retrying(Backoff(1, 60, retries=29)),
}

# Each attempt is a check, and sets the delay of the next one. The batch has ended after 24 hours.
CHECKING_BATCH: Policy = {
    "start_to_close_timeout": timedelta(minutes=1),
    "schedule_to_close_timeout": timedelta(hours=26),
    "retry_policy": retrying(Backoff(1, 300)),
}

# Completing activities: repeating it does no harm. If the results cannot be read for more than an hour, the runs fail;
# the replies are kept for 29 days, and a resumed run reads them.
DELIVERING_BATCH: Policy = {
    "start_to_close_timeout": timedelta(hours=1),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": retrying(Backoff(1, 300, retries=19)),
}
FAILING_TURNS: Policy = FILES | {"start_to_close_timeout": timedelta(hours=1)}

"""Model turns in batches of the provider: half the price, hours instead of seconds.

activities  write a request, create a batch, check it, deliver its replies
client      what a client learns of the pool
contract    what a run hands to the pool, and the pool's state
policies    timeouts and retries of the activities
provider    the provider's batch API
rules       the state of a run whose turn waits for a batch, the pool in words, and ids
turn        a run's model turn: its wait for the pool
workflow    `ModelBatches`: model calls of all runs, sent in batches
"""

from perdure.registry import Feature, Pacing

QUEUE_SUFFIX = "-batch"

FEATURE = Feature(
    workflows=("perdure.features.batches.workflow:ModelBatches",),
    activities=("perdure.features.batches.activities:BatchTurns",),
    acting=("write_batch_request", "create_batch"),
    paces={
        "batch": Pacing(
            turn="perdure.features.batches.turn:request_in_batch",
            queue_suffix=QUEUE_SUFFIX,
            watch="perdure.features.batches.client:PoolWatch",
            left="not awaited any more; if its batch was sent, the call is still paid",
        )
    },
    server_checks=("perdure.features.batches.client:check_pool",),
)

"""Model turns in batches: what a run hands to the pool of its task queue, and the pool's state."""

from typing import Literal

from pydantic import Field

from perdure.contracts.bounds import Latest
from perdure.contracts.models import FrozenModel, StrictModel, omit_default
from perdure.contracts.run.turn import FailedTurn, SentTurn, TurnRequest


class BatchedTurnRequest(TurnRequest):
    """A model call that goes to the provider in a batch. `entry` is its id there, and that of the waiting activity.

    A call that was `sent` before is looked for instead.
    """

    entry: str
    phase: Literal["plan", "reflect"]
    sent: SentTurn | None = omit_default(None)


class BatchEntry(FrozenModel):
    """A turn in the pool. Its request is in the run's store; `attempts` counts the batches that it was sent with."""

    id: str
    workflow_id: str
    request_bytes: int
    attempts: int = omit_default(0)


class PooledCall(FrozenModel):
    """A model call for the pool, and the project's settings of it.

    A batch has turns of one `group`: of one provider, with the same headers. A call with a `batch`, created at `since`,
    is in that one already.
    """

    entry: BatchEntry
    group: str
    size: int
    wait_ms: int
    batch: str = omit_default("")
    since: int = omit_default(0)


class LeaveRequest(StrictModel):
    """An entry whose run does not wait any more."""

    id: str


class Gathering(FrozenModel):
    """The entries of a group that wait to be sent. `since` is when the first came, in milliseconds since 1970."""

    since: int
    entries: tuple[BatchEntry, ...] = ()


class OpenBatch(FrozenModel):
    """A batch of the provider. `since` is the time of its create request, in milliseconds since 1970."""

    id: str
    since: int
    group: str
    entries: tuple[BatchEntry, ...] = ()


class PastBatches(Latest[str], most=100):
    """Ids of ended batches, which are not adopted again."""


class PoolState(FrozenModel):
    """The state of `ModelBatches`, carried over continue-as-new.

    `size` and `wait_ms` are the settings of the latest run; `waiting` is by group. `doubtful` are batches that were
    taken for others: their create requests may have been accepted. `latest_seconds` is the time that the
    last batch took.
    """

    size: int = 0
    wait_ms: int = 0
    waiting: dict[str, Gathering] = Field(default_factory=dict)
    open: tuple[OpenBatch, ...] = ()
    doubtful: tuple[OpenBatch, ...] = omit_default(())
    past: PastBatches = PastBatches()
    latest_seconds: int | None = omit_default(None)


class BatchView(FrozenModel):
    """An open batch: `calls` are its model calls, `since` is as in `OpenBatch`."""

    id: str
    since: int
    calls: int


class PoolView(FrozenModel):
    """The answer of the query `state`: how many calls wait to be sent, and the open batches.

    With the id of an entry as the argument, `open` has only the batch of that entry.
    """

    waiting: int
    open: tuple[BatchView, ...]
    latest_seconds: int | None = None


class BatchCreation(FrozenModel):
    """The input of the activity `create_batch`. Batches in `known` are not adopted.

    If it `is_doubtful`, an earlier request since `since` may have been accepted.
    """

    group: str
    entries: tuple[BatchEntry, ...]
    since: int
    known: tuple[str, ...]
    is_doubtful: bool = omit_default(default=False)


class BatchDelivery(FrozenModel):
    """The result of the activity `deliver_batch`: the entries to send again after a pause.

    `request_bytes` are the sizes of their next requests, by id. If the batch `is_foreign`, it was another program's.
    """

    again: tuple[str, ...] = ()
    request_bytes: dict[str, int] = omit_default({})
    is_foreign: bool = False
    pause_ms: int = omit_default(0)


class BatchFailure(FrozenModel):
    """The input of the activity `fail_turns`."""

    entries: tuple[BatchEntry, ...]
    failed: FailedTurn

"""`ModelBatches`: gathers the model calls of a task queue, and sends them to the provider in batches.

A run waits in an activity on a queue that no worker polls, and signals `join`. When the batch has ended, the pool
completes that activity. It holds no payloads. It ends when nothing waits; the next run starts it again.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pydantic_core import to_json
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from perdure.contracts.failures import RunFailure
from perdure.contracts.run.turn import FailedTurn
from perdure.features.batches.activities import BatchTurns
from perdure.features.batches.contract import (
    BatchCreation,
    BatchDelivery,
    BatchEntry,
    BatchFailure,
    BatchView,
    Gathering,
    LeaveRequest,
    OpenBatch,
    PooledCall,
    PoolState,
    PoolView,
)
from perdure.features.batches.policies import CHECKING_BATCH, CREATING_BATCH, DELIVERING_BATCH, FAILING_TURNS
from perdure.features.batches.rules import pool_details
from perdure.workflows.handlers import (
    ValidatedWorkflow,
    ignore_if_invalid,
    now_ms,
    read_argument,
    read_optional_argument,
)
from perdure.workflows.rotation import Rotation, continue_as_new

# A worker holds a batch in memory, and history its entries. The API takes 256 MB and 100,000 calls.
MAX_BATCH_BYTES = 50_000_000
MAX_BATCH_CALLS = 5_000
MAX_INPUT_STATE = 1_900_000  # bytes; the server takes 2 MiB as an input


@workflow.defn
class ModelBatches(ValidatedWorkflow[PoolState]):
    """The batches of a task queue. Input: none, or a `PoolState`. Result: a `PoolView` in which nothing waits."""

    UNKNOWN_SIGNAL = "no such signal; there are join and leave"

    @workflow.init
    def __init__(self, *args: Any) -> None:
        self._rotation = Rotation()
        self._following: dict[str, asyncio.Task[None]] = {}
        self._is_woken = False  # there may be something to do
        self._known: set[str] = set()  # the ids of the calls that wait to be sent or for a batch
        super().__init__(self._begin, args)

    def _begin(self, given: Sequence[Any]) -> PoolState:
        state = read_optional_argument(PoolState, given)
        gathered = (group.entries for group in state.waiting.values())
        for entries in (*gathered, *(batch.entries for batch in state.open)):
            self._known |= {entry.id for entry in entries}
        return state

    @workflow.run
    async def run(self, *args: Any) -> PoolView:  # noqa: ARG002 - Temporal requires the signature of `__init__`
        while True:
            self._is_woken = False
            self._rotation.decide()
            self._follow_batches()
            state, group = self.context, self._due_group()
            workflow.set_current_details(pool_details(self.state()))
            if self._rotation.is_due and len(to_json(state)) <= MAX_INPUT_STATE:
                continue_as_new(state)  # which follows the open batches from their beginning
            if state.doubtful:
                await self._send_again(state.doubtful[0])
            elif group is not None:
                entries = _fitting_entries(state.waiting[group])
                await self._send(BatchCreation(group=group, entries=entries, since=now_ms(), known=_batch_ids(state)))
            elif state.waiting or state.open:
                await self._wait_for_work(state)
            else:
                return self.state()

    def _due_group(self) -> str | None:
        """Return the first group whose next batch is full, or has waited long enough."""
        state, now = self.context, now_ms()
        waiting = state.waiting.items()
        return next((name for name, group in waiting if _is_full(state, group) or _due_at(state, group) <= now), None)

    async def _wait_for_work(self, state: PoolState) -> None:
        next_due = min((_due_at(state, group) for group in state.waiting.values()), default=None)
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._is_woken or self._rotation.is_undecided,
                timeout=None if next_due is None else (next_due - now_ms() + 1) / 1000,
                timeout_summary="gather model calls",
            )

    async def _send(self, creation: BatchCreation) -> None:
        """Send a batch. Entries that leave meanwhile are in it."""
        count = len(creation.entries)
        try:
            batch = await workflow.execute_activity_method(
                BatchTurns.create_batch, creation, summary=f"send {count} model calls", **CREATING_BATCH
            )
        except ActivityError as error:
            await self._fail_turns(creation.entries, error)
            batch = ""
        self._remove_waiting({entry.id for entry in creation.entries})
        state = self.context
        if (rest := state.waiting.get(creation.group)) is not None:
            later = rest.evolve(since=now_ms())
            self.context = self.context.evolve(waiting={**state.waiting, creation.group: later})
        if batch:
            opened = OpenBatch(id=batch, since=creation.since, group=creation.group, entries=creation.entries)
            self._known |= {entry.id for entry in creation.entries}
            self.context = self.context.evolve(open=(*state.open, opened))

    async def _send_again(self, batch: OpenBatch) -> None:
        """Send the calls of a batch that was another program's. The request for their own may have been accepted."""
        known = _batch_ids(self.context)
        await self._send(
            BatchCreation(group=batch.group, entries=batch.entries, since=batch.since, known=known, is_doubtful=True)
        )
        self.context = self.context.evolve(doubtful=self.context.doubtful[1:])

    def _follow_batches(self) -> None:
        """Begin to wait for the ends of the open batches that nothing waits for."""
        for batch in self.context.open:
            if batch.id not in self._following:
                self._following[batch.id] = asyncio.create_task(self._follow(batch))

    async def _follow(self, batch: OpenBatch) -> None:
        try:
            alone = batch.evolve(entries=())
            await workflow.execute_activity_method(
                BatchTurns.check_batch, alone, summary=f"is {batch.id} done?", **CHECKING_BATCH
            )
            batch = self._open_batch(batch)
            delivered = await workflow.execute_activity_method(
                BatchTurns.deliver_batch, batch, summary=f"deliver {batch.id}", **DELIVERING_BATCH
            )
        except ActivityError as error:
            batch = self._open_batch(batch)
            await self._fail_turns(batch.entries, error, batch)
            delivered = BatchDelivery()
        if delivered.pause_ms:
            # The batch stays open: if this execution ends, the next one delivers it again, which does no harm.
            await workflow.sleep(delivered.pause_ms / 1000, summary="before turns are sent again")
        self._close_batch(batch, delivered)

    def _open_batch(self, batch: OpenBatch) -> OpenBatch:
        """Return the batch as it is now: calls of resumed runs may have joined."""
        return next(other for other in self.context.open if other.id == batch.id)

    def _close_batch(self, batch: OpenBatch, delivered: BatchDelivery) -> None:
        """Remove what was delivered; calls that joined meanwhile stay, and are delivered next."""
        state, again = self.context, set(delivered.again)
        joined = tuple(entry for entry in self._open_batch(batch).entries if entry not in batch.entries)
        repeated = [_repeat_entry(entry, delivered) for entry in batch.entries if entry.id in again]
        self._known -= {entry.id for entry in batch.entries} - {entry.id for entry in joined}
        others = tuple(other for other in state.open if other.id != batch.id)
        self.context = self.context.evolve(
            open=(*others, batch.evolve(entries=joined)) if joined else others,
            past=state.past if joined else state.past.add(batch.id),
            latest_seconds=(now_ms() - batch.since) // 1000,
        )
        if delivered.is_foreign and repeated:
            doubted = batch.evolve(entries=tuple(repeated))
            self.context = self.context.evolve(doubtful=(*self.context.doubtful, doubted))
        else:
            for entry in repeated:
                self._add_waiting(batch.group, entry)
        self._is_woken = True
        del self._following[batch.id]

    async def _fail_turns(
        self, entries: tuple[BatchEntry, ...], error: ActivityError, batch: OpenBatch | None = None
    ) -> None:
        """Report a failure to the runs; of a batch that was sent, with the batch, which goes on."""
        cause = error.cause
        message, kind = "the batch could not be sent or read in time", str(RunFailure.model_unavailable)
        if isinstance(cause, ApplicationError):
            message, kind = cause.message, cause.type or kind
        failed = FailedTurn(failure=kind, message=message)
        if batch is not None:
            failed = failed.evolve(batch=batch.id, since=batch.since)
        await workflow.execute_activity_method(
            BatchTurns.fail_turns,
            BatchFailure(entries=entries, failed=failed),
            summary="report the failure to the runs",
            **FAILING_TURNS,
        )

    def _add_waiting(self, group: str, entry: BatchEntry) -> None:
        if entry.id in self._known:
            return
        self._known.add(entry.id)
        waiting = self.context.waiting
        gathered = waiting.get(group, Gathering(since=now_ms()))
        longer = gathered.evolve(entries=(*gathered.entries, entry))
        self.context = self.context.evolve(waiting={**waiting, group: longer})
        self._is_woken = self._is_woken or group not in waiting or _is_full(self.context, longer)

    def _join_batch(self, joining: PooledCall) -> None:
        """Add a call to the batch that it was sent in by the run that its own one continues."""
        entry = joining.entry
        opened = OpenBatch(id=joining.batch, since=joining.since, group=joining.group)
        opened = next((batch for batch in self.context.open if batch.id == joining.batch), opened)
        if entry in opened.entries:
            return
        others = tuple(batch for batch in self.context.open if batch.id != opened.id)
        entries = (*(other for other in opened.entries if other.id != entry.id), entry)
        self._known.add(entry.id)
        self.context = self.context.evolve(open=(*others, opened.evolve(entries=entries)))
        self._is_woken = True

    def _remove_waiting(self, gone: set[str]) -> None:
        self._known -= gone
        shorter = {
            name: group.evolve(entries=tuple(entry for entry in group.entries if entry.id not in gone))
            for name, group in self.context.waiting.items()
        }
        self.context = self.context.evolve(waiting={name: group for name, group in shorter.items() if group.entries})

    @workflow.signal(description="Add a model call: the entry of the activity that waits for its reply")
    @ignore_if_invalid
    def join(self, *args: Any) -> None:
        joining = read_argument(PooledCall, args)
        self.context = self.context.evolve(size=joining.size, wait_ms=joining.wait_ms)
        if joining.batch:
            self._join_batch(joining)
        else:
            self._add_waiting(joining.group, joining.entry)

    @workflow.signal(description='Leave out a model call that is not sent yet: {"id"}')
    @ignore_if_invalid
    def leave(self, *args: Any) -> None:
        self._remove_waiting({read_argument(LeaveRequest, args).id})
        self._is_woken = True

    @workflow.query(description="Calls that wait, and open batches; with the id of a call, its batch only")
    def state(self, *args: Any) -> PoolView:
        state = self.context
        return PoolView(
            waiting=sum(len(group.entries) for group in state.waiting.values()),
            open=tuple(
                BatchView(id=batch.id, since=batch.since, calls=len(batch.entries))
                for batch in state.open
                if not args or any(entry.id == args[0] for entry in batch.entries)
            ),
            latest_seconds=state.latest_seconds,
        )


def _repeat_entry(entry: BatchEntry, delivered: BatchDelivery) -> BatchEntry:
    size = delivered.request_bytes.get(entry.id, entry.request_bytes)
    return entry.evolve(attempts=entry.attempts + 1, request_bytes=size)


def _due_at(state: PoolState, group: Gathering) -> int:
    return group.since + state.wait_ms


def _is_full(state: PoolState, group: Gathering) -> bool:
    count, size = len(group.entries), sum(entry.request_bytes for entry in group.entries)
    return count >= min(state.size, MAX_BATCH_CALLS) or size > MAX_BATCH_BYTES


def _fitting_entries(group: Gathering) -> tuple[BatchEntry, ...]:
    """Return as many entries as fit a batch, and at least one."""
    size = 0
    for number, entry in enumerate(group.entries):
        size += entry.request_bytes
        if number == MAX_BATCH_CALLS or (number and size > MAX_BATCH_BYTES):
            return group.entries[:number]
    return group.entries


def _batch_ids(state: PoolState) -> tuple[str, ...]:
    return (*state.past, *(batch.id for batch in state.open))

"""The activities of model turns in batches: one writes a turn's request, the others send and deliver batches."""

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from pydantic_core import to_json
from temporalio import activity
from temporalio.client import AsyncActivityHandle, Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.effects.attempts import heartbeating
from activities.model.pieces import (
    BatchedPieces,
    can_continue,
    continuation_messages,
    join_replies,
    read_batched_pieces,
    save_batched_pieces,
)
from activities.model.turn import TurnOrigin, Turns, refuse_context
from activities.project import Project
from activities.providers.anthropic import prepare_request, relax_request
from activities.providers.options import name_setting
from activities.providers.port import BatchApi, BatchModel, Model, ModelReply
from activities.run.definition import read_definition
from activities.storage.store import Store, read_model
from activities.telemetry.metrics import observed, record_facts
from activities.telemetry.trace import ignore_disk_errors
from activities.temporal import IgnoreMissing, own_run_id, own_workflow_id
from contracts.agent import Definition
from contracts.failures import RunFailure, Stop
from contracts.models import FrozenModel
from contracts.run.batch import (
    BatchCreation,
    BatchDelivery,
    BatchedTurnRequest,
    BatchEntry,
    BatchFailure,
    FailedTurn,
    OpenBatch,
    PooledCall,
    PoolState,
)
from contracts.run.compaction import ContextFull
from contracts.run.turn import ModelTurn
from decisions import ids
from decisions.model_names import DEFAULT
from decisions.run.compaction import estimate_content

REQUEST_FILE = "batch-request.json"  # in a run's store: that of its latest batched turn
MAX_TRIES = 3  # batches that are sent with a turn, besides those that bring a piece of its reply
LOOK_PAUSES = (timedelta(seconds=5), timedelta(minutes=5))  # before the second look at a batch, and at most; doubled


class BatchedRequest(FrozenModel):
    """A stored request of a batch, and what its reply needs to become a turn."""

    entry: str
    provider: str
    params: dict[str, Any]
    headers: dict[str, str]
    definition: str
    number: int
    phase: str
    full: ContextFull
    used: tuple[str, ...]
    tokens_left: int | None = None
    usd_left: float | None = None


@dataclass(frozen=True)
class PooledTurn:
    """An entry of the pool, its request, and the pieces of its reply so far."""

    entry: BatchEntry
    request: BatchedRequest
    pieces: BatchedPieces

    @property
    def params(self) -> dict[str, Any]:
        """The body of the next request: for the rest of the reply, if there are pieces of it."""
        params, reply = self.request.params, self.pieces.reply
        return {**params, "messages": continuation_messages(params["messages"], reply)} if reply else params

    @property
    def failures(self) -> int:
        """How many batches brought no piece."""
        return self.entry.tries - len(self.pieces.batches)

    def can_continue(self, reply: ModelReply) -> bool:
        """Return whether to ask for the rest. A piece that cannot be read again counts as a failure."""
        return self.failures < MAX_TRIES and can_continue(reply, self.request.tokens_left, self.request.usd_left)


class BatchTurns:
    def __init__(self, client: Client, model: Model, turns: Turns, project: Project, task_queue: str) -> None:
        self._client = client
        self._model = model
        self._turns = turns
        self._project = project
        self._task_queue = task_queue

    @activity.defn
    async def write_batch_request(self, request: BatchedTurnRequest) -> PooledCall | ContextFull:
        """Write a turn's request into the run's store, if the context has room. Raises as `plan`."""
        record_facts(batched=True)
        async with heartbeating(own_run_id):
            prepared = await self._turns.prepare_turn(request)
            if isinstance(prepared, ContextFull):
                return prepared
            provider, model = self._router.provider_of(prepared.call.definition.model)
            self._router.batches_of(provider)
            definition = prepared.call.definition.model_copy(update={"model": model})
            params = await prepare_request(replace(prepared.call, definition=definition))
            headers = params.pop("extra_headers", {})
            stored = BatchedRequest(
                entry=request.entry,
                provider=provider,
                params={**params.pop("extra_body", {}), **params},
                headers=headers,
                definition=request.definition,
                number=request.turn,
                phase=request.phase,
                full=prepared.full,
                used=tuple(prepared.used),
                tokens_left=request.tokens_left,
                usd_left=request.usd_left,
            )
            size = await asyncio.to_thread(_write_request, self._store_of(own_workflow_id()), stored)
        pooling = self._project.batches
        return PooledCall(
            entry=BatchEntry(id=request.entry, workflow_id=own_workflow_id(), request_bytes=size),
            group=f"{provider} {ids.json_digest(headers)[:12]}" if headers else provider,
            size=pooling.size,
            wait_ms=round(pooling.wait.total_seconds() * 1000),
        )

    @activity.defn
    async def open_pool(self, first: PooledCall) -> None:
        """Start the pool of the task queue with its first call."""
        await self._client.start_workflow(
            "ModelBatches",
            PoolState(),
            id=ids.batch_pool_id(self._task_queue),
            task_queue=self._task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"batches of model calls of {self._task_queue}",
            start_signal="join",
            start_signal_args=[first.model_dump(mode="json")],
        )

    @activity.defn
    async def create_batch(self, request: BatchCreation) -> str:
        """Send a batch, or adopt the one that an earlier attempt has sent. Return its id; "" if no run waits."""
        async with heartbeating(lambda: len(request.entries)):
            read = [await self._read_turn(entry) for entry in request.entries]
            turns = [turn for turn in read if turn is not None]
            requests = {turn.entry.id: turn.params for turn in turns}
            if not requests:
                return ""
            api = self._api_of(request.group)
            headers = turns[0].request.headers
            is_doubtful = request.is_doubtful or activity.info().attempt > 1
            found = await api.find(len(requests), request.since / 1000, request.known) if is_doubtful else None
            return found or await api.create(requests, headers)

    @activity.defn
    async def look_at_batch(self, batch: OpenBatch) -> None:
        """Return once the batch has ended. Each attempt is one look."""
        if not await self._api_of(batch.group).is_ended(batch.id):
            first, longest = LOOK_PAUSES
            pause = min(first * 2 ** min(activity.info().attempt - 1, 10), longest)
            message = f"{batch.id} is in progress"
            raise ApplicationError(message, next_retry_delay=pause, category=ApplicationErrorCategory.BENIGN)

    @activity.defn
    async def deliver_batch(self, batch: OpenBatch) -> BatchDelivery:
        """Complete the activities that wait for the batch's replies. Repeating it does no harm."""
        entries = {entry.id: entry for entry in batch.entries}
        again: dict[str, int] = {}
        seen: set[str] = set()
        async with heartbeating(lambda: len(seen)):
            async for name, result in self._api_of(batch.group).results(batch.id):
                if name not in entries:
                    return BatchDelivery(is_foreign=True)
                seen.add(name)
                again |= await self._deliver_result(batch.id, entries[name], result)
            for entry in batch.entries:
                if entry.id not in seen:
                    missing = ApplicationError("the batch has no result of it", type=RunFailure.model_unavailable)
                    again |= await self._deliver_result(batch.id, entry, missing)
        return BatchDelivery(again=tuple(again), request_bytes=again)

    @activity.defn
    async def fail_turns(self, failure: BatchFailure) -> None:
        """Fail the activities that wait for a batch that cannot be sent or read."""
        async with heartbeating(lambda: len(failure.entries)):
            for entry in failure.entries:
                with IgnoreMissing():
                    await self._waiting_activity(entry).complete(failure.failed)

    @property
    def _router(self) -> BatchModel:
        if isinstance(self._model, BatchModel):
            return self._model
        message = "this worker's model has no batches: start the run at pace live"
        raise ApplicationError(message, type=RunFailure.model_refused, non_retryable=True)

    def _api_of(self, group: str) -> BatchApi:
        return self._router.batches_of(group.partition(" ")[0])

    def _store_of(self, workflow_id: str) -> Store:
        return self._project.stores.of(ids.run_id_of_workflow(workflow_id))

    async def _read_turn(self, entry: BatchEntry) -> PooledTurn | None:
        """Return the turn, unless its run has gone or makes another request."""
        return await asyncio.to_thread(_read_turn, self._store_of(entry.workflow_id), entry)

    def _waiting_activity(self, entry: BatchEntry) -> AsyncActivityHandle:
        """Return the activity in the latest execution: a reset moves it into another one."""
        return self._client.get_async_activity_handle(workflow_id=entry.workflow_id, run_id=None, activity_id=entry.id)

    async def _is_awaited(self, entry: BatchEntry) -> bool:
        """Return whether a run waits for the entry's reply: it may have been cancelled."""
        with IgnoreMissing():
            run = await self._client.get_workflow_handle(entry.workflow_id).describe()
            return any(waiting.activity_id == entry.id for waiting in run.raw_description.pending_activities)
        return False

    async def _deliver_result(
        self, batch: str, entry: BatchEntry, result: ModelReply | ApplicationError
    ) -> dict[str, int]:
        """Complete the waiting activity; or return the entry, with its bytes, if it must be sent again instead."""
        turn = await self._read_turn(entry)
        if turn is None:
            return {}
        if batch not in turn.pieces.batches:
            outcome = await self._to_outcome(turn, batch, result)
            if outcome is not None:
                with IgnoreMissing():  # delivered before, or the run does not wait any more
                    await self._waiting_activity(entry).complete(outcome)
                return {}
        turn = await self._read_turn(entry)
        return {entry.id: len(to_json(turn.params))} if turn and await self._is_awaited(entry) else {}

    async def _to_outcome(
        self, turn: PooledTurn, batch: str, result: ModelReply | ApplicationError
    ) -> ModelTurn | ContextFull | FailedTurn | None:
        """Return the result of the waiting activity, or None if the turn must be sent again."""
        request, pieces = turn.request, turn.pieces
        definition = await read_definition(self._store_of(turn.entry.workflow_id), request.definition)
        if isinstance(result, ModelReply):
            reply = self._add_piece(turn, definition, result)
            if turn.can_continue(reply) and await self._save_piece(turn, batch, reply):
                return None
        elif result.type != Stop.context_too_long and await self._may_repeat(turn, result):
            return None
        elif pieces.reply is not None:
            reply = pieces.reply  # which stays cut off
        elif result.type == Stop.context_too_long:
            return refuse_context(request.full, result)
        else:
            named = name_setting(result, definition.options)
            return FailedTurn(failure=named.type or RunFailure.model_unavailable, message=named.message)
        return await observed(request.phase, turn.entry, self._finish_turn(turn, definition, reply))

    def _add_piece(self, turn: PooledTurn, definition: Definition, piece: ModelReply) -> ModelReply:
        """Return the piece with its cost, joined to those before it."""
        request, earlier = turn.request, turn.pieces.reply
        shown = piece.model if request.provider == DEFAULT else f"{request.provider}:{piece.model}"
        tokens = request.full.tokens + (estimate_content(earlier.content) if earlier else 0)
        named = replace(piece, model=shown, asked=definition.model)
        priced = self._turns.with_cost(named, definition, tokens, is_batched=True)
        return join_replies(earlier, priced) if earlier else priced

    async def _save_piece(self, turn: PooledTurn, batch: str, reply: ModelReply) -> bool:
        """Store the reply so far, so that the next batch asks for its rest. Return whether that succeeded."""
        clean = replace(reply, content=self._project.secrets.redact_value(reply.content))
        pieces = BatchedPieces(reply=clean, batches=(*turn.pieces.batches, batch))
        with ignore_disk_errors("the pieces of a reply"):
            store = self._store_of(turn.entry.workflow_id)
            await asyncio.to_thread(save_batched_pieces, store, turn.entry.id, pieces)
            return True
        return False

    async def _finish_turn(self, turn: PooledTurn, definition: Definition, reply: ModelReply) -> ModelTurn:
        request = turn.request
        record_facts(turn=request.number, model=definition.model, batched=True)
        origin = TurnOrigin(
            workflow_id=turn.entry.workflow_id,
            number=request.number,
            phase=request.phase,
            definition=definition,
            used=request.used,
        )
        return await self._turns.finish_turn(origin, reply)

    async def _may_repeat(self, turn: PooledTurn, failure: ApplicationError) -> bool:
        """Return whether to send the turn again: the failure may pass, or a milder request may be accepted."""
        if turn.failures + 1 >= MAX_TRIES:
            return False
        if not failure.non_retryable:
            return True
        milder = relax_request(turn.request.params, failure)
        if milder is not None:
            changed = turn.request.model_copy(update={"params": milder})
            await asyncio.to_thread(_write_request, self._store_of(turn.entry.workflow_id), changed)
        return milder is not None


def _read_turn(store: Store, entry: BatchEntry) -> PooledTurn | None:
    request = read_model(store, REQUEST_FILE, BatchedRequest)
    if request is None or request.entry != entry.id:
        return None
    return PooledTurn(entry, request, read_batched_pieces(store, entry.id))


def _write_request(store: Store, request: BatchedRequest) -> int:
    """Write the request, and return its bytes in the batch."""
    store.write(REQUEST_FILE, request.model_dump_json().encode())
    return len(to_json(request.params))

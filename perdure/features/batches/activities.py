"""The activities of model turns in batches: one writes a turn's request, the others send and deliver batches."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Self

from pydantic_core import to_json
from temporalio import activity
from temporalio.client import AsyncActivityHandle, Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure.activities.effects.attempts import heartbeating
from perdure.activities.model.turn import (
    TurnOrigin,
    Turns,
    can_continue,
    continuation_messages,
    join_replies,
    refuse_context,
)
from perdure.activities.parts import WorkerParts
from perdure.activities.project import Project
from perdure.activities.providers.anthropic import prepare_request, relax_request
from perdure.activities.providers.errors import model_unavailable_error
from perdure.activities.providers.fallback import FallbackModel
from perdure.activities.providers.options import name_setting
from perdure.activities.providers.port import Model, ModelReply
from perdure.activities.run.definition import read_definition
from perdure.activities.storage.store import Store, read_model
from perdure.activities.telemetry.facts import record_facts
from perdure.activities.telemetry.metrics import observed
from perdure.activities.telemetry.trace import ignore_disk_errors
from perdure.activities.temporal import IgnoreMissing, own_run_id, own_workflow_id
from perdure.contracts.agent import Definition
from perdure.contracts.bounds import Backoff
from perdure.contracts.failures import RunFailure, Stop
from perdure.contracts.models import FrozenModel
from perdure.contracts.run.turn import ContextFull, FailedTurn, ModelTurn, SentTurn
from perdure.decisions import ids
from perdure.decisions.model_names import DEFAULT
from perdure.decisions.run.compaction import estimate_content
from perdure.features.batches.contract import (
    BatchCreation,
    BatchDelivery,
    BatchedTurnRequest,
    BatchEntry,
    BatchFailure,
    OpenBatch,
    PooledCall,
    PoolState,
)
from perdure.features.batches.provider import BatchNotFoundError, MessageBatches, find_batches
from perdure.features.batches.rules import batch_pool_id


class BatchedPieces(FrozenModel):
    """The pieces of a batched reply so far, joined and priced, and the batches that brought them, in order."""

    reply: ModelReply | None = None
    batches: tuple[str, ...] = ()


def save_batched_pieces(store: Store, entry: str, pieces: BatchedPieces) -> None:
    """Store the pieces of an entry of a batch, unless another worker has stored as many. Raises OSError."""
    with suppress(FileExistsError):
        store.create(_batched_name(entry, len(pieces.batches)), pieces.model_dump_json().encode())


def read_batched_pieces(store: Store, entry: str) -> BatchedPieces:
    """Return the pieces of an entry so far. Raises OSError."""
    latest = BatchedPieces()
    for number in count(1):
        longer = read_model(store, _batched_name(entry, number), BatchedPieces)
        if longer is None:
            break
        latest = longer
    return latest


def copy_batched_pieces(source: Store, target: Store, entry: str) -> None:
    """Copy the pieces of an entry to the store of the run that continues. Raises OSError."""
    with suppress(FileNotFoundError):
        for number in count(1):
            data = source.read(_batched_name(entry, number))
            with suppress(FileExistsError):
                target.create(_batched_name(entry, number), data)


def _batched_name(entry: str, number: int) -> str:
    return f"pieces-{entry}-{number}.json"


REQUEST_FILE = "batch-request.json"  # in a run's store: that of its latest batched turn
PRICE_SHARE = 0.5  # of every token: "Pricing" and "Batch processing" of the provider's docs
MAX_ATTEMPTS = 3  # batches that are sent with a turn, besides those that bring a piece of its reply
CHECK_PAUSES = Backoff(5, 300)  # between checks of a batch
# What was created may not be found for some minutes, and results may be incomplete: five minutes.
READ_PAUSES = Backoff(10, 300, retries=5)
SEND_PAUSES = Backoff(15, 300)  # before a turn is sent again
FIND_PAUSES = Backoff(5, 30, retries=4)  # before each further look for a batch that may have been created
REFUSED = "refused"  # the heartbeat of an attempt whose request the provider has not accepted


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
    relaxed: str = ""  # the batch that refused it; it is milder since


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
        return self.entry.attempts - len(self.pieces.batches)

    def can_continue(self, reply: ModelReply) -> bool:
        """Return whether to ask for the rest. A piece that cannot be read again counts as a failure."""
        return self.failures < MAX_ATTEMPTS and can_continue(reply, self.request.tokens_left, self.request.usd_left)


@dataclass
class BatchRead:
    """One read of a batch's results: what it found so far. `problem` is the first line that is no result."""

    batch: str
    seen: set[str] = field(default_factory=set)
    strangers: int = 0
    problem: str = ""
    again: dict[str, int] = field(default_factory=dict)  # bytes by the id of the entry
    attempts: int = 0  # the most of an entry that is sent again


class BatchTurns:
    def __init__(self, client: Client, model: Model, turns: Turns, project: Project, task_queue: str) -> None:
        self._client = client
        self._model = model
        self._turns = turns
        self._project = project
        self._task_queue = task_queue

    @classmethod
    def of(cls, parts: WorkerParts) -> Self:
        return cls(parts.client, parts.model, parts.turns, parts.project, parts.task_queue)

    @activity.defn
    async def write_batch_request(self, request: BatchedTurnRequest) -> PooledCall | ContextFull:
        """Write a turn's request into the run's store, if the context has room. Raises as `plan`."""
        record_facts(batched=True)
        async with heartbeating(own_run_id):
            prepared = await self._turns.prepare_turn(request)
            if isinstance(prepared, ContextFull):
                return prepared
            provider, model = self._router.provider_of(prepared.call.definition.model)
            self._batches_of(provider)
            await self._router.refuse_batched(prepared.call)
            definition = prepared.call.definition.evolve(model=model)
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
            sent, taken = request.sent, None
            own = self._store_of(own_workflow_id())
            if sent is not None:
                taken = await asyncio.to_thread(_take_over, self._store_of(sent.run_id), own, sent, stored)
            size = await asyncio.to_thread(_write_request, own, taken or stored)
        pooling = self._project.batches
        call = PooledCall(
            entry=BatchEntry(id=(taken or stored).entry, workflow_id=own_workflow_id(), request_bytes=size),
            group=_group_of(taken or stored),
            size=pooling.size,
            wait_ms=round(pooling.wait.total_seconds() * 1000),
        )
        return call.evolve(batch=sent.batch, since=sent.since) if sent and taken else call

    @activity.defn
    async def open_pool(self, first: PooledCall) -> None:
        """Start the pool of the task queue with its first call."""
        await self._client.start_workflow(
            "ModelBatches",
            PoolState(),
            id=batch_pool_id(self._task_queue),
            task_queue=self._task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"batches of model calls of {self._task_queue}",
            start_signal="join",
            start_signal_args=[first.model_dump(mode="json")],
        )

    @activity.defn
    async def create_batch(self, request: BatchCreation) -> str:
        """Send a batch, or adopt the one that an earlier attempt has sent. Return its id; "" if no run waits."""
        progress: list[str] = []
        async with heartbeating(lambda: [*progress]):
            read = [await self._read_turn(entry) for entry in request.entries]
            turns = [turn for turn in read if turn is not None]
            requests = {turn.entry.id: turn.params for turn in turns}
            if not requests:
                return ""
            api = self._api_of(request.group)
            was_refused = REFUSED in (activity.info().heartbeat_details or [[]])[0]
            is_doubtful = request.is_doubtful or (activity.info().attempt > 1 and not was_refused)
            if is_doubtful and (found := await _find_sent(api, len(requests), request)):
                return found
            if was_refused:
                activity.heartbeat(progress)  # until this request is refused, too
            try:
                return await api.create(requests, turns[0].request.headers)
            except ApplicationError as error:
                if error.type == RunFailure.rate_limited:
                    progress.append(REFUSED)
                    activity.heartbeat(progress)
                raise

    @activity.defn
    async def check_batch(self, batch: OpenBatch) -> None:
        """Return once the batch has ended. Each attempt is one check."""
        try:
            is_ended = await self._api_of(batch.group).is_ended(batch.id)
        except BatchNotFoundError as error:
            missed = (activity.info().heartbeat_details or [0])[0] + 1
            activity.heartbeat(missed)
            raise _read_again(error.message, missed) from None
        if activity.info().heartbeat_details:
            activity.heartbeat(0)
        if not is_ended:
            message = f"{batch.id} is in progress"
            pause = CHECK_PAUSES.pause(activity.info().attempt)
            raise ApplicationError(message, next_retry_delay=pause, category=ApplicationErrorCategory.BENIGN)

    @activity.defn
    async def deliver_batch(self, batch: OpenBatch) -> BatchDelivery:
        """Complete the activities that wait for the batch's replies. Repeating it does no harm.

        What another program has sent in the same batch is left out. If results are missing, they are read again some
        times; then a turn without one is sent again, and one that may have a line that cannot be read fails.
        """
        entries = {entry.id: entry for entry in batch.entries}
        read = BatchRead(batch.id)
        async with heartbeating(lambda: len(read.seen)):
            try:
                async for name, result in self._api_of(batch.group).results(batch.id):
                    await self._take_result(read, entries.get(name), name, result)
            except BatchNotFoundError as error:
                raise _read_again(error.message, activity.info().attempt) from None
            is_foreign = bool(read.strangers and not read.seen)
            for entry in batch.entries:
                if entry.id not in read.seen and await self._is_awaited(entry):
                    await self._settle_missing(read, entry, is_foreign=is_foreign)
        pause = SEND_PAUSES.seconds(read.attempts + 1) if read.again else 0
        return BatchDelivery(
            again=tuple(read.again),
            request_bytes=read.again,
            is_foreign=is_foreign,
            pause_ms=round(pause * 1000),
        )

    async def _take_result(
        self, read: BatchRead, entry: BatchEntry | None, name: str, result: ModelReply | ApplicationError
    ) -> None:
        """Deliver a result, once; of what was delivered by an earlier attempt, nothing is recorded again."""
        if not name and isinstance(result, ApplicationError):
            read.problem = read.problem or result.message
        elif entry is None:
            read.strangers += 1
        elif name not in read.seen:
            read.seen.add(name)
            if activity.info().attempt == 1 or await self._is_awaited(entry):
                await self._deliver_result(read, entry, result)

    async def _settle_missing(self, read: BatchRead, entry: BatchEntry, *, is_foreign: bool) -> None:
        """Take a result for missing once it was looked for often enough. Raises ApplicationError before."""
        if is_foreign:
            message = f"the batch {read.batch} has results of another program only"
        elif read.problem:
            message = f"the results of the batch {read.batch} cannot be read: {read.problem}"
            raise _read_again(message, activity.info().attempt)
        else:
            message = f"the batch {read.batch} has no result of this turn"
            if activity.info().attempt <= READ_PAUSES.retries:
                raise _read_again(message, activity.info().attempt)
        await self._deliver_result(read, entry, model_unavailable_error(message))

    @activity.defn
    async def fail_turns(self, failure: BatchFailure) -> None:
        """Fail the activities that wait for a batch that cannot be sent or read."""
        async with heartbeating(lambda: len(failure.entries)):
            for entry in failure.entries:
                with IgnoreMissing():
                    await self._waiting_activity(entry).complete(failure.failed)

    @property
    def _router(self) -> FallbackModel:
        if isinstance(self._model, FallbackModel):
            return self._model
        raise _refuse("this worker's model")

    def _batches_of(self, provider: str) -> MessageBatches:
        if batches := find_batches(self._router.endpoint_of(provider)):
            return batches
        raise _refuse(f"the provider {provider}")

    def _api_of(self, group: str) -> MessageBatches:
        return self._batches_of(group.partition(" ")[0])

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

    async def _deliver_result(self, read: BatchRead, entry: BatchEntry, result: ModelReply | ApplicationError) -> None:
        """Complete the waiting activity, or note that the entry must be sent again."""
        turn = await self._read_turn(entry)
        if turn is None:
            return
        if read.batch not in turn.pieces.batches:
            outcome = await self._to_outcome(turn, read.batch, result)
            if outcome is not None:
                with IgnoreMissing():  # delivered before, or the run does not wait any more
                    await self._waiting_activity(entry).complete(outcome)
                return
        turn = await self._read_turn(entry)
        if turn and await self._is_awaited(entry):
            read.again[entry.id] = len(to_json(turn.params))
            read.attempts = max(read.attempts, turn.failures)

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
        elif result.type != Stop.context_too_long and await self._may_repeat(turn, batch, result):
            return None
        elif pieces.reply is not None:
            reply = pieces.reply  # which stays cut off
        elif result.type == Stop.context_too_long:
            return refuse_context(request.full, result)
        else:
            named = name_setting(result, definition.options)
            return FailedTurn(failure=named.type or RunFailure.model_unavailable, message=named.message)
        finishing = self._finish_turn(turn, definition, reply)
        return await observed(request.phase, turn.entry, finishing, turn.entry.workflow_id)

    def _add_piece(self, turn: PooledTurn, definition: Definition, piece: ModelReply) -> ModelReply:
        """Return the piece with its cost, joined to those before it."""
        request, earlier = turn.request, turn.pieces.reply
        shown = piece.model if request.provider == DEFAULT else f"{request.provider}:{piece.model}"
        tokens = request.full.tokens + (estimate_content(earlier.content) if earlier else 0)
        named = replace(piece, model=shown, asked=definition.model)
        priced = self._turns.with_cost(named, definition, tokens, PRICE_SHARE)
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
        provider = self._router.system_of(self._router.provider_of(definition.model)[0])
        record_facts(turn=request.number, model=definition.model, provider=provider, batched=True)
        origin = TurnOrigin(
            workflow_id=turn.entry.workflow_id,
            number=request.number,
            phase=request.phase,
            definition=definition,
            used=request.used,
        )
        return await self._turns.finish_turn(origin, reply)

    async def _may_repeat(self, turn: PooledTurn, batch: str, failure: ApplicationError) -> bool:
        """Return whether to send the turn again: the failure may pass, or a milder request may be accepted."""
        if turn.failures + 1 >= MAX_ATTEMPTS:
            return False
        if not failure.non_retryable or turn.request.relaxed == batch:
            return True
        milder = relax_request(turn.request.params, failure)
        if milder is not None:
            changed = turn.request.evolve(params=milder, relaxed=batch)
            await asyncio.to_thread(_write_request, self._store_of(turn.entry.workflow_id), changed)
        return milder is not None


def _refuse(model: str) -> ApplicationError:
    message = f"{model} has no batches: start the run at pace live"
    return ApplicationError(message, type=RunFailure.model_refused, non_retryable=True)


async def _find_sent(api: MessageBatches, count: int, request: BatchCreation) -> str | None:
    """Return the batch that an earlier request may have created. The list may not have it for a while."""
    for pause in FIND_PAUSES:
        found = await api.find(count, request.since / 1000, request.known)
        if found is not None:
            return found
        await asyncio.sleep(pause)
    return await api.find(count, request.since / 1000, request.known)


def _read_again(message: str, attempt: int) -> ApplicationError:
    """Return the failure of a check or a read, which is final once there were enough."""
    if attempt > READ_PAUSES.retries:
        return ApplicationError(message, type=RunFailure.model_unavailable, non_retryable=True)
    return ApplicationError(message, type=RunFailure.model_unavailable, next_retry_delay=READ_PAUSES.pause(attempt))


def _read_turn(store: Store, entry: BatchEntry) -> PooledTurn | None:
    request = read_model(store, REQUEST_FILE, BatchedRequest)
    if request is None or request.entry != entry.id:
        return None
    return PooledTurn(entry, request, read_batched_pieces(store, entry.id))


def _take_over(source: Store, target: Store, sent: SentTurn, request: BatchedRequest) -> BatchedRequest | None:
    """Return the request that another run has sent, for this run's turn, and copy its pieces.

    None if it is gone, or of another turn or definition.
    """
    theirs = read_model(source, REQUEST_FILE, BatchedRequest)
    same = (sent.entry, request.number, request.definition)
    if theirs is None or (theirs.entry, theirs.number, theirs.definition) != same:
        return None
    copy_batched_pieces(source, target, sent.entry)
    return theirs.evolve(tokens_left=request.tokens_left, usd_left=request.usd_left)


def _group_of(request: BatchedRequest) -> str:
    headers = request.headers
    return f"{request.provider} {ids.json_digest(headers)[:12]}" if headers else request.provider


def _write_request(store: Store, request: BatchedRequest) -> int:
    """Write the request, and return its bytes in the batch."""
    store.write(REQUEST_FILE, request.model_dump_json().encode())
    return len(to_json(request.params))

"""The parts and the journal that turns of a conversation share, in the conversation's store.

A turn leaves a record that lists segments of the conversation. The next turn begins with a reference to that record,
so its history does not grow with the conversation.
"""

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary

from pydantic_core import to_json
from temporalio import activity
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import Priority, WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from activities.effects.heartbeat import beating
from activities.model.transcript_cache import (
    Transcripts,
    Wanted,
    digest_of_record,
    keep_segment,
    read_record,
    read_segment,
    record_name,
)
from activities.project import Project
from activities.run.fork import no_files
from activities.run.outcome import TERMINATED, TIMED_OUT
from activities.run.snapshot import snapshot_of
from activities.security.private import make_private
from activities.storage.store import Store
from activities.storage.workspace import ARTIFACTS
from activities.update_with_start import update_with_start
from contracts.conversation import Joined, JoinRequest, Queued, SubmitRequest, Submitted, TurnAnswer, TurnRecord
from contracts.run.journal import Journal
from contracts.run.signals import HumanInput
from contracts.run.state import RunStatus, Snapshot, TurnClose
from contracts.run.transcript import PartKind, Segment
from decisions.conversation.omission import close_unanswered, forget_turn, unanswered_kind, visible
from decisions.ids import conversation_workflow_id, named, run_id_of, run_workflow_id
from decisions.run.call_state import halted
from decisions.run.calls import text_of
from decisions.run.journal import handed_on
from decisions.run.resume import journal_of
from decisions.run.transcript import Transcript, call_part
from decisions.text.formatting import cut, markdown

# Concurrent requests of this process to one lane. The server allows ten updates of a workflow in flight; an eleventh
# may drop the others, and all of them are retried together. Two keep a lane busy and leave room for other processes.
AT_ONCE = 2
_turnstiles: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], asyncio.Semaphore] = WeakValueDictionary()

_UNANSWERED = {  # ends that the run itself does not record
    WorkflowExecutionStatus.TERMINATED: TERMINATED,
    WorkflowExecutionStatus.TIMED_OUT: TIMED_OUT,
    WorkflowExecutionStatus.FAILED: "Failed",
}
JOINED = "+joined"  # in the name of a record that was written for the start of a turn, not at the end of one
LATEST = "latest"  # in the conversation's store: the record of its latest turn, for a new lane


class Conversations:
    def __init__(self, client: Client, transcripts: Transcripts, project: Project) -> None:
        self._client = client
        self._transcripts = transcripts
        self._project = project

    @activity.defn
    async def join_conversation(self, request: JoinRequest) -> Joined:
        """Return the conversation as the latest turn left it, with its journal, and copy that turn's files."""
        owner = conversation_workflow_id(request.conversation_id)
        store = self._project.stores.of(owner)
        async with beating(lambda: {"conversation": request.conversation_id}):
            record = await self._latest(store, request.after, owner)
            if record is None:
                return Joined()
            own = activity.info().workflow_id or ""
            self._transcripts.hand_on(owner, own)
            await asyncio.to_thread(self._copy_files, record.run_id, run_id_of(own))
            if request.forget:
                record = await _forget(store, record, request.forget, own)
            last = record.segments[-1]
            segment = Segment(
                ref=record_name(record.run_id),
                start=record.segments[0].start,
                end=last.end,
                head=last.head,
                owner=owner,
                digest=digest_of_record(record),
            )
            return Joined(segment=segment, journal=record.journal, shows_journal=record.shows_journal)

    async def _latest(self, store: Store, after: tuple[str, ...], owner: str) -> TurnRecord | None:
        for run_id in after:
            with suppress(FileNotFoundError):
                return await read_record(store, record_name(run_id))
            if record := await self._left_by(run_id, owner):
                return record
        with suppress(FileNotFoundError):
            ref = (await asyncio.to_thread(store.read, LATEST)).decode()
            return await read_record(store, ref)
        return None

    async def _left_by(self, run_id: str, owner: str) -> TurnRecord | None:
        """Write, from its history, the record of a turn that ended without writing one."""
        handle = self._client.get_workflow_handle(run_workflow_id(run_id))
        try:
            described = await handle.describe()
            if described.status is WorkflowExecutionStatus.RUNNING:
                return None
            snapshot = await snapshot_of(handle)
        except WorkflowQueryFailedError:
            return None  # it was rejected at its start
        except RPCError as error:
            if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION):
                return None  # FAILED_PRECONDITION: it was terminated before a worker accepted it
            raise
        if snapshot.length == 0 or snapshot.state.status is RunStatus.queued:
            return None  # it had not joined the conversation yet
        wanted = Wanted(handle.id, described.run_id, snapshot.length, snapshot.head, self._project.stores.of(run_id))
        conversation = (await self._transcripts.at(wanted)).transcript
        whole = Transcript()
        for part in conversation.parts:
            whole.append(part)
        in_flight = [call.tool_use_id for call in snapshot.state.calls]
        for call in halted(snapshot.state, in_flight, snapshot.state.updated_at).calls:
            whole.append(call_part(call))
        before = next((each for each in snapshot.segments if each.owner == owner), None)
        why = unanswered_kind(snapshot.state, _UNANSWERED.get(described.status) if described.status else None)
        journal = handed_on(snapshot.state.journal)
        turn = TurnClose(owner=owner, before=before, journal=journal, unanswered=why)
        return await keep_turn(self._project, run_id, turn, whole)

    def _copy_files(self, before: str, own: str) -> None:
        """Copy the artifacts, which the conversation refers to by path."""
        theirs, ours = self._project.workspace(before), self._project.workspace(own)
        ours.create()
        source = theirs.root / ARTIFACTS
        if source.is_dir():
            target = ours.root / ARTIFACTS
            shutil.copytree(source, target, ignore=no_files, copy_function=_copy, dirs_exist_ok=True)

    @activity.defn
    async def open_turn(self, conversation_id: str) -> Queued | None:
        """Return the turn that an earlier lane of this conversation left open, if any."""
        parent = conversation_workflow_id(conversation_id)
        query = f"WorkflowType = 'AgentRun' AND ExecutionStatus = 'Running' AND {named('ParentWorkflowId', parent)}"
        async for run in self._client.list_workflows(query):
            if run.parent_id != parent:
                continue
            handle = self._client.get_workflow_handle(run.id)
            try:
                state = (await handle.query("snapshot", result_type=Snapshot)).state  # a page of it is enough
            except WorkflowQueryFailedError:
                continue  # it was rejected at its start
            request_id = state.headers.request_id or state.run_id
            request = SubmitRequest(request_id=request_id, goal=state.goal, agent=state.agent)
            return Queued(request=request, run_id=state.run_id, size=len(to_json(request)), at=state.created_at)
        return None

    @activity.defn
    async def answer_turn(self, request: TurnAnswer) -> bool:
        """Answer the run's question; return True if the run accepted the answer."""
        handle = self._client.get_workflow_handle(run_workflow_id(request.run_id))
        body = HumanInput(**request.model_dump(include={"question_id", "text", "sender", "signature"}))
        said = body.model_dump(mode="json", exclude_none=True)
        try:
            await handle.execute_update("answer", said, id=request.request_id)
        except WorkflowUpdateFailedError:
            return False
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return True


async def submit(  # noqa: PLR0913 - the last two say how a lane is opened
    client: Client,
    task_queue: str,
    conversation_id: str,
    request: SubmitRequest,
    *,
    closes: bool = False,
    fairness_key: str | None = None,
) -> Submitted:
    """Submit a request to a lane, and start the lane if needed, as one that `closes` when idle.

    Lanes with different fairness keys (64 bytes at most) share the workers evenly.

    Raises WorkflowUpdateFailedError with the lane's reason, and RPCError, after which the request may have been
    accepted. It can be sent again: the lane deduplicates by request id.
    """
    start = {
        "workflow": "Conversation",
        "arg": {"conversation_id": conversation_id, **({"closes": True} if closes else {})},
        "id": conversation_workflow_id(conversation_id),
        "task_queue": task_queue,
        "priority": Priority(fairness_key=fairness_key) if fairness_key else Priority.default,
        "id_conflict_policy": WorkflowIDConflictPolicy.USE_EXISTING,
        "static_summary": markdown(cut(conversation_id, 200)),
    }
    body = request.model_dump(mode="json", exclude_defaults=True)
    async with _turnstile(conversation_id):
        return await update_with_start(client, "submit", body, start, Submitted)


def _turnstile(conversation_id: str) -> asyncio.Semaphore:
    """Return the semaphore that bounds this process's concurrent requests to a lane."""
    lane = (asyncio.get_running_loop(), conversation_id)
    turnstile = _turnstiles.get(lane)
    if turnstile is None:
        _turnstiles[lane] = turnstile = asyncio.Semaphore(AT_ONCE)
    return turnstile


def _copy(source: str, target: str) -> None:
    """Copy a file unless the target exists. Not a hard link: a workspace rejects those."""
    if not Path(target).exists():
        shutil.copy2(source, target)


async def keep_turn(project: Project, run_id: str, turn: TurnClose, whole: Transcript) -> TurnRecord:
    """Write the record of a turn that ended. Unanswered parts are closed with a note and not shown again.

    A segment is merged with the one before when it is as long, so there are few segments, and each part is rewritten
    only a few times, however long the conversation gets.
    """
    store = project.stores.of(turn.owner)
    make_private(project.workspace(turn.owner).root)
    kept = list((await read_record(store, turn.before.ref, turn.before.digest)).segments) if turn.before else []
    own = turn.before.end if turn.before else 0
    if turn.unanswered and (note := close_unanswered(whole.parts, own, turn.unanswered)):
        whole.append(note)
    record = await _put_record(store, run_id, kept, whole, turn.journal)
    await asyncio.to_thread(store.put, LATEST, record_name(run_id).encode())
    return record


async def _put_record(
    store: Store, run_id: str, kept: list[Segment], whole: Transcript, journal: Journal | None
) -> TurnRecord:
    """Write the parts that are not in `kept` yet, and the record of all parts under the name of `run_id`."""
    start = kept[-1].end if kept else 0
    while kept and kept[-1].end - kept[-1].start <= whole.length - start:
        start = kept.pop().start
    if whole.length > start:
        kept.append(await keep_segment(store, whole.parts[start:], start, whole.head))
    record = TurnRecord(
        segments=tuple(kept),
        run_id=run_id,
        journal=journal,
        shows_journal=journal is not None and _text(journal) != _last_shown(whole),
    )
    await asyncio.to_thread(store.put, record_name(run_id), record.model_dump_json().encode())
    return record


async def _forget(store: Store, record: TurnRecord, forget: tuple[str, ...], own: str) -> TurnRecord:
    """Write a new record without the turns in `forget`, for the next turn."""
    whole = Transcript()
    for segment in record.segments:
        for part in await read_segment(store, segment):
            whole.append(part)
    for run_id in forget:
        with suppress(FileNotFoundError):  # a turn without a record has no parts
            end = (await read_record(store, record_name(run_id))).segments[-1]
            if whole.head_at(end.end) == end.head and (note := forget_turn(whole.parts, end.end)):
                whole.append(note)
    return await _put_record(store, f"{own}{JOINED}", list(record.segments), whole, record.journal)


def _text(journal: Journal) -> str:
    return text_of(journal_of(journal, "", "").content)


def _last_shown(whole: Transcript) -> str:
    latest = next((part for part in reversed(visible(whole.parts)) if part.kind is PartKind.journal), None)
    return text_of(latest.content) if latest else ""

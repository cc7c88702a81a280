"""What turns of a conversation hand on to each other, in the store that they share: its parts, and the journal.

A turn leaves a record, which names stretches of the conversation. A later one begins with a reference to that record,
so a turn costs as much history in a long conversation as in a short one.
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
from activities.run.closed_turn import find_closed_turn
from activities.run.fork import no_files
from activities.run.outcome import TERMINATED, TIMED_OUT
from activities.run.snapshot import snapshot_of
from activities.security.private import make_private
from activities.storage.store import Store, StoredFileChangedError
from activities.storage.workspace import ARTIFACTS
from activities.with_start import update_with_start
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

# Requests to one lane on their way from this process. The server takes ten updates of a workflow in flight, and with
# the eleventh it may drop the others: then all of them try again, together. Two are as fast as a lane has use for, and
# leave other lanes room.
AT_ONCE = 2
_turnstiles: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], asyncio.Semaphore] = WeakValueDictionary()

_UNANSWERED = {  # ends that the run itself does not know
    WorkflowExecutionStatus.TERMINATED: TERMINATED,
    WorkflowExecutionStatus.TIMED_OUT: TIMED_OUT,
    WorkflowExecutionStatus.FAILED: "Failed",
}
JOINED = "+joined"  # in the name of a record that a turn begins with, and no turn left
LATEST = "latest"  # of the conversation's store: the record of its latest turn, for a lane that begins anew
MOST_LOOKED_AT = 20  # turns, when such a lane asks whether that is the latest


class Conversations:
    def __init__(self, client: Client, transcripts: Transcripts, project: Project) -> None:
        self._client = client
        self._transcripts = transcripts
        self._project = project

    @activity.defn
    async def join_conversation(self, request: JoinRequest) -> Joined:
        """What a turn goes on with: the conversation as the latest turn left it, its journal, and its files."""
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
                record = await self._forget(store, record, request)
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
            if record := await self._left(store, run_id, owner):
                return record
        try:
            ref = (await asyncio.to_thread(store.read, LATEST)).decode()
            run_id = (await read_record(store, ref)).run_id
        except FileNotFoundError:
            return None
        await self._must_be_latest(run_id, owner)
        return await self._left(store, run_id, owner)

    async def _left(self, store: Store, run_id: str, owner: str) -> TurnRecord | None:
        """The record of a turn, with the digest that its history has; as it is, if the server has no such turn.

        Raises StoredFileChangedError.
        """
        turn = await find_closed_turn(self._client, run_id, owner)
        if turn is None or turn.has_record:
            with suppress(FileNotFoundError):
                return await read_record(store, record_name(run_id), turn.digest if turn else None)
        return await self._left_by(run_id, owner)

    async def _must_be_latest(self, run_id: str, owner: str) -> None:
        """Raises StoredFileChangedError if the server has a turn that left a record after this one."""
        latest = await find_closed_turn(self._client, run_id, owner)
        query = f"WorkflowType = 'AgentRun' AND ExecutionStatus != 'Running' AND {named('ParentWorkflowId', owner)}"
        async for other in self._client.list_workflows(query, limit=MOST_LOOKED_AT):  # those that closed last first
            if other.parent_id != owner:
                continue
            other_id = run_id_of(other.id)
            if other_id == run_id or (latest and other.close_time and other.close_time <= latest.at):
                return
            turn = await find_closed_turn(self._client, other_id, owner)
            if turn and turn.has_record and (latest is None or latest.at < turn.at):
                raise StoredFileChangedError(LATEST, record_name(other_id), record_name(run_id), "it names")

    async def _forget(self, store: Store, record: TurnRecord, request: JoinRequest) -> TurnRecord:
        """Leave turns out of the conversation that this one goes on with: with a record of its own."""
        whole = Transcript()
        for segment in record.segments:
            for part in await read_segment(store, segment):
                whole.append(part)
        for run_id in request.forget:
            turn = await find_closed_turn(self._client, run_id, conversation_workflow_id(request.conversation_id))
            digest = turn.digest if turn else None
            with suppress(FileNotFoundError):  # a turn that left no record has said nothing
                end = (await read_record(store, record_name(run_id), digest)).segments[-1]
                if whole.head_at(end.end) == end.head and (note := forget_turn(whole.parts, end.end)):
                    whole.append(note)
        name = f"{activity.info().workflow_id or ''}{JOINED}"
        return await _put_record(store, name, list(record.segments), whole, record.journal)

    async def _left_by(self, run_id: str, owner: str) -> TurnRecord | None:
        """Of a turn that could write nothing down any more, as its history tells."""
        handle = self._client.get_workflow_handle(run_workflow_id(run_id))
        try:
            described = await handle.describe()
            if described.status is WorkflowExecutionStatus.RUNNING:
                return None
            snapshot = await snapshot_of(handle)
        except WorkflowQueryFailedError:
            return None  # it was refused at its start
        except RPCError as error:
            if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION):
                return None  # FAILED_PRECONDITION: it was terminated before a worker had taken it on
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
        """The conversation speaks of them by their paths."""
        theirs, ours = self._project.workspace(before), self._project.workspace(own)
        ours.create()
        source = theirs.root / ARTIFACTS
        if source.is_dir():
            target = ours.root / ARTIFACTS
            shutil.copytree(source, target, ignore=no_files, copy_function=_copy, dirs_exist_ok=True)

    @activity.defn
    async def open_turn(self, conversation_id: str) -> Queued | None:
        """The turn that an earlier lane of this conversation has left open."""
        parent = conversation_workflow_id(conversation_id)
        query = f"WorkflowType = 'AgentRun' AND ExecutionStatus = 'Running' AND {named('ParentWorkflowId', parent)}"
        async for run in self._client.list_workflows(query):
            if run.parent_id != parent:
                continue
            handle = self._client.get_workflow_handle(run.id)
            try:
                state = (await handle.query("snapshot", result_type=Snapshot)).state  # a page of it is enough
            except WorkflowQueryFailedError:
                continue  # it was refused at its start
            request_id = state.headers.request_id or state.run_id
            request = SubmitRequest(request_id=request_id, goal=state.goal, agent=state.agent)
            return Queued(request=request, run_id=state.run_id, size=len(to_json(request)), at=state.created_at)
        return None

    @activity.defn
    async def answer_turn(self, request: TurnAnswer) -> bool:
        """Whether the run took the answer to its question."""
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
    """Hands a request to a lane, which is opened where there is none: one that `closes`, if asked.

    Lanes of one `fairness_key` (64 bytes at most) share workers evenly with those of another.

    Raises WorkflowUpdateFailedError with the lane's reason, and RPCError. After most of the latter it may have been
    accepted: it can be sent again, since the lane knows it by its id.
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
    """Lets few callers of this process into the lane at once."""
    lane = (asyncio.get_running_loop(), conversation_id)
    turnstile = _turnstiles.get(lane)
    if turnstile is None:
        _turnstiles[lane] = turnstile = asyncio.Semaphore(AT_ONCE)
    return turnstile


def _copy(source: str, target: str) -> None:
    """A file of the same name stays. It is no link: a workspace takes no file that has another name elsewhere."""
    if not Path(target).exists():
        shutil.copy2(source, target)


async def keep_turn(project: Project, run_id: str, turn: TurnClose, whole: Transcript) -> TurnRecord:
    """Writes down how a turn leaves its conversation, which shows no more of it what never had an answer.

    Stretches are joined where the later ones have grown as long as the one before, so there are few of them, and each
    part is written a few times only, however long the conversation gets.
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
    """Writes what of the conversation is not in `kept` yet, and the record of all of it, under the name of `run_id`."""
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


def _text(journal: Journal) -> str:
    return text_of(journal_of(journal, "", "").content)


def _last_shown(whole: Transcript) -> str:
    latest = next((part for part in reversed(visible(whole.parts)) if part.kind is PartKind.journal), None)
    return text_of(latest.content) if latest else ""

"""Conversation state that turns pass on to each other through a shared store: transcript parts and the journal.

A turn writes a record that lists segments of the conversation, and the next one starts from a reference to it. So a
turn adds as much history to a long conversation as to a short one.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

from pydantic_core import to_json
from temporalio import activity
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.effects.attempts import heartbeating
from perdure.activities.media.store import copy_missing
from perdure.activities.model.transcript_cache import (
    TranscriptCache,
    TranscriptCursor,
    digest_of_record,
    read_record,
    read_segment,
    record_name,
    write_segment,
)
from perdure.activities.project import Project
from perdure.activities.run.outcome import TERMINATED, TIMED_OUT
from perdure.activities.run.status import find_closed_turn, read_snapshot
from perdure.activities.security import make_private
from perdure.activities.storage.store import Store, StoredFileChangedError
from perdure.activities.temporal import IgnoreMissing, own_workflow_id
from perdure.contracts.conversation import Joined, JoinRequest, Queued, SubmitRequest, TurnAnswer, TurnRecord
from perdure.contracts.run.journal import Journal
from perdure.contracts.run.signals import HumanInput
from perdure.contracts.run.state import RunStatus, Snapshot, TurnClose
from perdure.contracts.run.transcript import Part, PartKind, Segment
from perdure.decisions.ids import conversation_workflow_id, query_equals, run_id_of_workflow, run_workflow_id
from perdure.decisions.run.call_state import settle_interrupted
from perdure.decisions.run.journal import forward_journal
from perdure.decisions.run.resume import journal_of
from perdure.decisions.run.transcript import (
    Transcript,
    call_part,
    close_unanswered,
    join_text_blocks,
    omit_turn,
    unanswered_kind,
    visible_parts,
)

_UNANSWERED = {  # ends that the run itself cannot record
    WorkflowExecutionStatus.TERMINATED: TERMINATED,
    WorkflowExecutionStatus.TIMED_OUT: TIMED_OUT,
    WorkflowExecutionStatus.FAILED: "Failed",
}
JOINED_SUFFIX = "+joined"  # suffix of a record that is made for the start of a turn, not by its end
LATEST_FILE = "latest"  # the name of the latest turn's record, for a lane that starts again
MAX_COMPARED_TURNS = 20  # closed turns that a new lane compares with `LATEST_FILE`


class Conversations:
    def __init__(self, client: Client, transcripts: TranscriptCache, project: Project) -> None:
        self._client = client
        self._transcripts = transcripts
        self._project = project

    @activity.defn
    async def join_conversation(self, request: JoinRequest) -> Joined:
        """Return the conversation and journal as the latest turn left them, and copy its files."""
        owner = conversation_workflow_id(request.conversation_id)
        store = self._project.stores.of(owner)
        async with heartbeating(lambda: {"conversation": request.conversation_id}):
            record = await self._latest_record(store, request.after, owner)
            if record is None:
                return Joined()
            own = own_workflow_id()
            self._transcripts.hand_over(owner, own)
            before, workspace = self._project.workspace(record.run_id), self._project.workspace(run_id_of_workflow(own))
            await asyncio.to_thread(workspace.copy_artifacts, before)
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

    async def _latest_record(self, store: Store, after: tuple[str, ...], owner: str) -> TurnRecord | None:
        for run_id in after:
            if record := await self._read_turn_record(store, run_id, owner):
                return record
        try:
            ref = (await asyncio.to_thread(store.read, LATEST_FILE)).decode()
            run_id = (await read_record(store, ref)).run_id
        except FileNotFoundError:
            return None
        await self._must_be_latest(run_id, owner)
        return await self._read_turn_record(store, run_id, owner)

    async def _read_turn_record(self, store: Store, run_id: str, owner: str) -> TurnRecord | None:
        """Read the record of a turn, checked by its history if the server has it. Raises StoredFileChangedError."""
        turn = await find_closed_turn(self._client, run_id, owner)
        if turn is None or turn.has_record:
            with suppress(FileNotFoundError):
                return await read_record(store, record_name(run_id), turn.digest if turn else None)
        return await self._recover_record(run_id, owner)

    async def _must_be_latest(self, run_id: str, owner: str) -> None:
        """Raise StoredFileChangedError if the server has a turn that left a record after this one."""
        latest = await find_closed_turn(self._client, run_id, owner)
        async for other in self._turns_of(owner, "!= 'Running'", MAX_COMPARED_TURNS):  # those that closed last first
            other_id = run_id_of_workflow(other.id)
            if other_id == run_id or (latest and other.close_time and other.close_time <= latest.at):
                return
            turn = await find_closed_turn(self._client, other_id, owner)
            if turn and turn.has_record and (latest is None or latest.at < turn.at):
                raise StoredFileChangedError(LATEST_FILE, record_name(other_id), record_name(run_id), "it names")

    async def _forget(self, store: Store, record: TurnRecord, request: JoinRequest) -> TurnRecord:
        """Write a record of the conversation without the turns that a person removed."""
        whole = _to_transcript([part for segment in record.segments for part in await read_segment(store, segment)])
        for run_id in request.forget:
            turn = await find_closed_turn(self._client, run_id, conversation_workflow_id(request.conversation_id))
            digest = turn.digest if turn else None
            with suppress(FileNotFoundError):  # a turn without a record has no parts
                end = (await read_record(store, record_name(run_id), digest)).segments[-1]
                if whole.head_at(end.end) == end.head and (note := omit_turn(whole.parts, end.end)):
                    whole.append(note)
        name = f"{activity.info().workflow_id or ''}{JOINED_SUFFIX}"
        return await _put_record(store, name, list(record.segments), whole, record.journal)

    async def _recover_record(self, run_id: str, owner: str) -> TurnRecord | None:
        """Write the record of a turn that ended without one, from its history."""
        handle = self._client.get_workflow_handle(run_workflow_id(run_id))
        try:
            described = await handle.describe()
            if described.status is WorkflowExecutionStatus.RUNNING:
                return None
            snapshot = await read_snapshot(handle)
        except WorkflowQueryFailedError:
            return None  # the start was rejected
        except RPCError as error:
            if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION):
                return None  # FAILED_PRECONDITION: it was terminated before a worker started it
            raise
        if snapshot.length == 0 or snapshot.state.status is RunStatus.queued:
            return None  # it had not joined the conversation yet
        expected = TranscriptCursor(handle.id, described.run_id, snapshot.length, snapshot.head)
        whole = _to_transcript((await self._transcripts.read_conversation(expected)).transcript.parts)
        in_flight = [call.tool_use_id for call in snapshot.state.calls]
        for call in settle_interrupted(snapshot.state, in_flight).calls:
            whole.append(call_part(call))
        before = next((segment for segment in snapshot.segments if segment.owner == owner), None)
        unanswered = unanswered_kind(snapshot.state, _UNANSWERED.get(described.status) if described.status else None)
        journal = forward_journal(snapshot.state.journal)
        turn = TurnClose(owner=owner, before=before, journal=journal, unanswered=unanswered)
        return await write_turn(self._project, run_id, turn, whole)

    async def _turns_of(self, owner: str, status: str, limit: int | None = None) -> AsyncIterator[WorkflowExecution]:
        query = f"WorkflowType = 'AgentRun' AND ExecutionStatus {status} AND {query_equals('ParentWorkflowId', owner)}"
        async for turn in self._client.list_workflows(query, limit=limit):
            if turn.parent_id == owner:
                yield turn

    @activity.defn
    async def open_turn(self, conversation_id: str) -> Queued | None:
        """Return the turn that an earlier lane of this conversation left open."""
        async for run in self._turns_of(conversation_workflow_id(conversation_id), "= 'Running'"):
            handle = self._client.get_workflow_handle(run.id)
            try:
                state = (await handle.query("snapshot", result_type=Snapshot)).state  # one page is enough
            except WorkflowQueryFailedError:
                continue  # the start was rejected
            request_id = state.headers.request_id or state.run_id
            request = SubmitRequest(request_id=request_id, goal=state.goal, agent=state.agent)
            return Queued(request=request, run_id=state.run_id, size=len(to_json(request)), at=state.created_at)
        return None

    @activity.defn
    async def answer_turn(self, request: TurnAnswer) -> bool:
        """Pass an answer to a run, and return True if the run accepted it."""
        handle = self._client.get_workflow_handle(run_workflow_id(request.run_id))
        body = HumanInput(**request.model_dump(include={"question_id", "text", "attachments", "sender", "signature"}))
        answer = body.model_dump(mode="json", exclude_none=True)
        with suppress(WorkflowUpdateFailedError), IgnoreMissing():
            await handle.execute_update("answer", answer, id=request.request_id)
            return True
        return False


async def write_turn(project: Project, run_id: str, turn: TurnClose, whole: Transcript) -> TurnRecord:
    """Write the record of a turn's end. The conversation no longer shows messages without an answer.

    A segment is joined with later ones once they are as long, so there are few segments, and each part is rewritten
    only a few times in a conversation of any length.
    """
    store = project.stores.of(turn.owner)
    make_private(project.workspace(turn.owner).root)
    stored = list((await read_record(store, turn.before.ref, turn.before.digest)).segments) if turn.before else []
    own = turn.before.end if turn.before else 0
    if turn.unanswered and (note := close_unanswered(whole.parts, own, turn.unanswered)):
        whole.append(note)
    await copy_missing(project.stores.of(run_id), store, whole.parts[own:])
    record = await _put_record(store, run_id, stored, whole, turn.journal)
    await asyncio.to_thread(store.write, LATEST_FILE, record_name(run_id).encode())
    return record


async def _put_record(
    store: Store, run_id: str, stored: list[Segment], whole: Transcript, journal: Journal | None
) -> TurnRecord:
    """Write the parts that are not in `stored` yet, and the record of the whole conversation, named by `run_id`."""
    start = stored[-1].end if stored else 0
    while stored and stored[-1].end - stored[-1].start <= whole.length - start:
        start = stored.pop().start
    if whole.length > start:
        stored.append(await write_segment(store, whole.parts[start:], start, whole.head))
    record = TurnRecord(
        segments=tuple(stored),
        run_id=run_id,
        journal=journal,
        shows_journal=journal is not None and not _is_shown(journal, whole),
    )
    await asyncio.to_thread(store.write, record_name(run_id), record.model_dump_json().encode())
    return record


def _to_transcript(parts: Iterable[Part]) -> Transcript:
    whole = Transcript()
    for part in parts:
        whole.append(part)
    return whole


def _is_shown(journal: Journal, whole: Transcript) -> bool:
    shown = next((part.content for part in reversed(visible_parts(whole.parts)) if part.kind is PartKind.journal), [])
    return join_text_blocks(shown) == join_text_blocks(journal_of(journal, "", "").content)

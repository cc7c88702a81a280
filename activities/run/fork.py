"""The activity `inherit`: the initial state of a run that resumes another run, or is forked from it."""

import asyncio
import shutil
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.effects.heartbeat import heartbeating
from activities.model.transcript_cache import TranscriptCache, TranscriptCursor, write_segment
from activities.project import Project
from activities.run.definition import read_definition, write_definition
from activities.run.first_run import find_key_id
from activities.run.snapshot import read_snapshot
from activities.storage.store import Store
from activities.storage.workspace import ARTIFACTS
from contracts.failures import RunFailure
from contracts.run.state import Inherited, InheritRequest, RunState, RunStatus, Snapshot
from contracts.run.transcript import Part, Segment
from decisions.ids import run_id_of_workflow, run_workflow_id
from decisions.run.journal import fill_journal, render_journal
from decisions.run.limits import apply_ceiling, format_excess, values_set_in
from decisions.run.resume import (
    StepNotFoundError,
    continue_parts,
    cut_after_step,
    fork_state,
    resume_rejection,
    resume_state,
)
from decisions.run.transcript import Transcript
from decisions.text.formatting import format_signal_notice

_ENDS = {
    WorkflowExecutionStatus.FAILED: RunStatus.failed,
    WorkflowExecutionStatus.TIMED_OUT: RunStatus.timed_out,
    WorkflowExecutionStatus.CANCELED: RunStatus.cancelled,
    WorkflowExecutionStatus.TERMINATED: RunStatus.cancelled,
}


class Inheritances:
    def __init__(self, client: Client, transcripts: TranscriptCache, project: Project) -> None:
        self._client = client
        self._transcripts = transcripts
        self._project = project

    @activity.defn
    async def inherit(self, request: InheritRequest) -> Inherited:
        """Read the origin's state and conversation from its history, and write both for this run.

        Raises ApplicationError `NotResumable`, not retryable.
        """
        own = run_id_of_workflow(activity.info().workflow_id or "")
        async with heartbeating(lambda: {"from": request.run_id}):
            origin = self._client.get_workflow_handle(run_workflow_id(request.run_id))
            snapshot, execution = await _read_origin(origin, request)
            source, target = self._project.stores.of(request.run_id), self._project.stores.of(own)
            wanted = TranscriptCursor(origin.id, execution, snapshot.length, snapshot.head, source)
            key_id = await asyncio.to_thread(find_key_id, target, self._project.workspace(own), own, request.execution)
            await asyncio.to_thread(self._copy_files, request.run_id, own)
            try:
                conversation = (await self._transcripts.read_conversation(wanted)).transcript
                state, parts = _continue_from(snapshot.state, conversation.parts, request, own)
                await asyncio.to_thread(self._write_journal, state, own)
                if state.definition:
                    await asyncio.to_thread(write_definition, target, await read_definition(source, state.definition))
            except FileNotFoundError as error:
                raise _not_resumable_error(f"what run {request.run_id} kept is gone: {error}") from None
            segments = await _write_segments(target, parts, snapshot.segments)
        workspace = str(self._project.workspace(own).root)
        keys = dict(self._project.answer_keys) or state.answer_keys  # if the project has none now, the origin's stay
        changes = {"workspace": workspace, "answer_keys": keys, "key_id": key_id}
        return Inherited(state=self._bound_limits(state.model_copy(update=changes)), segments=segments)

    def _bound_limits(self, state: RunState) -> RunState:
        """Bound the origin's limits by the current ceiling."""
        ceiling = values_set_in(self._project.ceiling)
        excess = tuple(format_signal_notice("limits", text) for text in format_excess(state.limits, ceiling))
        limits = apply_ceiling(state.limits, ceiling)
        return state.model_copy(update={"ceiling": ceiling, "limits": limits, "ignored": (*state.ignored, *excess)})

    def _copy_files(self, origin: str, own: str) -> None:
        """Copy the files that the conversation refers to by path."""
        source, target = self._project.workspace(origin), self._project.workspace(own)
        target.create()
        if (source.root / ARTIFACTS).is_dir():
            shutil.copytree(
                source.root / ARTIFACTS, target.root / ARTIFACTS, ignore=ignore_special_files, dirs_exist_ok=True
            )
        for name in ("context.md", "plan.md"):
            if (source.root / name).is_file():
                target.write_own(name, source.read_own(name), durable=False)

    def _write_journal(self, state: RunState, own: str) -> None:
        """Write the journal as of the step that the run continues from; the origin's file may be newer."""
        journal = render_journal(fill_journal(state.journal, state.goal, state.last_finding))
        self._project.workspace(own).write_own("memory.md", journal.encode(), durable=False)


def ignore_special_files(folder: str, names: list[str]) -> list[str]:
    """Return the names that are not copied: symbolic and hard links, pipes and other special files."""
    paths = [Path(folder) / name for name in names]
    return [path.name for path in paths if path.is_symlink() or not (path.is_dir() or _is_one_file(path))]


def _is_one_file(path: Path) -> bool:
    return path.is_file() and path.stat().st_nlink == 1


def _never_began_error(run_id: str) -> ApplicationError:
    return _not_resumable_error(f"run {run_id} never began, so there is nothing to go on from")


async def _read_origin(origin: WorkflowHandle[object, object], request: InheritRequest) -> tuple[Snapshot, str]:
    """Return the origin's snapshot, and the execution that holds its live conversation."""
    status: RunStatus | None = None
    try:
        described = await origin.describe()
        status = _ENDS.get(described.status or WorkflowExecutionStatus.RUNNING)
        execution = described.run_id
        snapshot = await read_snapshot(origin)
    except WorkflowQueryFailedError as error:
        raise _not_resumable_error(f"run {request.run_id} has no state to go on from: {error}") from None
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise _not_resumable_error(f"there is no run {request.run_id}, or the server has forgotten it") from None
        if error.status is RPCStatusCode.FAILED_PRECONDITION and status is not None:
            raise _never_began_error(request.run_id) from None  # it ended before a worker accepted it
        raise
    if snapshot.length == 0:
        raise _never_began_error(request.run_id)
    if request.step is None and (reason := resume_rejection(request.run_id, status or snapshot.state.status)):
        raise _not_resumable_error(reason)
    return snapshot, execution


def _not_resumable_error(message: str) -> ApplicationError:
    return ApplicationError(message, type=RunFailure.not_resumable, non_retryable=True)


def _continue_from(
    origin: RunState, parts: list[Part], request: InheritRequest, own: str
) -> tuple[RunState, tuple[Part, ...]]:
    now, execution = datetime.now(UTC), request.execution
    if request.step is None:
        return resume_state(origin, own, execution, now), continue_parts(origin, parts)
    try:
        start = cut_after_step(origin, parts, request.step, request.say)
    except StepNotFoundError as error:
        raise _not_resumable_error(str(error)) from None
    return fork_state(origin, start, request.step, own, execution, now), start


async def _write_segments(store: Store, parts: tuple[Part, ...], origin: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Write the origin's unchanged segments, and one more for the rest."""
    chain = Transcript()
    for part in parts:
        chain.append(part)
    ends = [segment.end for segment in origin if chain.head_at(segment.end) == segment.head]
    bounds = [0, *ends, *([len(parts)] if len(parts) not in (0, *ends) else [])]
    spans = pairwise(bounds)
    return tuple([await write_segment(store, parts[a:b], a, chain.head_at(b) or "") for a, b in spans])

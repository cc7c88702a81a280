"""The activity `inherit`: the initial state of a run that resumes another run, or is forked from it."""

import asyncio
from datetime import UTC, datetime
from itertools import pairwise

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.effects.attempts import heartbeating
from activities.media.store import copy_missing
from activities.model.transcript_cache import TranscriptCache, TranscriptCursor, write_segment
from activities.policy import carry_policy
from activities.project import Project
from activities.run.definition import read_definition, write_definition
from activities.run.status import read_snapshot
from activities.storage.store import Store, find_key_id
from activities.temporal import own_run_id
from contracts.failures import RunFailure
from contracts.run.state import Inherited, InheritRequest, RunState, RunStatus, Snapshot
from contracts.run.transcript import Part, Segment
from decisions.ids import run_workflow_id
from decisions.run import resume
from decisions.run.journal import fill_journal, render_journal
from decisions.run.limits import apply_ceiling, format_excess, values_set_in
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
        own = own_run_id()
        async with heartbeating(lambda: {"from": request.run_id}):
            origin = self._client.get_workflow_handle(run_workflow_id(request.run_id))
            snapshot, execution = await _read_origin(origin, request)
            source, target = self._project.stores.of(request.run_id), self._project.stores.of(own)
            wanted = TranscriptCursor(origin.id, execution, snapshot.length, snapshot.head)
            key_id = await asyncio.to_thread(find_key_id, target, self._project.workspace(own), own, request.execution)
            await asyncio.to_thread(self._copy_files, request.run_id, own)
            try:
                conversation = (await self._transcripts.read_conversation(wanted)).transcript
                state, parts = _continue_from(snapshot.state, conversation.parts, request, own)
                # As of the step that the run continues from: the origin's file may be newer.
                journal = render_journal(fill_journal(state.journal, state.goal, state.last_finding)).encode()
                await asyncio.to_thread(self._project.workspace(own).write_own, "memory.md", journal)
                if state.definition:
                    await asyncio.to_thread(write_definition, target, await read_definition(source, state.definition))
                policy = await carry_policy(self._project, source, target, state)
            except FileNotFoundError as error:
                raise _not_resumable_error(f"what run {request.run_id} kept is gone: {error}") from None
            await copy_missing(source, target, parts)
            segments = await _write_segments(target, parts, snapshot.segments)
        workspace = str(self._project.workspace(own).root)
        keys = dict(self._project.answer_keys) or state.answer_keys  # if the project has none now, the origin's stay
        changes = {"workspace": workspace, "answer_keys": keys, "key_id": key_id, "policy": policy}
        ceiling = values_set_in(self._project.ceiling)
        excess = (format_signal_notice("limits", text) for text in format_excess(state.limits, ceiling))
        bounds = {
            "ceiling": ceiling,
            "limits": apply_ceiling(state.limits, ceiling),
            "ignored": (*state.ignored, *excess),
        }
        return Inherited(state=state.model_copy(update=changes | bounds), segments=segments)

    def _copy_files(self, origin: str, own: str) -> None:
        source, target = self._project.workspace(origin), self._project.workspace(own)
        target.copy_artifacts(source)
        for name in ("context.md", "plan.md"):
            if (source.root / name).is_file():
                target.write_own(name, source.read_own(name))


async def _read_origin(origin: WorkflowHandle[object, object], request: InheritRequest) -> tuple[Snapshot, str]:
    """Return the origin's snapshot, and the execution that holds its live conversation."""
    status: RunStatus | None = None
    never_began = f"run {request.run_id} never began, so there is nothing to go on from"
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
            raise _not_resumable_error(never_began) from None  # it ended before a worker accepted it
        raise
    if snapshot.length == 0:
        raise _not_resumable_error(never_began)
    if request.step is None and (reason := resume.resume_rejection(request.run_id, status or snapshot.state.status)):
        raise _not_resumable_error(reason)
    return snapshot, execution


def _not_resumable_error(message: str) -> ApplicationError:
    return ApplicationError(message, type=RunFailure.not_resumable, non_retryable=True)


def _continue_from(
    origin: RunState, parts: list[Part], request: InheritRequest, own: str
) -> tuple[RunState, tuple[Part, ...]]:
    now, execution = datetime.now(UTC), request.execution
    if request.step is None:
        return resume.resume_state(origin, own, execution, now), resume.continue_parts(origin, parts)
    try:
        start = resume.cut_after_step(origin, parts, request.step, request.say)
    except resume.StepNotFoundError as error:
        raise _not_resumable_error(str(error)) from None
    return resume.fork_state(origin, start, request.step, own, execution, now), start


async def _write_segments(store: Store, parts: tuple[Part, ...], origin: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Write the origin's unchanged segments, and one more for the rest."""
    chain = Transcript()
    for part in parts:
        chain.append(part)
    ends = [segment.end for segment in origin if chain.head_at(segment.end) == segment.head]
    bounds = [0, *ends, *([len(parts)] if len(parts) not in (0, *ends) else [])]
    spans = pairwise(bounds)
    return tuple([await write_segment(store, parts[a:b], a, chain.head_at(b) or "") for a, b in spans])

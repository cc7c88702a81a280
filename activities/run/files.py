"""`open_run` and `close_segment`: a run's files at its start, at each continue-as-new, and at its end."""

import asyncio
import json
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.conversation import write_turn
from perdure.activities.effects.attempts import heartbeating
from perdure.activities.effects.places import LimitedPlaces
from perdure.activities.media.store import copy_missing
from perdure.activities.model.transcript_cache import TranscriptCache, TranscriptCursor, digest_of_record, write_segment
from perdure.activities.policy import copy_policy, peer_sources, write_policy
from perdure.activities.project import Project
from perdure.activities.providers.port import Admission
from perdure.activities.run.account import write_account
from perdure.activities.run.definition import (
    agent_of,
    build_definition,
    must_be_valid_start,
    name_of_check,
    read_definition,
    write_definition,
)
from perdure.activities.run.outcome import look_up_plan
from perdure.activities.run.status import read_snapshot
from perdure.activities.storage.store import Store, find_key_id
from perdure.activities.storage.workspace import Workspace
from perdure.activities.telemetry import trace
from perdure.activities.temporal import cancel_own_workflow, own_run_id, own_workflow_id
from perdure.contracts.agent import Agent, Definition, StartSnapshot, StartSnapshotRequest
from perdure.contracts.failures import RunFailure
from perdure.contracts.people import UNKNOWN, Work
from perdure.contracts.run.journal import Journal
from perdure.contracts.run.state import Closed, CloseRequest, Inherited, InheritRequest, RunState, RunStatus, Snapshot
from perdure.contracts.run.transcript import Part, Segment
from perdure.contracts.tool import ToolTable
from perdure.decisions.ids import run_workflow_id
from perdure.decisions.policy.facts import read_past
from perdure.decisions.run import resume
from perdure.decisions.run.compaction import goal_of
from perdure.decisions.run.journal import fill_journal, render_journal
from perdure.decisions.run.limits import apply_ceiling, apply_requested, format_excess, merge_limits, values_set_in
from perdure.decisions.run.transcript import Transcript
from perdure.decisions.text.formatting import format_signal_notice
from perdure.registry import load_each


class RunFiles:
    def __init__(
        self,
        client: Client,
        transcripts: TranscriptCache,
        project: Project,
        admission: Admission | None = None,
        places: LimitedPlaces | None = None,
    ) -> None:
        self._client = client
        self._transcripts = transcripts
        self._project = project
        self._admission = admission
        self._places = places

    @activity.defn
    async def open_run(self, request: StartSnapshotRequest) -> StartSnapshot:
        """Take the run's snapshot of its agent, and create its workspace.

        Raises ApplicationError `UnknownAgent`, `InvalidInput` if the start's context, output schema or plan is not
        valid, or as `Admission.admit_run`.
        """
        async with heartbeating(own_run_id):
            agent = agent_of(self._project, request.agent)
            await must_be_valid_start(agent, request)
            planned = await look_up_plan(self._client, request.planned) if request.planned else None
            workspace, store = self._project.workspace(own_run_id()), self._project.stores.of(own_run_id())
            goal = goal_of((await self._read_conversation(request.length, request.head)).parts)
            ceiling = values_set_in(self._project.ceiling)
            limits = apply_ceiling(merge_limits(agent.limits, self._project.limits), ceiling)
            requested = {} if request.max_depth is None else {"max_depth": request.max_depth}
            deepest = apply_ceiling(apply_requested(limits, requested), ceiling).max_depth
            may_delegate = request.depth < deepest
            definition = build_definition(self._project, agent, request.output_schema, may_delegate=may_delegate)
            key_id = await asyncio.to_thread(find_key_id, store, workspace, own_run_id(), request.execution)
            await asyncio.to_thread(_lay_out, workspace, goal, definition)
            ref = await asyncio.to_thread(write_definition, store, definition)
            policy = self._project.policy
            policy = policy if policy is not None and policy.governs(agent.name) else None
            if policy is not None:
                await asyncio.to_thread(write_policy, store, policy)
            admitted = await self._admit_run(agent, request)
        peers = agent.peers if definition.may_delegate else ()
        return StartSnapshot(
            agent=agent.name,
            model=definition.model,
            definition=ref,
            tools=self._routes_of(agent, definition),
            peers=peers,
            mailboxes=tuple(name for name in peers if self._project.agents[name].mailbox),
            limits=limits,
            workspace=str(workspace.root),
            sessions=agent.follow_ups or (),
            secret=secrets.token_hex(16),
            answer_keys=dict(self._project.answer_keys),
            ceiling=ceiling,
            key_id=key_id,
            is_typed=definition.output_schema is not None,
            policy=policy.ref if policy is not None else "",
            accept=name_of_check(definition),
            fuse_reads=self._project.fuse_reads if agent.fuse_reads is None else agent.fuse_reads,
            pace=request.pace or agent.pace or self._project.pace,
            planned=planned,
            **admitted,
            **self._fields_of_features(agent),
        )

    async def _admit_run(self, agent: Agent, request: StartSnapshotRequest) -> dict[str, Any]:
        """Return the fields about the run's account and place. A run that has to wait is held."""
        account = await self._admission.open_account(request.account) if self._admission else None
        place = await self._places.enter_run(agent, account) if self._places and request.is_first else ""
        if self._admission and account:
            await asyncio.to_thread(write_account, self._project.stores.of(own_run_id()), account)
            await self._admission.admit_run(agent.name, account)
        return {"account": account, "place": place, "places": agent.max_running if place else None}

    def _fields_of_features(self, agent: Agent) -> dict[str, Any]:
        filled = (fill(self._project, agent.name) for fill in load_each("on_open"))
        return {name: value for fields in filled for name, value in fields.items()}

    def _routes_of(self, agent: Agent, definition: Definition) -> ToolTable:
        offered = {tool.name for tool in definition.tools}
        searched = {tool.name for tool in definition.searched}
        own = (route for route in self._project.builtins if route.name in offered)
        routes = (self._project.tools[name].route for name in agent.tools)
        return (*own, *(route.evolve(is_searched=True) if route.name in searched else route for route in routes))

    @activity.defn
    async def close_segment(self, request: CloseRequest) -> Closed:
        """Archive the parts since `start`; at the end of the run, also finish its files.

        A run cancelled by a signal is cancelled on the server here.
        """
        workspace, store = self._project.workspace(own_run_id()), self._project.stores.of(own_run_id())
        async with heartbeating(own_run_id):
            transcript = await self._read_conversation(request.length, request.head)
            await asyncio.to_thread(workspace.create)  # a run that ended before it was opened has none
            segment = record = None
            if request.turn is not None:
                record = digest_of_record(await write_turn(self._project, own_run_id(), request.turn, transcript))
            elif request.length > request.start:
                live = transcript.parts[request.start : request.length]
                segment = await write_segment(store, live, request.start, request.head)
            await asyncio.to_thread(trace.write_trace, workspace, *request.trace)
            if request.journal is not None:
                goal = goal_of(transcript.parts) if transcript.parts else ""  # a refused resume has not begun
                journal = fill_journal(request.journal, goal, "")
                await asyncio.to_thread(_finish_files, workspace, journal, request)
                if request.turn is not None:
                    self._transcripts.hand_over(own_workflow_id(), request.turn.owner)
                self._transcripts.drop_conversation(own_workflow_id())
            if request.cancel is not None:
                await cancel_own_workflow(self._client, request.cancel)
        if not activity.info().is_local:
            return Closed(segment=segment, record=record)
        return Closed(segment=segment, length=request.length, head=request.head, trace=request.trace)

    async def _read_conversation(self, length: int, head: str) -> Transcript:
        return (await self._transcripts.read_current(length, head)).transcript


def _lay_out(workspace: Workspace, goal: str, definition: Definition) -> None:
    workspace.create()
    context = f"# Goal\n\n{goal}\n\nAgent: {definition.agent}, model {definition.model}\n"
    workspace.write_own("context.md", context.encode())
    workspace.write_own("memory.md", render_journal(Journal(objective=goal)).encode())


def _finish_files(workspace: Workspace, journal: Journal, request: CloseRequest) -> None:
    """Write the journal as `memory.md`, and `trace.jsonl` without the lines that a retried activity repeated.

    Lines of an end that the server rejected, because a signal arrived, are removed.
    """
    workspace.write_own("memory.md", render_journal(journal).encode())
    text = b""
    with suppress(FileNotFoundError):  # a run that ended before its first turn
        text = workspace.read_own(trace.TRACE_FILE)
    lines = trace.unique_keys(text.decode(errors="replace"))
    last = max(map(trace.event_number, request.trace), default=0)
    lines = {key: line for key, line in lines.items() if trace.event_number(line) <= last and key != "end"}
    if request.event is not None:
        event = request.event
        lines["end"] = trace.with_time({"key": "end", "event": event["type"], **event["payload"]})
    text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in lines.values()).encode()
    workspace.write_own(trace.TRACE_FILE, text)


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
                if (account := state.account) is not None:
                    if request.step is not None:  # a fork is the work of who asks for it
                        account = account.evolve(requester=request.by or UNKNOWN)
                    state = state.evolve(account=account)
                    await asyncio.to_thread(write_account, target, account)
                policy = await copy_policy(self._project, source, target, state)
                if policy and request.step is not None:  # the files of later steps are copied, too
                    past = read_past(conversation.parts, None, partial(peer_sources, self._project))
                    work = (state.work or Work()).with_sources(tuple(past.has_read))
                    state = state.evolve(work=work)
            except FileNotFoundError as error:
                raise _not_resumable_error(f"what run {request.run_id} kept is gone: {error}") from None
            await copy_missing(source, target, parts)
            segments = await _write_segments(target, parts, snapshot.segments)
        workspace = str(self._project.workspace(own).root)
        keys = dict(self._project.answer_keys) or state.answer_keys  # if the project has none now, the origin's stay
        ceiling = values_set_in(self._project.ceiling)
        excess = (format_signal_notice("limits", text) for text in format_excess(state.limits, ceiling))
        own_state = state.evolve(
            workspace=workspace,
            answer_keys=keys,
            key_id=key_id,
            policy=policy,
            ceiling=ceiling,
            limits=apply_ceiling(state.limits, ceiling),
            ignored=state.ignored.add(*excess),
        )
        return Inherited(state=own_state, segments=segments)

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

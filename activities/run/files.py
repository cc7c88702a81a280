"""`open_run` and `close_segment`: a run's files at its start, at each continue-as-new, and at its end."""

import asyncio
import json
import secrets
from contextlib import suppress

from temporalio import activity
from temporalio.client import Client

from activities.conversation import write_turn
from activities.effects.attempts import heartbeating
from activities.model.transcript_cache import TranscriptCache, digest_of_record, write_segment
from activities.people.channels import match_routes
from activities.policy import write_policy
from activities.project import Project
from activities.run.definition import (
    agent_of,
    build_definition,
    must_be_valid_start,
    name_of_check,
    write_definition,
)
from activities.storage.store import find_key_id
from activities.storage.workspace import Workspace
from activities.telemetry import trace
from activities.temporal import cancel_own_workflow, own_run_id, own_workflow_id
from contracts.agent import Definition, StartSnapshot, StartSnapshotRequest
from contracts.run.journal import Journal
from contracts.run.state import Closed, CloseRequest
from decisions.run.compaction import goal_of
from decisions.run.journal import fill_journal, render_journal
from decisions.run.limits import apply_ceiling, apply_requested, merge_limits, values_set_in
from decisions.run.transcript import Transcript


class RunFiles:
    def __init__(self, client: Client, transcripts: TranscriptCache, project: Project) -> None:
        self._client = client
        self._transcripts = transcripts
        self._project = project

    @activity.defn
    async def open_run(self, request: StartSnapshotRequest) -> StartSnapshot:
        """Take the run's snapshot of its agent, and create its workspace.

        Raises ApplicationError `UnknownAgent`, or `InvalidInput` if the start's context or output schema is not valid.
        """
        async with heartbeating(own_run_id):
            agent = agent_of(self._project, request.agent)
            must_be_valid_start(agent, request)
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
            if policy is not None and policy.governs(agent.name):
                await asyncio.to_thread(write_policy, store, policy)
        peers = agent.peers if definition.may_delegate else ()
        offered = {tool.name for tool in definition.tools}
        own = (route for route in self._project.builtins if route.name in offered)
        searched = {tool.name: {"is_searched": True} for tool in definition.searched}
        routes = (self._project.tools[name].route for name in agent.tools)
        return StartSnapshot(
            agent=agent.name,
            model=definition.model,
            definition=ref,
            tools=(*own, *(route.model_copy(update=searched.get(route.name)) for route in routes)),
            peers=peers,
            mailboxes=tuple(name for name in peers if self._project.agents[name].mailbox),
            limits=limits,
            workspace=str(workspace.root),
            sessions=agent.follow_ups or (),
            secret=secrets.token_hex(16),
            answer_keys=dict(self._project.answer_keys),
            ceiling=ceiling,
            key_id=key_id,
            notify=match_routes(self._project.channels, agent.name),
            is_typed=definition.output_schema is not None,
            policy=policy.ref if policy is not None and policy.governs(agent.name) else "",
            accept=name_of_check(definition),
            fuse_reads=self._project.fuse_reads if agent.fuse_reads is None else agent.fuse_reads,
            pace=request.pace or agent.pace or self._project.pace,
        )

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
            await asyncio.to_thread(trace.write_trace, workspace, *request.told)
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
        return Closed(segment=segment, length=request.length, head=request.head, told=request.told)

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
    last = max(map(trace.event_number, request.told), default=0)
    lines = {key: line for key, line in lines.items() if trace.event_number(line) <= last and key != "end"}
    if request.event is not None:
        event = request.event
        lines["end"] = trace.with_time({"key": "end", "event": event["type"], **event["payload"]})
    text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in lines.values()).encode()
    workspace.write_own(trace.TRACE_FILE, text)

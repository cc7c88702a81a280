"""`open_run` and `close_segment`: a run's files at its start, at each continue-as-new, and at its end."""

import asyncio
import json
import secrets
from contextlib import suppress

from temporalio import activity
from temporalio.client import Client

from activities.conversation import keep_turn
from activities.effects.heartbeat import beating
from activities.model.transcript_cache import Transcripts, Wanted, digest_of_record, keep_segment
from activities.project import Project
from activities.run.definition import agent_of, defined, keep
from activities.run.first_run import find_key_id
from activities.storage.store import Store
from activities.storage.workspace import Workspace
from activities.telemetry import trace
from contracts.agent import Definition, Opening, OpeningRequest
from contracts.run.journal import Journal
from contracts.run.state import Closed, CloseRequest
from decisions.ids import run_id_of
from decisions.run.compaction import goal_of
from decisions.run.journal import render, shown
from decisions.run.limits import below_ceiling, effective, set_in, with_requested
from decisions.run.transcript import Transcript


class Runs:
    def __init__(self, client: Client, transcripts: Transcripts, project: Project) -> None:
        self._client = client
        self._transcripts = transcripts
        self._project = project

    @activity.defn
    async def open_run(self, request: OpeningRequest) -> Opening:
        """Take the run's snapshot of its agent, and create its workspace.

        Raises ApplicationError `UnknownAgent`, not retryable.
        """
        async with beating(_run_id):
            agent = agent_of(self._project, request.agent)
            workspace, store = self._project.workspace(_run_id()), self._project.stores.of(_run_id())
            conversation = await self._conversation(request.length, request.head, store)
            goal = goal_of(conversation.parts)
            ceiling = set_in(self._project.ceiling)
            limits = below_ceiling(effective(agent.limits, self._project.limits), ceiling)
            requested = {} if request.max_depth is None else {"max_depth": request.max_depth}
            deepest = below_ceiling(with_requested(limits, requested), ceiling).max_depth
            definition = defined(self._project, agent, may_delegate=request.depth < deepest)
            key_id = await asyncio.to_thread(find_key_id, store, workspace, _run_id(), request.execution)
            await asyncio.to_thread(_lay_out, workspace, goal, definition)
            ref = await asyncio.to_thread(keep, store, definition)
        peers = agent.peers if definition.may_delegate else ()
        offered = {tool.name for tool in definition.tools}
        own = (route for route in self._project.builtins if route.name in offered)
        return Opening(
            agent=agent.name,
            model=definition.model,
            definition=ref,
            tools=(*own, *(self._project.tools[name].route for name in agent.tools)),
            peers=peers,
            mailboxes=tuple(name for name in peers if self._project.agents[name].mailbox),
            limits=limits,
            workspace=str(workspace.root),
            sessions=agent.follow_ups or (),
            secret=secrets.token_hex(16),
            answer_keys=dict(self._project.answer_keys),
            ceiling=ceiling,
            key_id=key_id,
        )

    @activity.defn
    async def close_segment(self, request: CloseRequest) -> Closed:
        """Archive the parts since `start`; at the end of the run, also finish its files.

        A run cancelled by a signal is cancelled on the server here: only that ends it as Canceled.
        """
        info = activity.info()
        workspace, store = self._project.workspace(_run_id()), self._project.stores.of(_run_id())
        async with beating(_run_id):
            transcript = await self._conversation(request.length, request.head, store)
            await asyncio.to_thread(workspace.create)  # a run that ended before it was opened has none
            segment = record = None
            if request.turn is not None:
                record = digest_of_record(await keep_turn(self._project, _run_id(), request.turn, transcript))
            elif request.length > request.start:
                live = transcript.parts[request.start : request.length]
                segment = await keep_segment(store, live, request.start, request.head)
            await asyncio.to_thread(trace.record_all, workspace, request.told)
            if request.journal is not None:
                goal = goal_of(transcript.parts) if transcript.parts else ""  # a refused resume has not begun
                journal = shown(request.journal, goal, "")
                await asyncio.to_thread(_finish_files, workspace, journal, request)
                if request.turn is not None:
                    self._transcripts.hand_on(info.workflow_id or "", request.turn.owner)
                self._transcripts.forget(info.workflow_id or "")
            if request.cancel is not None:
                handle = self._client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
                # Temporal keeps this reason as plain text; if payloads are encrypted, only the signal carries it.
                plain = self._client.data_converter.payload_codec is None
                await handle.cancel(reason=request.cancel if plain else "")
        if not info.is_local:
            return Closed(segment=segment, record=record)
        return Closed(segment=segment, length=request.length, head=request.head, told=request.told)

    async def _conversation(self, length: int, head: str, store: Store) -> Transcript:
        return (await self._transcripts.at(Wanted.here(length, head, store))).transcript


def _run_id() -> str:
    return run_id_of(activity.info().workflow_id or "")


def _lay_out(workspace: Workspace, goal: str, definition: Definition) -> None:
    workspace.create()
    context = f"# Goal\n\n{goal}\n\nAgent: {definition.agent}, model {definition.model}\n"
    workspace.write_own("context.md", context.encode(), durable=False)
    workspace.write_own("memory.md", render(Journal(objective=goal)).encode(), durable=False)


def _finish_files(workspace: Workspace, journal: Journal, request: CloseRequest) -> None:
    """Write the journal as `memory.md`, and `trace.jsonl` without the lines that a retried activity repeated.

    Lines of an end that the server rejected, because a signal arrived, are removed.
    """
    workspace.write_own("memory.md", render(journal).encode(), durable=False)
    text = b""
    with suppress(FileNotFoundError):  # a run that ended before its first turn
        text = workspace.read_own(trace.NAME)
    lines = trace.once_each(text.decode(errors="replace"))
    last = max(map(trace.number_of, request.told), default=0)
    lines = {key: line for key, line in lines.items() if trace.number_of(line) <= last and key != "end"}
    if request.event is not None:
        event = request.event
        lines["end"] = trace.dated({"key": "end", "event": event["type"], **event["payload"]})
    text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in lines.values()).encode()
    workspace.write_own(trace.NAME, text, durable=False)

"""`open_run` and `close_segment`: a run's files at its start, where it rotates, and at its end."""

import asyncio
import json
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities import trace
from activities.heartbeat import beating
from activities.project import Project
from activities.transcript import Transcripts, Wanted, dump_parts
from activities.workspace import SEGMENT, Workspace
from contracts.agent import Agent, Definition, Opening, OpeningRequest
from contracts.failures import RunFailure
from contracts.journal import Journal
from contracts.limits import LimitOverrides
from contracts.run import Closed, CloseRequest
from contracts.transcript import Segment
from decisions import builtins
from decisions.calls import text_of
from decisions.ids import run_id_of
from decisions.journal import render
from decisions.transcript import Transcript


class Runs:
    def __init__(self, client: Client, transcripts: Transcripts, project: Project) -> None:
        self._client = client
        self._transcripts = transcripts
        self._project = project

    @activity.defn
    async def open_run(self, request: OpeningRequest) -> Opening:
        """Takes the snapshot of the agent that the run will keep, and lays out its workspace.

        Raises ApplicationError `UnknownAgent`, not retryable.
        """
        async with beating(_run_id):
            agent = self._agent(request.agent)
            workspace = self._project.workspace(_run_id())
            conversation = await self._conversation(request.length, request.head, workspace)
            goal = text_of(conversation.parts[0].content)
            definition = self._definition(agent)
            ref = await asyncio.to_thread(_lay_out, workspace, goal, agent.name, definition)
        tools = (*builtins.ROUTES, *(self._project.tools[name].route for name in agent.tools))
        return Opening(
            agent=agent.name,
            model=definition.model,
            definition=ref,
            tools=tools,
            limits=_merged(agent, self._project),
            workspace=str(workspace.root),
        )

    @activity.defn
    async def close_segment(self, request: CloseRequest) -> Closed:
        """Archives the parts since `start`; at the end of the run also finishes its files.

        A run that was cancelled by a signal is cancelled with the server here: only that ends it Canceled.
        """
        info = activity.info()
        workspace = self._project.workspace(_run_id())
        async with beating(_run_id):
            transcript = await self._conversation(request.length, request.head, workspace)
            await asyncio.to_thread(workspace.create)  # a run that ended before it was opened has none
            segment = None
            if request.length > request.start:
                data = dump_parts(transcript.parts[request.start : request.length])
                ref = f"{SEGMENT}{blake2b(data, digest_size=16).hexdigest()}.json"
                await asyncio.to_thread(workspace.write_own, ref, data)
                segment = Segment(ref=ref, start=request.start, end=request.length, head=request.head)
            if request.journal is not None:
                await asyncio.to_thread(_finish_files, workspace, request.journal, request.event)
                self._transcripts.forget(info.workflow_id or "")
            if request.cancel is not None:
                handle = self._client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
                # Temporal keeps this reason as plain text; where payloads are encrypted, the signal has told it.
                plain = self._client.data_converter.payload_codec is None
                await handle.cancel(reason=request.cancel if plain else "")
        return Closed(segment=segment)

    async def _conversation(self, length: int, head: str, workspace: Workspace) -> Transcript:
        return (await self._transcripts.at(Wanted.here(length, head, workspace))).transcript

    def _agent(self, name: str) -> Agent:
        agent = self._project.agents.get(name)
        if agent is None:
            known = ", ".join(sorted(self._project.agents))
            message = f"there is no agent {name!r} in this worker's project; the agents are: {known}"
            raise ApplicationError(message, type=RunFailure.unknown_agent, non_retryable=True)
        return agent

    def _definition(self, agent: Agent) -> Definition:
        schemas = (*builtins.SCHEMAS, *(self._project.tools[name].schema for name in agent.tools))
        system = f"{self._project.instructions.strip()}\n\n{agent.prompt.strip()}".strip()
        return Definition(
            agent=agent.name,
            model=agent.model or self._project.model,
            max_tokens=self._project.max_tokens,
            system=system,
            tools=schemas,
        )


def _run_id() -> str:
    return run_id_of(activity.info().workflow_id or "")


def _merged(agent: Agent, project: Project) -> LimitOverrides:
    return project.limits.model_copy(update=agent.limits.model_dump(exclude_none=True))


def _lay_out(workspace: Workspace, goal: str, agent: str, definition: Definition) -> str:
    workspace.create()
    workspace.write_own(
        "context.md", f"# Goal\n\n{goal}\n\nAgent: {agent}, model {definition.model}\n".encode(), durable=False
    )
    workspace.write_own("memory.md", render(Journal(objective=goal)).encode(), durable=False)
    data = definition.model_dump_json().encode()
    ref = blake2b(data, digest_size=12).hexdigest()
    workspace.write_own(_definition_path(ref), data)
    return ref


def _definition_path(ref: str) -> str:
    return f".store/definition-{ref}.json"


async def definition_of(workspace: Workspace, ref: str) -> Definition:
    data = await asyncio.to_thread(workspace.read_own, _definition_path(ref))
    return Definition.model_validate_json(data)


def _finish_files(workspace: Workspace, journal: Journal, event: dict[str, Any] | None) -> None:
    """The journal as `memory.md`, and `trace.jsonl` with each line once: a retried activity may have repeated one."""
    workspace.write_own("memory.md", render(journal).encode(), durable=False)
    told = b""
    with suppress(FileNotFoundError):  # a run that ended before its first turn
        told = workspace.read_own(trace.NAME)
    lines = trace.once_each(told.decode(errors="replace"))
    if event is not None:
        lines["end"] = {"key": "end", "event": event["type"], **event["payload"]}
    text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in lines.values())
    workspace.write_own(trace.NAME, text.encode(), durable=False)

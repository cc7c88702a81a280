"""Export of one run as one record, from its history, its store and its files.

Only the latest messages of an open run need a worker.
"""

import asyncio
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from importlib.metadata import version
from typing import Any

from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from perdure.activities.model.transcript_cache import read_record, read_segment, record_name
from perdure.activities.run.definition import read_definition
from perdure.activities.storage.store import LocalStores, Stores
from perdure.activities.storage.workspace import ARTIFACTS, OutsideWorkspaceError, Workspace
from perdure.client.errors import convert_unreadable
from perdure.client.records.run_facts import RunFacts, collect_facts, with_shown_results
from perdure.client.run_list import RunInfo, find_run, list_subtree
from perdure.client.runs import query_run_state, wait_for_run_end
from perdure.client.watch import HistoryReader
from perdure.contracts.agent import Definition
from perdure.contracts.run.export import Export, ExportedArtifact, ExportedTranscript
from perdure.contracts.run.transcript import Segment, TranscriptPage
from perdure.decisions.run.transcript import Transcript
from perdure.decisions.text.formatting import truncate

MAX_INLINE_BYTES = 256 * 1024  # bytes of an artifact whose content is in the record
MAX_ARTIFACTS = 10_000
CHUNK = 1024 * 1024
EXPORT_QUERY_TIMEOUT = timedelta(seconds=10)  # a worker replays a run that it has not cached before it answers


@dataclass
class Exporter:
    """Exports runs. `workspaces` are the folders with their files; `asks` says whether a worker can be queried."""

    client: Client
    stores: Stores
    workspaces: LocalStores
    asks: bool

    async def export(self, run_id: str) -> Export:
        """Raises RunNotFoundError, UnknownKeyError, UnreadableRunError."""
        with convert_unreadable(run_id):
            return await self._export(run_id)

    async def _export(self, run_id: str) -> Export:
        missing: list[str] = []
        run = await find_run(self.client, run_id)
        view = await query_run_state(self.client, run.run_id, EXPORT_QUERY_TIMEOUT) if self.asks else None
        if view is None:
            missing.append("state: no worker answers")
        executions = await HistoryReader(self.client).read_executions(run)
        if executions[0].execution != run.first_execution:
            missing.append("executions: earlier ones are past the namespace's retention")
        facts = collect_facts(executions)
        if facts.unreadable:
            missing.append(f"history: this version cannot read {', '.join(facts.unreadable)}")
        transcript = await self._read_transcript(run, facts, missing, asks=view is not None)
        end = None if run.is_open else asdict(await wait_for_run_end(self.client, run.run_id))
        return Export(
            exported_at=datetime.now(UTC),
            run_id=run.run_id,
            status=run.status,
            end=end,
            parent=run.parent,
            origin=_origin_of(facts.start),
            policy=facts.policy,
            start=facts.start,
            usage=facts.usage,
            cost_usd=facts.cost_usd,
            turns=facts.turns,
            calls=with_shown_results(facts.calls, transcript.parts),
            questions=facts.questions,
            notices=facts.notices,
            received=facts.received,
            transcript=transcript,
            definitions=await self._read_definitions(run.run_id, facts.definitions, missing),
            artifacts=await asyncio.to_thread(self._read_artifacts, run.run_id, _named_artifacts(end, facts), missing),
            subtasks=[_subtask_row(depth, subtask) for depth, subtask in await list_subtree(self.client, run)],
            state=view,
            executions=executions,
            versions=await self._get_versions(facts),
            missing=missing,
        )

    async def _read_transcript(
        self, run: RunInfo, facts: RunFacts, missing: list[str], *, asks: bool
    ) -> ExportedTranscript:
        """Read the transcript from the stores and the rest from the run; the hash chain proves it complete."""
        page = await self._query_page(run, 0) if asks else None
        segments = page.segments if page else await self._stored_segments(run.run_id, facts)
        length, head = (page.total, page.head) if page else (facts.length, facts.head)
        chain = Transcript()
        await self._read_segments(chain, run.run_id, segments, missing)
        while page is not None and page.start == chain.length < length:
            for part in page.parts:
                chain.append(part)
            page = await self._query_page(run, chain.length)
        complete = chain.length == length > 0 and chain.head == head
        if run.is_open and page is None:
            complete = False
            missing.append("transcript: the run holds its end, and no worker answers")
        elif not complete:
            missing.append(f"transcript: {chain.length} of {length} parts found, or their hashes do not match")
        return ExportedTranscript(length=length, head=head, complete=complete, parts=chain.parts)

    async def _query_page(self, run: RunInfo, start: int) -> TranscriptPage | None:
        """Query a page of the transcript, if a worker answers."""
        handle = self.client.get_workflow_handle(run.execution.id)
        try:
            page: TranscriptPage = await handle.query(
                "transcript", {"from": start}, result_type=TranscriptPage, rpc_timeout=EXPORT_QUERY_TIMEOUT
            )
        except (WorkflowQueryFailedError, RPCError):
            return None
        return page

    async def _stored_segments(self, run_id: str, facts: RunFacts) -> tuple[Segment, ...]:
        """Return the stored segments that history names. A turn's segments are in its conversation's store."""
        if facts.conversation is not None:
            try:
                turn = await read_record(self.stores.of(facts.conversation), record_name(run_id))
            except (OSError, ValueError):
                return tuple(facts.segments)
            return tuple(segment.evolve(owner=facts.conversation) for segment in turn.segments)
        return tuple(facts.segments)

    async def _read_segments(
        self, chain: Transcript, run_id: str, segments: Iterable[Segment], missing: list[str]
    ) -> None:
        for segment in segments:
            try:
                parts = await read_segment(self.stores.of(segment.owner or run_id), segment)
            except (OSError, ValueError) as error:
                missing.append(f"transcript: parts {segment.start} to {segment.end}: {_format_os_error(error)}")
                return
            for part in parts[max(chain.length - segment.start, 0) :]:
                chain.append(part)

    async def _read_definitions(self, run_id: str, refs: list[str], missing: list[str]) -> dict[str, Definition]:
        definitions = {}
        for ref in refs:
            try:
                definitions[ref] = await read_definition(self.stores.of(run_id), ref)
            except (OSError, ValueError) as error:
                missing.append(f"definition {ref}: {_format_os_error(error)}")
        return definitions

    def _read_artifacts(self, run_id: str, named: Iterable[str], missing: list[str]) -> list[ExportedArtifact]:
        """Read the artifacts in the run's folder; those it named and that are not readable go to `missing`."""
        workspace = self.workspaces.of(run_id).workspace
        try:
            paths = [path for path, _ in workspace.list_files(MAX_ARTIFACTS) if path.startswith(f"{ARTIFACTS}/")]
        except OSError:
            paths = []
        artifacts = []
        for path in dict.fromkeys([*paths, *named]):
            try:
                artifacts.append(_read_artifact(workspace, path))
            except (OSError, OutsideWorkspaceError) as error:
                missing.append(f"artifact {path}: {_format_os_error(error)}")
        return artifacts

    async def _get_versions(self, facts: RunFacts) -> dict[str, Any]:
        server = await self.client.workflow_service.get_system_info(GetSystemInfoRequest(), retry=True)
        return {
            "perdure": version("perdure"),
            "temporalio": version("temporalio"),
            "python": platform.python_version(),
            "server": server.server_version,
            "workers": facts.workers,
            "builds": facts.builds,
        }


def _read_artifact(workspace: Workspace, path: str) -> ExportedArtifact:
    digest, size, head = sha256(), 0, b""
    with workspace.open(path) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            head, size = head or chunk, size + len(chunk)
    content = _decode_text(head) if size <= MAX_INLINE_BYTES else None
    return ExportedArtifact(path=path, size=size, sha256=digest.hexdigest(), content=content)


def _decode_text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _format_os_error(error: OSError | ValueError) -> str:
    return truncate(getattr(error, "strerror", None) or str(error))


def _named_artifacts(end: Mapping[str, Any] | None, facts: RunFacts) -> list[str]:
    """Return the artifact paths that the run's end and tool results name."""
    payload = ((end or {}).get("event") or {}).get("payload", {})
    outcomes = [made.outcome or {} for call in facts.calls.values() for made in call.made]
    return [*payload.get("artifacts", ()), *(path for outcome in outcomes for path in outcome.get("artifacts", ()))]


def _origin_of(start: Any) -> str | None:
    """Return the run that this one resumes or forks."""
    is_resume = isinstance(start, dict) and start.get("type") == "agentic.resume"
    return str(start["payload"]["run_id"]) if is_resume else None


def _subtask_row(depth: int, run: RunInfo) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "depth": depth,
        "parent": run.parent,
        "agent": run.agent,
        "status": run.status,
        "steps": run.steps,
        "cost_usd": run.cost_usd,
        "started_at": run.execution.start_time.isoformat(),
        "closed_at": run.execution.close_time.isoformat() if run.execution.close_time else None,
    }

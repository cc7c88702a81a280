"""One run as one record, read from its history, its store and its files.

History is the record, so it needs no worker: only the end of the conversation of a run that is still open does.
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

from activities.model.transcript_cache import read_record, read_segment, record_name
from activities.run.definition import definition_of
from activities.storage.store import LocalStores, Stores
from activities.storage.workspace import ARTIFACTS, OutsideWorkspace, Workspace
from contracts.agent import Definition
from contracts.run.export import Export, ExportedArtifact, ExportedTranscript
from contracts.run.transcript import Page, Segment
from decisions.run.transcript import Transcript
from decisions.telemetry.export import Told, shown, told
from decisions.text.formatting import cut
from perdure.client.history import History
from perdure.client.run_list import Found, below, find
from perdure.client.runs import ended, state

MOST_INLINE = 256 * 1024  # bytes of an artifact that stands in the record itself
MOST_ARTIFACTS = 10_000
CHUNK = 1024 * 1024
PATIENCE = timedelta(seconds=10)  # a long run that no worker has in its cache is replayed before it answers


@dataclass
class Exporter:
    """`workspaces` are the folders with the runs' files. `asks` says whether a worker is there to be asked."""

    client: Client
    stores: Stores
    workspaces: LocalStores
    asks: bool

    async def export(self, run_id: str) -> Export:
        """Raises NoSuchRun, codec.UnknownKey."""
        missing: list[str] = []
        found = await find(self.client, run_id)
        view = await state(self.client, found.run_id, PATIENCE) if self.asks else None
        if view is None:
            missing.append("state: no worker answers")
        executions = await History(self.client).of(found)
        if executions[0].execution != found.first_execution:
            missing.append("executions: the earlier ones are past the retention of the namespace")
        tale = told(executions)
        transcript = await self._transcript(found, tale, missing, asks=view is not None)
        end = None if found.is_open else asdict(await ended(self.client, found.run_id))
        return Export(
            exported_at=datetime.now(UTC),
            run_id=found.run_id,
            status=found.status,
            end=end,
            parent=found.parent,
            origin=_origin(tale.start),
            start=tale.start,
            usage=tale.usage,
            cost_usd=tale.cost_usd,
            turns=tale.turns,
            calls=shown(tale.calls, transcript.parts),
            questions=tale.questions,
            notices=tale.notices,
            received=tale.received,
            transcript=transcript,
            definitions=await self._definitions(found.run_id, tale.definitions, missing),
            artifacts=await asyncio.to_thread(self._artifacts, found.run_id, _named(end, tale), missing),
            subtasks=[_subtask(depth, each) for depth, each in await below(self.client, found)],
            state=view,
            executions=executions,
            versions=await self._versions(tale),
            missing=missing,
        )

    async def _transcript(self, found: Found, tale: Told, missing: list[str], *, asks: bool) -> ExportedTranscript:
        """From the stores, and what is not there yet from the run; its hash chain says whether that is all."""
        page = await self._page(found, 0) if asks else None
        segments = page.segments if page else await self._left(found.run_id, tale)
        length, head = (page.total, page.head) if page else (tale.length, tale.head)
        chain = Transcript()
        await self._read(chain, found.run_id, segments, missing)
        while page is not None and page.start == chain.length < length:
            for part in page.parts:
                chain.append(part)
            page = await self._page(found, chain.length)
        complete = chain.length == length > 0 and chain.head == head
        if found.is_open and page is None:
            complete = False
            missing.append("transcript: its end is with the run, and no worker answers")
        elif not complete:
            missing.append(f"transcript: {chain.length} of {length} parts are there, or they are not what was said")
        return ExportedTranscript(length=length, head=head, complete=complete, parts=chain.parts)

    async def _page(self, found: Found, start: int) -> Page | None:
        """None where no worker answers any more."""
        handle = self.client.get_workflow_handle(found.execution.id)
        try:
            page: Page = await handle.query("transcript", {"from": start}, result_type=Page, rpc_timeout=PATIENCE)
        except (WorkflowQueryFailedError, RPCError):
            return None
        return page

    async def _left(self, run_id: str, tale: Told) -> tuple[Segment, ...]:
        """What lies in stores, as history names it. A turn leaves its part in the store of its conversation."""
        if tale.conversation is not None:
            try:
                record = await read_record(self.stores.of(tale.conversation), record_name(run_id))
            except (OSError, ValueError):
                return tuple(tale.segments)
            return tuple(each.model_copy(update={"owner": tale.conversation}) for each in record.segments)
        return tuple(tale.segments)

    async def _read(self, chain: Transcript, run_id: str, segments: Iterable[Segment], missing: list[str]) -> None:
        for segment in segments:
            try:
                parts = await read_segment(self.stores.of(segment.owner or run_id), segment)
            except (OSError, ValueError) as error:
                missing.append(f"transcript: parts {segment.start} to {segment.end}: {_reason(error)}")
                return
            for part in parts[max(chain.length - segment.start, 0) :]:
                chain.append(part)

    async def _definitions(self, run_id: str, refs: list[str], missing: list[str]) -> dict[str, Definition]:
        found = {}
        for ref in refs:
            try:
                found[ref] = await definition_of(self.stores.of(run_id), ref)
            except (OSError, ValueError) as error:
                missing.append(f"definition {ref}: {_reason(error)}")
        return found

    def _artifacts(self, run_id: str, named: Iterable[str], missing: list[str]) -> list[ExportedArtifact]:
        """Those that lie in the run's folder, and none that was named is left out in silence."""
        workspace = self.workspaces.of(run_id).workspace
        try:
            there = [path for path, _ in workspace.listing(MOST_ARTIFACTS) if path.startswith(f"{ARTIFACTS}/")]
        except OSError:
            there = []
        found = []
        for path in dict.fromkeys([*there, *named]):
            try:
                found.append(_artifact(workspace, path))
            except (OSError, OutsideWorkspace) as error:
                missing.append(f"artifact {path}: {_reason(error)}")
        return found

    async def _versions(self, tale: Told) -> dict[str, Any]:
        server = await self.client.workflow_service.get_system_info(GetSystemInfoRequest())
        return {
            "perdure": version("perdure"),
            "temporalio": version("temporalio"),
            "python": platform.python_version(),
            "server": server.server_version,
            "workers": tale.workers,
            "builds": tale.builds,
        }


def _artifact(workspace: Workspace, path: str) -> ExportedArtifact:
    digest, size, head = sha256(), 0, b""
    with workspace.open(path) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            head, size = head or chunk, size + len(chunk)
    content = _text(head) if size <= MOST_INLINE else None
    return ExportedArtifact(path=path, size=size, sha256=digest.hexdigest(), content=content)


def _text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _reason(error: OSError | ValueError) -> str:
    return cut(getattr(error, "strerror", None) or str(error), 200)


def _named(end: Mapping[str, Any] | None, tale: Told) -> list[str]:
    """The artifacts that the run has spoken of."""
    payload = ((end or {}).get("event") or {}).get("payload", {})
    outcomes = [made.outcome or {} for call in tale.calls.values() for made in call.made]
    return [*payload.get("artifacts", ()), *(path for each in outcomes for path in each.get("artifacts", ()))]


def _origin(start: Any) -> str | None:
    """The run that it goes on from."""
    is_heir = isinstance(start, dict) and start.get("type") == "agentic.resume"
    return str(start["payload"]["run_id"]) if is_heir else None


def _subtask(depth: int, found: Found) -> dict[str, Any]:
    return {
        "run_id": found.run_id,
        "depth": depth,
        "parent": found.parent,
        "agent": found.agent,
        "status": found.status,
        "steps": found.steps,
        "cost_usd": found.cost_usd,
        "started_at": found.execution.start_time.isoformat(),
        "closed_at": found.execution.close_time.isoformat() if found.execution.close_time else None,
    }

"""The reconciler's checks of stores: claims without a running call, and leftovers of deleted runs."""

import asyncio
import logging
from bisect import bisect_right

from temporalio.client import Client, WorkflowExecutionDescription

from activities.effects.ledger import LEDGER_FOLDER, Claim
from activities.media.store import MEDIA_FOLDER
from activities.reconcile.queries import ReconcileQueries, is_wedged
from activities.run.status import workflow_status_of
from activities.storage.store import Store, Stores, read_model
from activities.storage.workspace import OutsideWorkspaceError, run_id_in
from activities.telemetry.attributes import AGENT_STATUS
from contracts.reconcile import StoreMark
from contracts.run.state import RunStatus
from decisions import ids
from decisions import reconcile as judge
from decisions.reconcile import LedgerKey, OpenClaim, Sweep

MAX_CHECKED_STORES = 500  # per pass
MARK_FILE = "seen.json"  # a file in the store

_log = logging.getLogger(__name__)


class StoreChecks:
    """The checks of one pass. `unjudged` counts the stores that could not be checked."""

    def __init__(self, client: Client, stores: Stores, server: ReconcileQueries) -> None:
        self.looked_at = 0
        self.unjudged = 0
        self._client = client
        self._stores = stores
        self._server = server

    async def check_stores(self, after: str) -> str:
        """Check a batch of stores, beginning with the one behind `after`. Return the next pass's `after`."""
        folders: list[str] = []
        try:
            folders = await asyncio.to_thread(lambda: list(self._stores.list_folders()))
        except OSError as error:
            _log.warning("the stores cannot be looked at: %s", error)
        first = bisect_right(folders, after)
        batch = folders[first : first + MAX_CHECKED_STORES]
        for folder in batch:
            await self._check_store(folder)
        self.looked_at = len(batch)
        return batch[-1] if first + MAX_CHECKED_STORES < len(folders) else ""

    async def _check_store(self, folder: str) -> None:
        run_id = run_id_in(folder)
        if run_id is None:
            self.unjudged += 1
            return
        if ids.conversation_id_of(run_id) != run_id:
            return  # a conversation's own, which stays: the conversation may continue
        store = self._stores.of(run_id)
        try:
            if run_id == ids.UPLOADS_STORE:
                if self._server.repairs:
                    await asyncio.to_thread(store.remove_older, MEDIA_FOLDER, self._server.now - judge.UPLOADS_KEPT)
                return
            run = await self._server.find_run(run_id)
            claims = judge.unsettled_claims(await asyncio.to_thread(store.names, LEDGER_FOLDER))
            seen = await asyncio.to_thread(read_model, store, MARK_FILE, StoreMark)
            if run is None:
                await self._sweep_store(run_id, store, seen, claims)
            elif run.task_queue == self._server.here.task_queue:
                if seen is None or (seen.place == self._server.here and seen.gone_since):
                    await asyncio.to_thread(_write_mark, store, StoreMark(place=self._server.here))
                for page in claims:
                    await self._check_claim(run_id, run, store, page)
        except (OSError, OutsideWorkspaceError) as error:
            self.unjudged += 1
            _log.warning("the store of run %s cannot be looked at: %s", run_id, error)

    async def _sweep_store(self, run_id: str, store: Store, seen: StoreMark | None, claims: list[LedgerKey]) -> None:
        has_heir = await self._has_open_heir(run_id)
        match judge.decide_sweep(seen, self._server.here, self._server.now, claims=len(claims), has_heir=has_heir):
            case Sweep.leave:
                self.unjudged += 1
            case Sweep.note:
                if self._server.repairs:
                    await asyncio.to_thread(
                        _write_mark, store, StoreMark(place=self._server.here, gone_since=self._server.now)
                    )
            case Sweep.wait:
                pass
            case Sweep.name:
                self._server.findings.append(judge.left_store_finding(run_id, claims))
            case Sweep.clear:
                finding = judge.left_store_finding(run_id)
                if self._server.repairs and await self._server.find_run(run_id) is None:  # not started again just now
                    await asyncio.to_thread(store.clear)
                    finding = finding.model_copy(update={"repaired": True})
                self._server.findings.append(finding)

    async def _has_open_heir(self, run_id: str) -> bool:
        prefix = ids.run_workflow_id(ids.successors_prefix(run_id))
        query = f"{self._server.open_runs} AND {ids.query_begins('WorkflowId', prefix)}"
        async for run in self._server.list_runs(query):
            if run.id.startswith(prefix):
                return True
        return False

    async def _check_claim(self, run_id: str, run: WorkflowExecutionDescription, store: Store, page: LedgerKey) -> None:
        name = f"{LEDGER_FOLDER}/{page.name}.claim"
        claim = await asyncio.to_thread(read_model, store, name, Claim)
        if claim is not None and judge.is_fresh(claim.until, self._server.now):
            return
        keeper = run
        while heir := await self._server.find_run(ids.resumed_id(ids.run_id_of_workflow(keeper.id))):
            keeper = heir
        unasked = self._server.unasked
        state = None if is_wedged(keeper) else await self._server.query_state(keeper.id)
        if self._server.unasked > unasked:
            return  # the run's own state of the call is unknown
        facts = OpenClaim(
            page=page,
            tool=claim.tool if claim else "",
            until=claim.until if claim else None,
            keeper=ids.run_id_of_workflow(keeper.id),
            standing=workflow_status_of(keeper),
            asks=keeper.typed_search_attributes.get(AGENT_STATUS) == RunStatus.waiting_on_human,
            at_work=await self._is_at_work(keeper, page.step),
            state=state,
        )
        if finding := judge.unowned_finding(run_id, facts, self._server.now):
            self._server.findings.append(finding)

    async def _is_at_work(self, run: WorkflowExecutionDescription, step: int) -> bool:
        """Return True if a pending activity makes the call, or has not reported its call yet."""
        for pending in run.raw_description.pending_activities:
            if pending.activity_type.name != "call_tool":
                continue
            try:
                beats = await self._client.data_converter.decode(pending.heartbeat_details.payloads)
            except Exception:  # noqa: BLE001 - encrypted with an unknown key
                return True
            if not beats or not isinstance(beats[0], dict) or beats[0].get("step") in (None, step):
                return True
        return False


def _write_mark(store: Store, seen: StoreMark) -> None:
    store.write(MARK_FILE, seen.model_dump_json().encode())

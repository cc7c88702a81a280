"""`collect` and `find_delegation`: the outcome of a subtask, or of a whole delegation, read from the server."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from hashlib import blake2b
from typing import Any, TypeVar

from pydantic import ValidationError
from temporalio import activity
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities.effects.heartbeat import beating
from activities.project import Project
from activities.run.outcome import files_of, outcome_of
from activities.storage.workspace import ARTIFACTS, OutsideWorkspace, Workspace
from contracts.delegation import (
    Collected,
    CollectRequest,
    DelegationState,
    DelegationStatus,
    Share,
    Spent,
    SubtaskStatus,
)
from contracts.run.state import RunView
from decisions.delegation import all_of, clipped, settle_share
from decisions.ids import run_workflow_id

ATTEMPTS, QUERY_PATIENCE = 4, timedelta(seconds=5)  # a run that fails to replay answers no query

Handle = WorkflowHandle[Any, Any]
V = TypeVar("V")


class Delegations:
    def __init__(self, client: Client, project: Project) -> None:
        self._client = client
        self._project = project

    @activity.defn
    async def collect(self, request: CollectRequest) -> Collected:
        """Collect a subtask's end and figures, and copy its artifacts to the runs that may read them."""
        handle = self._client.get_workflow_handle(run_workflow_id(request.run_id), result_type=dict)
        async with beating(lambda: {"of": request.run_id}):
            end = await outcome_of(handle)
            if end is None:
                return Collected(status=SubtaskStatus.cancelled, outcome="it was not started")
            view = await _asked(handle, "state", RunView)
            if view is not None and view.parent != request.into[0]:
                reason = f"there was a run {request.run_id} already, which is no subtask of this run"
                return Collected(status=SubtaskStatus.failed, outcome=reason)
            named = view.artifacts if view else ()
            copied = await asyncio.to_thread(self._copy, request, named, end.text)
        return Collected(
            status=end.status,
            outcome=clipped(end.text, request.most),
            artifacts=copied,
            spent=_spent(view, request.share),
        )

    @activity.defn
    async def find_delegation(self, workflow_id: str) -> DelegationState | None:
        """Return the state of a closed delegation, if it is known; failed if it was cut short."""
        async with beating(lambda: {"of": workflow_id}):
            handle = self._client.get_workflow_handle(workflow_id)
            state = await _asked(handle, "state", DelegationState)
            if state is None or state.status is not DelegationStatus.running:
                return state
            return state.model_copy(update={"status": DelegationStatus.failed, "why": "the delegation was cut short"})

    def _copy(self, request: CollectRequest, named: tuple[str, ...], outcome: str) -> tuple[str, ...]:
        """Copy the named regular files; if the outcome is too long, add its full text as `outcome.md`."""
        copied = list[str]()
        targets = [self._project.workspace(run_id) for run_id in request.into]
        for workspace in targets:
            workspace.create()
        folder = f"{ARTIFACTS}/{request.subtask}"
        for path, data in files_of(self._project.workspace(request.run_id), named):
            if len("".join([*copied, f"{folder}/{path}"]).encode("utf-8", "replace")) > request.most:
                break  # the model is told their names
            with suppress(OSError, OutsideWorkspace):
                copied.append(_kept(targets, folder, path, data))
        whole = outcome.encode("utf-8", "replace")
        if len(whole) > request.most:
            copied.append(_kept(targets, folder, "outcome.md", whole))
        return tuple(copied)


def _kept(workspaces: list[Workspace], folder: str, path: str, data: bytes) -> str:
    """Write a file into each workspace, and return its path. Files of an earlier subtask with this name stay."""
    target = f"{folder}/{path}"
    if any(workspace.is_taken(target, data) for workspace in workspaces):
        target = f"{folder}-{blake2b(data, digest_size=4).hexdigest()}/{path}"
    for workspace in workspaces:
        workspace.write(target, data)
    return target


async def _asked(handle: Handle, query: str, kind: type[V]) -> V | None:
    """Query a closed workflow, if its history can be replayed and it is of the expected type.

    An attempt queries once: its worker may be stopping, and a retry can reach another one.
    """
    try:
        answer: V = await handle.query(query, result_type=kind, rpc_timeout=QUERY_PATIENCE)
    except (WorkflowQueryFailedError, ValidationError):
        return None
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND or activity.info().attempt >= ATTEMPTS:
            return None
        if error.status not in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
            raise
        message = f"{handle.id} does not answer now"
        raise ApplicationError(message, type="Silent", category=ApplicationErrorCategory.BENIGN) from None
    return answer


def _spent(view: RunView | None, share: Share) -> Spent:
    """Return what a subtask spent, including its own delegations; if unknown, its whole share."""
    if view is None:
        return all_of(share)
    own = Spent(steps=view.step, tokens=view.usage.total, usd=view.cost_usd, follow_ups=view.follow_ups)
    return settle_share(own + (view.delegated or Spent()), share)

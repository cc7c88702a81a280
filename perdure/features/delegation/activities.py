"""`collect` and `find_delegation`: the result of a subtask or of a whole delegation, read from the server."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Self, TypeVar

from pydantic import ValidationError
from pydantic_core import to_json
from temporalio import activity
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.effects.attempts import heartbeating
from perdure.activities.parts import WorkerParts
from perdure.activities.project import Project
from perdure.activities.run.outcome import read_named_files, wait_for_outcome
from perdure.activities.storage.workspace import ARTIFACTS, OutsideWorkspaceError, Workspace
from perdure.contracts.models import NO_RESULT
from perdure.contracts.run.limits import Share, Spent, SubtaskStatus
from perdure.contracts.run.state import RunView
from perdure.decisions.ids import digest, run_workflow_id
from perdure.features.delegation.contract import Collected, CollectRequest, DelegationState, DelegationStatus
from perdure.features.delegation.rules import clip_text, settle_share, whole_share_spent

TOO_LONG = "delegate smaller parts, or have it write a file"
QUERY_ATTEMPTS, QUERY_TIMEOUT = 4, timedelta(seconds=5)  # a run that cannot be replayed answers no query

Handle = WorkflowHandle[Any, Any]
V = TypeVar("V")


class Delegations:
    def __init__(self, client: Client, project: Project) -> None:
        self._client = client
        self._project = project

    @classmethod
    def of(cls, parts: WorkerParts) -> Self:
        return cls(parts.client, parts.project)

    @activity.defn
    async def collect(self, request: CollectRequest) -> Collected:
        """Return the end of a subtask's run and its figures, and copy its artifacts to its parents."""
        handle = self._client.get_workflow_handle(run_workflow_id(request.run_id), result_type=dict)
        async with heartbeating(lambda: {"of": request.run_id}):
            end = await wait_for_outcome(handle)
            if end is None:
                return Collected(status=SubtaskStatus.cancelled, outcome="it was not started")
            view = await _query_closed(handle, "state", RunView)
            if view is not None and view.parent != request.into[0]:
                reason = f"there was a run {request.run_id} already, which is no subtask of this run"
                return Collected(status=SubtaskStatus.failed, outcome=reason)
            names = view.artifacts if view else ()
            copied = await asyncio.to_thread(self._copy_artifacts, request, names, end.text)
        size = 0 if end.result is NO_RESULT else len(to_json(end.result))
        if size > request.most:
            end = replace(
                end, status=SubtaskStatus.failed, text=f"its result has {size:,} bytes; {TOO_LONG}", result=NO_RESULT
            )
        return Collected(
            status=end.status,
            outcome=clip_text(end.text, request.most),
            result=end.result,
            artifacts=copied,
            spent=_total_spent(view, request.share),
        )

    @activity.defn
    async def find_delegation(self, workflow_id: str) -> DelegationState | None:
        """Return the state of a closed delegation if it can be read, as failed if it was cut short."""
        async with heartbeating(lambda: {"of": workflow_id}):
            handle = self._client.get_workflow_handle(workflow_id)
            state = await _query_closed(handle, "state", DelegationState)
            if state is None or state.status is not DelegationStatus.running:
                return state
            return state.evolve(status=DelegationStatus.failed, why="the delegation was cut short")

    def _copy_artifacts(self, request: CollectRequest, names: tuple[str, ...], outcome: str) -> tuple[str, ...]:
        """Copy the named regular files, and the whole outcome if it is cut."""
        source, copied = self._project.workspace(request.run_id), list[str]()
        targets = [self._project.workspace(run_id) for run_id in request.into]
        for workspace in targets:
            workspace.create()
        folder = f"{ARTIFACTS}/{request.subtask}"
        for path, data in read_named_files(source, names):
            target = f"{folder}/{path}"
            if len("".join([*copied, target]).encode("utf-8", "replace")) > request.most:
                break  # the result holds their names, too
            with suppress(OSError, OutsideWorkspaceError):
                copied.append(_keep_artifact(targets, folder, path, data))
        if len(outcome.encode("utf-8", "replace")) > request.most:
            copied.append(_keep_artifact(targets, folder, "outcome.md", outcome.encode("utf-8", "replace")))
        return tuple(copied)


def _keep_artifact(workspaces: list[Workspace], folder: str, path: str, data: bytes) -> str:
    """Write a file to all workspaces and return its path, which is new if an earlier subtask of this name used it."""
    target = f"{folder}/{path}"
    if any(workspace.is_taken(target, data) for workspace in workspaces):
        target = f"{folder}-{digest(data, 4)}/{path}"
    for workspace in workspaces:
        workspace.write(target, data)
    return target


async def _query_closed(handle: Handle, query: str, kind: type[V]) -> V | None:
    """Query a closed workflow, if it can be read and has the expected type.

    Each attempt queries once, since this worker may be shutting down and another one can answer.
    """
    try:
        answer: V = await handle.query(query, result_type=kind, rpc_timeout=QUERY_TIMEOUT)
    except (WorkflowQueryFailedError, ValidationError):
        return None
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND or activity.info().attempt >= QUERY_ATTEMPTS:
            return None
        if error.status not in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
            raise
        message = f"{handle.id} does not answer now"
        raise ApplicationError(message, type="Silent", category=ApplicationErrorCategory.BENIGN) from None
    return answer


def _total_spent(view: RunView | None, share: Share) -> Spent:
    """Return what the run and its own subtasks spent; the whole share if that is unknown."""
    if view is None:
        return whole_share_spent(share)
    own = Spent(steps=view.step, tokens=view.usage.total, usd=view.cost_usd, follow_ups=view.follow_ups)
    return settle_share(own + (view.delegated or Spent()), share)

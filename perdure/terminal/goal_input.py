"""Goals that are too long for a conversation: a file of the run holds the goal, and the run starts with an excerpt."""

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle

from activities.storage.workspace import ARTIFACTS, Workspace
from contracts.run.events import StartEvent
from perdure.client.errors import RejectedError, RunNotFoundError
from perdure.client.run_list import find_run
from perdure.client.runs import run_id_error, start_or_get_run

GOAL_EXCERPT_LENGTH = 2000  # characters


async def start_with_file(
    client: Client, task_queue: str, workspace: Workspace, event: StartEvent, goal: str, run_id: str
) -> WorkflowHandle[Any, Any]:
    """Start a run as `runs.start` does, with its goal in a file.

    The file exists before the run starts. A rejected start leaves no file; an existing run of this id gets none.
    """
    if reason := run_id_error(run_id):
        raise RejectedError(reason)
    data = goal.encode(errors="replace")
    file = f"{ARTIFACTS}/goal-{sha256(data).hexdigest()[:16]}.md"
    excerpt = f"{goal[:GOAL_EXCERPT_LENGTH]}\n\n… The whole goal, {len(goal):,} characters, is in {file}: read it."
    event = event.model_copy(update={"payload": event.payload.model_copy(update={"goal": excerpt})})
    if await _run_exists(client, run_id):
        return await start_or_get_run(client, task_queue, event, run_id)
    new = _missing_paths(workspace.root / file, workspace.root / ARTIFACTS, workspace.root)
    try:
        workspace.create()
        if workspace.root / file in new:
            workspace.write(file, data)
        return await start_or_get_run(client, task_queue, event, run_id)
    except (RejectedError, OSError):
        if not await _run_exists(client, run_id):  # the file may belong to a concurrent start of this id
            _remove_created(new)
        raise


def _missing_paths(*paths: Path) -> list[Path]:
    """Return the paths that do not exist; a dangling link exists."""
    return [path for path in paths if not os.path.lexists(path)]


def _remove_created(new: list[Path]) -> None:
    """Remove the created files and folders, except folders that others have used since."""
    with suppress(OSError):
        for path in new:
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)


async def _run_exists(client: Client, run_id: str) -> bool:
    try:
        await find_run(client, run_id)
    except RunNotFoundError:
        return False
    return True

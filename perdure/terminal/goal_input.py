"""A goal that no conversation could hold: it goes into a file of the run, and its beginning says where it goes on."""

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle

from activities.storage.workspace import ARTIFACTS, Workspace
from contracts.run.events import StartEvent
from perdure.client.errors import NoSuchRun, Refused
from perdure.client.run_list import find
from perdure.client.runs import start, unfit_id

GOAL_SHOWN = 2000  # characters


async def start_with_file(
    client: Client, task_queue: str, workspace: Workspace, event: StartEvent, goal: str, run_id: str
) -> WorkflowHandle[Any, Any]:
    """As `runs.start`. The file is there before its run, which may read it at once; a refused start leaves none.

    A run of this id that is there already has its own goal, and is brought no file.
    """
    if why := unfit_id(run_id):
        raise Refused(why)
    data = goal.encode(errors="replace")
    file = f"{ARTIFACTS}/goal-{sha256(data).hexdigest()[:16]}.md"
    told = f"{goal[:GOAL_SHOWN]}\n\n… The whole goal, {len(goal):,} characters, is in {file}: read it."
    begun = event.model_copy(update={"payload": event.payload.model_copy(update={"goal": told})})
    if await _is_there(client, run_id):
        return await start(client, task_queue, begun, run_id)
    new = _missing(workspace.root / file, workspace.root / ARTIFACTS, workspace.root)
    try:
        workspace.create()
        if workspace.root / file in new:
            workspace.write(file, data)
        return await start(client, task_queue, begun, run_id)
    except (Refused, OSError):
        if not await _is_there(client, run_id):  # else another start under this id has the same file
            _take_back(new)
        raise


def _missing(*paths: Path) -> list[Path]:
    """A link that leads nowhere is there, and stays."""
    return [path for path in paths if not os.path.lexists(path)]


def _take_back(new: list[Path]) -> None:
    """Of these paths what holds nothing of others."""
    with suppress(OSError):
        for path in new:
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)


async def _is_there(client: Client, run_id: str) -> bool:
    try:
        await find(client, run_id)
    except NoSuchRun:
        return False
    return True

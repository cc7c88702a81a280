"""The watchers of a run: each of them keeps a file in a folder that it shares with the workers, and touches it.

A worker sends the partial answers of a watched run at once. The mark is a file because Temporal bills messages.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic

from perdure.activities.security import create_private, make_private
from perdure.activities.storage.workspace import folder_name

WATCHED_FOLDER = ".watched"  # below the workspaces; no run's folder begins with a dot
TOUCH_EVERY = 2.0  # seconds
LEASE = 6.0  # seconds without a touch after which a watcher is gone
CHECK_EVERY = 0.5  # seconds between two checks of a worker that has a call in flight


@asynccontextmanager
async def keep_watched(workspaces: Path, run_id: str) -> AsyncIterator[None]:
    """Mark the run as watched during the block. Without access to the folder, nothing is marked."""
    # Each watcher has a file of its own, so that none ends another's watch.
    path = workspaces / WATCHED_FOLDER / f"{folder_name(run_id)}~{secrets.token_hex(4)}"
    touching = asyncio.create_task(_keep_touched(path))
    try:
        yield
    finally:
        touching.cancel()
        await asyncio.gather(touching, return_exceptions=True)
        with suppress(OSError):
            path.unlink(missing_ok=True)


async def _keep_touched(path: Path) -> None:
    while True:
        with suppress(OSError):
            await asyncio.to_thread(_touch, path)
        await asyncio.sleep(TOUCH_EVERY)


def _touch(path: Path) -> None:
    make_private(path.parent)
    os.utime(create_private(path))


class WatchedRuns:
    """The watched runs as a worker sees them: one listing of the folder per `CHECK_EVERY`, for all its calls."""

    def __init__(self, workspaces: Path) -> None:
        self._folder = workspaces / WATCHED_FOLDER
        # The time of each file, and when it was first seen: a watcher's clock may be another than this worker's.
        self._files: dict[str, tuple[int, float]] = {}
        self._runs: frozenset[str] = frozenset()
        self._checked_at = -CHECK_EVERY

    async def has(self, run_id: str) -> bool:
        if monotonic() - self._checked_at >= CHECK_EVERY:
            self._checked_at = monotonic()
            self._runs = await asyncio.to_thread(self._list_runs)
        return folder_name(run_id) in self._runs

    def _list_runs(self) -> frozenset[str]:
        files, now = dict[str, tuple[int, float]](), monotonic()
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    touched = entry.stat(follow_symlinks=False).st_mtime_ns
                    known = self._files.get(entry.name)
                    files[entry.name] = known if known and known[0] == touched else (touched, now)
                    if now - files[entry.name][1] > LEASE:  # its watcher was killed
                        Path(entry.path).unlink()
        self._files = files
        return frozenset(name.rpartition("~")[0] for name, (_, seen) in files.items() if now - seen <= LEASE)

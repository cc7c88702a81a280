"""A watcher that wakes a bridge when files arrive, but not on the bridge's own changes."""

import asyncio
import logging
import os
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from watchfiles import Change, awatch

from perdure.contracts.models import is_utf8
from perdure.features.mailbox.activities.folder import INPUTS, MAX_PLANS, MailFolder
from perdure.features.mailbox.activities.message import is_skipped

STEP, DEBOUNCE = 20, 200  # milliseconds
MAX_FOLDERS, MAX_DEPTH = 2 * MAX_PLANS, 8  # limits of what is watched

_log = logging.getLogger(__name__)


class FolderWatcher:
    """Watches a folder. `woken` is set when a file arrives in the incoming folder or, with `has_inputs`, in `inputs/`.

    If `is_watching` is False, for example because the system is out of watches, the bridge has to poll.
    """

    def __init__(self, folder: MailFolder) -> None:
        self._incoming, self._inputs = folder.root / folder.incoming, folder.root / INPUTS
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._watched: dict[Path, int] = {}
        self._is_reported = False
        self.woken = asyncio.Event()
        folder.wake = self.woken.set
        self.has_inputs = False
        self.is_watching = False

    async def start(self) -> None:
        """Start watching, or restart if the folders changed or the watch failed."""
        folders = await asyncio.to_thread(self._folders_to_watch)
        if self._task is not None and not self._task.done() and self._watched == folders:
            return
        await self.close()
        self._stop = asyncio.Event()
        self._watched = folders
        logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it counts changes
        self._task = asyncio.create_task(self._run_watch())
        await asyncio.sleep(0)  # its first step begins to watch; later changes are reported

    async def close(self) -> None:
        self._stop.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _folders_to_watch(self) -> dict[Path, int]:
        """Return the folders to watch, by inode: the plans, and all below `inputs/`. Links are not followed."""
        folders: dict[Path, int] = {}
        waiting = [(self._incoming, 1), (self._inputs, MAX_DEPTH)]
        while waiting and len(folders) <= MAX_FOLDERS:
            path, depth = waiting.pop()
            with suppress(OSError):
                status = os.lstat(path)
                if not stat.S_ISDIR(status.st_mode):
                    continue
                folders[path] = status.st_ino
                if depth:
                    with os.scandir(path) as entries:
                        inner = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
                    visible = [one for one in inner if not one.name.startswith(".") and is_utf8(one.name)]
                    waiting += [(one, depth - 1) for one in visible]
        return folders

    async def _run_watch(self) -> None:
        try:
            changes = self._await_changes()
            self.is_watching = True
            async for _ in changes:
                self._is_reported = False
                self.woken.set()
        except FileNotFoundError:
            pass  # a folder is gone: the next start watches the others
        except Exception as error:  # noqa: BLE001 - the watcher's own; without it the bridge polls
            if not self._is_reported:
                _log.warning("the folder cannot be watched, so it is polled: %s", error)
            self._is_reported = True
        finally:
            self.is_watching = False
            self.woken.set()

    def _await_changes(self) -> AsyncIterator[Any]:
        """Return the changes. Raises OSError."""
        if len(self._watched) > MAX_FOLDERS:
            raise OSError(f"it has more than {MAX_FOLDERS:,} folders")
        return awatch(
            *self._watched,
            watch_filter=self._is_relevant,
            step=STEP,
            debounce=DEBOUNCE,
            stop_event=self._stop,
            recursive=False,
            ignore_permission_denied=True,
        )

    def _is_relevant(self, change: Change, path: str) -> bool:
        incoming, inputs = str(self._incoming), str(self._inputs)
        name = os.path.basename(path)  # noqa: PTH119 - for each of thousands of changes
        if path in (incoming, inputs):
            return True
        if change is Change.deleted or is_skipped(name):
            return False
        if path.startswith(f"{inputs}/"):
            self.has_inputs = True
            return True
        return "/." not in path.removeprefix(incoming)

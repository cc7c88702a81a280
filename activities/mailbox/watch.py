"""Wakes a bridge when something comes. What the bridge itself does in its folder does not wake it."""

import asyncio
import logging
import os
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from watchfiles import Change, awatch

from activities.mailbox.folder import INPUTS, MOST_PLANS, MailFolder
from activities.mailbox.message import is_skipped
from contracts.models import is_utf8

STEP, DEBOUNCE = 20, 200  # milliseconds
MOST_FOLDERS, MOST_DEEP = 2 * MOST_PLANS, 8  # that are watched

_log = logging.getLogger(__name__)


class Watcher:
    """`woken` is set by what comes into the incoming folder or `inputs/`; `has_inputs` says that the latter was it.

    `is_watching` is False where the system watches no more folders: then nobody must fall asleep.
    """

    def __init__(self, folder: MailFolder) -> None:
        self._folder = folder
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._watched: dict[Path, int] = {}
        self._is_told = False
        self.woken = asyncio.Event()
        folder.wake = self.woken.set
        self.has_inputs = False
        self.is_watching = False

    async def start(self) -> None:
        """Watches from now on; again where the folders are others than before, or the watch broke off."""
        folders = await asyncio.to_thread(self._folders)
        if self._task is not None and not self._task.done() and self._watched == folders:
            return
        await self.close()
        self._stop = asyncio.Event()
        self._watched = folders
        logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it counts changes
        self._task = asyncio.create_task(self._watch())
        await asyncio.sleep(0)  # in its first step it begins to watch; what changes from now on is told

    async def close(self) -> None:
        self._stop.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _paths(self) -> tuple[Path, Path]:
        return self._folder.root / self._folder.incoming, self._folder.root / INPUTS

    def _folders(self) -> dict[Path, int]:
        """Each by its inode: the plans, and all below `inputs/`. Links are not followed, wherever they lead."""
        incoming, inputs = self._paths()
        found: dict[Path, int] = {}
        waiting = [(incoming, 1), (inputs, MOST_DEEP)]
        while waiting and len(found) <= MOST_FOLDERS:
            path, deep = waiting.pop()
            with suppress(OSError):
                status = os.lstat(path)
                if not stat.S_ISDIR(status.st_mode):
                    continue
                found[path] = status.st_ino
                if deep:
                    with os.scandir(path) as entries:
                        inner = [Path(each.path) for each in entries if each.is_dir(follow_symlinks=False)]
                    seen = [each for each in inner if not each.name.startswith(".") and is_utf8(each.name)]
                    waiting += [(each, deep - 1) for each in seen]
        return found

    async def _watch(self) -> None:
        try:
            changes = self._changes()
            self.is_watching = True
            async for _ in changes:
                self._is_told = False
                self.woken.set()
        except FileNotFoundError:
            pass  # one of them went away just now: the next look knows the others
        except Exception as error:  # noqa: BLE001 - the watcher's own; without it the folder is looked at all the same
            if not self._is_told:
                _log.warning("the folder is looked at now and then only, since it cannot be watched: %s", error)
            self._is_told = True
        finally:
            self.is_watching = False
            self.woken.set()

    def _changes(self) -> AsyncIterator[Any]:
        """Raises OSError."""
        if len(self._watched) > MOST_FOLDERS:
            raise OSError(f"it has more than {MOST_FOLDERS:,} folders")
        return awatch(
            *self._watched,
            watch_filter=self._matters,
            step=STEP,
            debounce=DEBOUNCE,
            stop_event=self._stop,
            recursive=False,
            ignore_permission_denied=True,
        )

    def _matters(self, change: Change, path: str) -> bool:
        incoming, inputs = map(str, self._paths())
        name = os.path.basename(path)  # noqa: PTH119 - for each of thousands of changes
        if path in (incoming, inputs):
            return True
        if change is Change.deleted or is_skipped(name):
            return False
        if path.startswith(f"{inputs}/"):
            self.has_inputs = True
            return True
        return "/." not in path.removeprefix(incoming)

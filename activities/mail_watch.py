"""Wakes a bridge when something comes. What the bridge itself does in its folder does not wake it."""

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path

from watchfiles import Change, awatch

from activities.mail_folder import INPUTS, MailFolder
from activities.mail_names import is_skipped

STEP, DEBOUNCE = 20, 200  # milliseconds

_log = logging.getLogger(__name__)


class Watcher:
    """`woken` is set by what comes into the incoming folder or `inputs/`; `inputs` says that the latter was it.

    `is_watching` is False where the system watches no more folders: then nobody must fall asleep.
    """

    def __init__(self, folder: MailFolder) -> None:
        self._folder = folder
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._watched: tuple[int, ...] = ()
        self.woken = asyncio.Event()
        self.has_inputs = False
        self.is_watching = False

    async def start(self) -> None:
        """Watches from now on; again where the folders are others than before, or the watch broke off."""
        if self._task is not None and not self._task.done() and self._watched == self._inodes():
            return
        await self.close()
        self._stop = asyncio.Event()
        self._watched = self._inodes()
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

    def _inodes(self) -> tuple[int, ...]:
        with suppress(OSError):
            return tuple(os.lstat(path).st_ino for path in self._paths())
        return ()

    async def _watch(self) -> None:
        try:
            changes = awatch(
                *self._paths(),
                watch_filter=self._matters,
                step=STEP,
                debounce=DEBOUNCE,
                stop_event=self._stop,
                ignore_permission_denied=True,
            )
            self.is_watching = True
            async for _ in changes:
                self.woken.set()
        except (OSError, RuntimeError) as error:
            _log.warning("the folder is looked at now and then only, since it cannot be watched: %s", error)
        finally:
            self.is_watching = False
            self.woken.set()

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

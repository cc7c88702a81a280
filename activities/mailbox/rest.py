"""The check that a file is written completely."""

import os
import time

FRESH = 0.2  # seconds after a change in which a file may still be being written
MAX_KNOWN = 20_000  # files that are remembered between looks


class RestTracker:
    """The memory of files that changed just now, or have a modification time in the future.

    Such a file is at rest once two looks, at least `FRESH` apart, find it unchanged.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, ...], float]] = {}  # its status, and since when

    def is_at_rest(self, place: str, status: os.stat_result) -> bool:
        if time.time() - status.st_mtime >= FRESH:
            self._known.pop(place, None)
            return True
        looks = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        known = self._known.get(place)
        if known is not None and known[0] == looks:
            return time.monotonic() - known[1] >= FRESH
        self._known.pop(place, None)
        if len(self._known) >= MAX_KNOWN:
            self._known.pop(next(iter(self._known)))
        self._known[place] = (looks, time.monotonic())
        return False

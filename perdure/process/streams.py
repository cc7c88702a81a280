"""The standard streams belong to the command. Tools, and the programs that they start, have none of them.

`guard_streams` puts a stand-in before each stream: it passes on what the main thread writes outside of tools. Once a
process has a worker (`detach_tools`), the descriptors 0 to 2, which programs inherit, are no longer the command's:
nothing can be read there, and what is written becomes lines of the log.
"""

import fcntl
import logging
import os
import select
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TextIO, cast

from activities.tools.printing import is_in_tool
from perdure.process.shutdown import leave, own

MIN_OWN = 10  # descriptors from here on are the command's own
MAX_LINE = 4000  # bytes of a line that a tool prints
LEAVES_WITHIN = 40.0  # seconds for calls that are being made when the reader of the output goes away
LOOKS_EVERY = 0.1
NAMES = ("stdin", "stdout", "stderr")

_log = logging.getLogger("perdure.tools")


class GuardedStream:
    """A standard stream, `own` to the command; tools have `tools` in its place."""

    def __init__(self, own: TextIO, mode: str) -> None:
        self.own = own
        self.tools = cast("TextIO", os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))

    @property
    def now(self) -> TextIO:
        is_command = threading.current_thread() is threading.main_thread() and not is_in_tool()
        return self.own if is_command else self.tools

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.now)

    def write(self, text: str) -> int:
        try:
            return self.now.write(text)
        except BrokenPipeError:
            if self is sys.stdout:
                end_unread()
            return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self.now.flush()
        except BrokenPipeError:
            if self is sys.stdout:
                end_unread()


_is_busy: list[Callable[[], bool]] = []  # of the worker of this process, if it has one


def open_closed() -> None:
    """Open the null device where the caller closed a standard stream: the next file would get its number."""
    for number, name in enumerate(NAMES):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None and name != "stdin":  # commands that read say that there is no input
            setattr(sys, name, os.fdopen(number, "w", 1, encoding="utf-8", closefd=False))


def guard_streams() -> None:
    for name in NAMES:
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, GuardedStream):
            setattr(sys, name, GuardedStream(stream, "r" if name == "stdin" else "w"))


def detach_tools() -> None:
    """Move the command's streams away from the descriptors that programs inherit, once in a process."""
    if not isinstance(sys.stdout, GuardedStream) or own(sys.stdout).fileno() >= MIN_OWN:
        return
    read, write = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    for number, name in enumerate(NAMES):
        _move(number, getattr(sys, name))
        os.dup2(null if name == "stdin" else write, number)
    os.close(null)
    os.close(write)
    _measure_terminal()
    for stream in (sys.stdout, sys.stderr):
        cast("GuardedStream", stream).tools = os.fdopen(1, "w", 1, encoding="utf-8", errors="replace", closefd=False)
    threading.Thread(target=_log_lines, args=(read,), daemon=True).start()


def _move(number: int, stream: GuardedStream | None) -> None:
    if stream is None:
        return
    was, mode = stream.own, "r" if number == 0 else "w"
    if mode == "w":
        with suppress(OSError):
            was.flush()
    place = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, MIN_OWN)
    buffering = -1 if mode == "r" else 1
    moved = os.fdopen(place, mode, buffering, encoding=was.encoding, errors=was.errors, closefd=False)
    stream.own = cast("TextIO", moved)


def _measure_terminal() -> None:
    """Rich asks the descriptors 0 to 2 how wide the terminal is."""
    if rich := sys.modules.get("rich.console"):
        streams = (sys.stdin, sys.stdout, sys.stderr)
        vars(rich)["_STD_STREAMS"] = tuple(own(stream).fileno() for stream in streams if stream is not None)


def _log_lines(read: int) -> None:
    """Log what tools print. The log has the secrets taken out."""
    with os.fdopen(read, "rb") as printed:
        while line := printed.readline(MAX_LINE):
            if text := line.decode("utf-8", "replace").rstrip():
                _log.info("%s", text)


def count_as_busy(is_busy: Callable[[], bool]) -> None:
    """While this holds, a call is being made, which is finished before the process ends."""
    _is_busy[:] = [is_busy]


def watch_reader() -> None:
    """From now on, end the command when the reader of its output goes away, also if there is nothing to write."""
    with suppress(OSError, ValueError, AttributeError):
        place = fcntl.fcntl(own(sys.stdout).fileno(), fcntl.F_DUPFD_CLOEXEC, MIN_OWN)  # the stream may move
        kind = os.fstat(place).st_mode
        if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            threading.Thread(target=_await_end, args=(place,), daemon=True).start()


def _await_end(place: int) -> None:
    poll = select.poll()
    poll.register(place, 0)  # errors are always reported
    while not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll()):
        pass
    _leave_when_idle()


def end_unread() -> None:
    """End the command, as nobody reads its output: at once, or when the calls that are being made have ended.

    Raises BrokenPipeError, so that no more calls are begun.
    """
    if not any(is_busy() for is_busy in _is_busy):
        leave(0)
    threading.Thread(target=_leave_when_idle, daemon=True).start()
    raise BrokenPipeError


def _leave_when_idle() -> None:
    deadline = time.monotonic() + LEAVES_WITHIN
    while any(is_busy() for is_busy in _is_busy) and time.monotonic() < deadline:
        time.sleep(LOOKS_EVERY)
    leave(0)

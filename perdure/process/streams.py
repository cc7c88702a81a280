"""The standard streams, the environment and the end of a process."""

import fcntl
import logging
import multiprocessing
import os
import re
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Any, NoReturn, TextIO, cast

from perdure.activities.tools.printing import is_in_tool

CONCEALED_VARIABLES = re.compile(r"TEMPORAL_.*|PERDURE_(CODEC_KEYS|ANSWER_KEY|TOKENS)")
_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]+)\]")


def normalize_environment(env: MutableMapping[str, str]) -> None:
    """Fix what libraries misread: brackets in NO_PROXY, as in [::1], and terminal sizes that are not numbers."""
    for name in ("NO_PROXY", "no_proxy"):
        if name in env:
            env[name] = _BRACKETED.sub(r"\1", env[name])
    for name in ("COLUMNS", "LINES"):
        if name in env and not (env[name].isascii() and env[name].isdigit()):
            del env[name]


@contextmanager
def conceal_secrets(env: MutableMapping[str, str]) -> Iterator[None]:
    """Hide Temporal's settings and the keys of answers, payloads and the gateway from tools, which run in this process.

    Settings, connection and codec have been read by then. A tool that needs such a value gets it under another name.
    """
    hidden = {name: env.pop(name) for name in list(env) if CONCEALED_VARIABLES.fullmatch(name)}
    try:
        yield
    finally:
        for name, value in hidden.items():
            env.setdefault(name, value)


def unwrap_stream(stream: Any) -> Any:
    """Return the stream itself, also from behind a guard (`perdure.process.streams`)."""
    return vars(stream).get("own", stream) if hasattr(stream, "__dict__") else stream


def exit_now(code: int) -> NoReturn:
    """Exit at once: the SDK's threads can crash an interpreter that shuts down (sdk-python#300)."""
    for handler in logging.getLogger().handlers:
        handler.flush()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # full, closed or missing
            unwrap_stream(stream).flush()
    os._exit(code)


MIN_OWN = 10  # the command's own descriptors begin here
MAX_LINE = 4000  # bytes of a line that a tool prints
EXIT_TIMEOUT = 40.0  # seconds for active calls after the reader of the output has closed it
BUSY_POLL_INTERVAL = 0.1
NAMES = ("stdin", "stdout", "stderr")

_log = logging.getLogger("perdure.tools")


class GuardedStream:
    """A standard stream: `own` for the command, `tools` for tools."""

    def __init__(self, own: TextIO, mode: str) -> None:
        self.own = own
        self.tools = cast("TextIO", os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))

    @property
    def current(self) -> TextIO:
        is_command = threading.current_thread() is threading.main_thread() and not is_in_tool()
        return self.own if is_command else self.tools

    def __getattr__(self, name: str) -> Any:
        return getattr(self.current, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.current)

    def write(self, text: str) -> int:
        try:
            return self.current.write(text)
        except BrokenPipeError:
            if self is sys.stdout:
                exit_unread()
            return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self.current.flush()
        except BrokenPipeError:
            if self is sys.stdout:
                exit_unread()


_busy_checks: list[Callable[[], bool]] = []  # set by this process's worker


def open_null_streams() -> None:
    """Open the null device for standard streams that the caller closed: another file would get their number."""
    for number, name in enumerate(NAMES):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None and name != "stdin":  # commands that read report missing input
            setattr(sys, name, os.fdopen(number, "w", 1, encoding="utf-8", closefd=False))


def guard_streams() -> None:
    for name in NAMES:
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, GuardedStream):
            setattr(sys, name, GuardedStream(stream, "r" if name == "stdin" else "w"))


def detach_tools() -> None:
    """Move the command's streams away from the descriptors that programs inherit, once in a process."""
    if not isinstance(sys.stdout, GuardedStream) or unwrap_stream(sys.stdout).fileno() >= MIN_OWN:
        return
    read, write = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    for number, name in enumerate(NAMES):
        _move_stream(number, getattr(sys, name))
        os.dup2(null if name == "stdin" else write, number)
    os.close(null)
    os.close(write)
    if rich := sys.modules.get("rich.console"):  # it measures the terminal on these descriptors
        streams = (sys.stdin, sys.stdout, sys.stderr)
        vars(rich)["_STD_STREAMS"] = tuple(unwrap_stream(stream).fileno() for stream in streams if stream is not None)
    for stream in (sys.stdout, sys.stderr):
        cast("GuardedStream", stream).tools = os.fdopen(1, "w", 1, encoding="utf-8", errors="replace", closefd=False)
    threading.Thread(target=_log_lines, args=(read,), daemon=True).start()


def restore_streams() -> None:
    """Give the command's streams their descriptors back, for a program that takes this one's place."""
    for number, name in enumerate(NAMES):
        stream = getattr(sys, name)
        if stream is not None:
            os.dup2(unwrap_stream(stream).fileno(), number)


def _move_stream(number: int, stream: GuardedStream | None) -> None:
    if stream is None:
        return
    old, mode = stream.own, "r" if number == 0 else "w"
    if mode == "w":
        with suppress(OSError):
            old.flush()
    place = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, MIN_OWN)
    buffering = -1 if mode == "r" else 1
    moved = os.fdopen(place, mode, buffering, encoding=old.encoding, errors=old.errors, closefd=False)
    stream.own = cast("TextIO", moved)


def _log_lines(read: int) -> None:
    """Log the output of tools; the log redacts secrets."""
    with os.fdopen(read, "rb") as printed:
        while line := printed.readline(MAX_LINE):
            if text := line.decode("utf-8", "replace").rstrip():
                _log.info("%s", text)


def set_busy_check(is_busy: Callable[[], bool]) -> None:
    """Set the check for active calls, which the process completes before it exits."""
    _busy_checks[:] = [is_busy]


def watch_reader() -> None:
    """Exit when the reader of the output closes it, even if there is no output."""
    with suppress(OSError, ValueError, AttributeError):
        place = fcntl.fcntl(unwrap_stream(sys.stdout).fileno(), fcntl.F_DUPFD_CLOEXEC, MIN_OWN)  # the stream may move
        kind = os.fstat(place).st_mode
        if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            threading.Thread(target=_wait_for_hangup, args=(place,), daemon=True).start()


def _wait_for_hangup(place: int) -> None:
    poll = select.poll()
    poll.register(place, 0)  # errors are always reported
    while not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll()):
        pass
    _exit_when_idle()


def exit_unread() -> None:
    """Exit because the output has no reader: at once, or after the active calls.

    Raises BrokenPipeError, so that no new call starts.
    """
    if not any(is_busy() for is_busy in _busy_checks):
        exit_now(0)
    threading.Thread(target=_exit_when_idle, daemon=True).start()
    raise BrokenPipeError


def _exit_when_idle() -> None:
    deadline = time.monotonic() + EXIT_TIMEOUT
    while any(is_busy() for is_busy in _busy_checks) and time.monotonic() < deadline:
        time.sleep(BUSY_POLL_INTERVAL)
    exit_now(0)


def die_with_starter() -> None:
    """Kill this process when the process that started it ends, even if that was killed."""
    starter = multiprocessing.parent_process()
    if starter is None:
        raise RuntimeError("this process was not started by multiprocessing")

    def wait_and_die() -> None:
        wait([starter.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait_and_die, daemon=True).start()

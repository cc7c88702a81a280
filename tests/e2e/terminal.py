"""A command at a terminal of its own, and the person at it."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.e2e.projects import Project
from tests.preloaded import program
from tests.screen import TerminalScreen
from tests.waiting import PATIENCE

CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
UNFINISHED = re.compile(r"\x1b(\[[0-9;?]*)?$")
OWN_TERMINAL = (
    "import fcntl,os,sys,termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, sys.argv[1:])"
)


@dataclass
class Terminal:
    """`written` is all that came, with its control codes. Its screen, if any, fails at a code that is not ours."""

    descriptor: int
    process: "subprocess.Popen[bytes]"
    _screen: TerminalScreen | None = None
    written: str = ""
    found: int = 0
    shown: int = 0
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def until(self, words: str) -> None:
        """Until these words come, after those that were waited for before."""
        deadline = time.monotonic() + PATIENCE
        while (at := CONTROLS.sub("", self.written).find(words, self.found)) < 0:
            is_read = self.read(max(deadline - time.monotonic(), 0))
            assert is_read, f"{words!r} never came in:\n{self.written}"
        self.found = at + len(words)

    def read(self, seconds: float = 1.0) -> bool:
        """False if nothing comes any more."""
        if not select.select([self.descriptor], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.descriptor, 65536)
        except OSError:  # Linux's word for the end of a terminal
            return False
        self.written += self.decoder.decode(data)
        if self._screen is not None:
            whole = UNFINISHED.sub("", self.written)
            self._screen.write(whole[self.shown :])
            self.shown = len(whole)
        return True

    def wait(self) -> int:
        """The exit code of the command, once all that it writes is read."""
        while self.read(PATIENCE):
            pass
        return self.process.wait(PATIENCE)

    @property
    def screen(self) -> TerminalScreen:
        assert self._screen is not None
        return self._screen

    @property
    def has_area(self) -> bool:
        return any(line.startswith(("─", "│", "plan ", "step ", "⠋")) for line in self.screen.lines)

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.descriptor)[3] & termios.ECHO)


@contextmanager
def at_terminal(project: Project, *args: str, **env: str) -> Iterator[Terminal]:
    with _opened(project, [program("cli"), *args], project.environment(env), 100, 24) as (descriptor, process):
        yield Terminal(descriptor, process)


@contextmanager
def in_foreground(project: Project, *args: str, columns: int = 80, rows: int = 24, **env: str) -> Iterator[Terminal]:
    """The command owns its terminal, which is of this size, so that keys send it signals."""
    environment = project.environment(env)
    del environment["COLUMNS"]
    command = [sys.executable, "-c", OWN_TERMINAL, sys.executable, "-Pm", "perdure.cli", *args]
    with _opened(project, command, environment, columns, rows) as (descriptor, process):
        yield Terminal(descriptor, process, TerminalScreen(columns))


@contextmanager
def _opened(
    project: Project, command: list[str], environment: dict[str, str], columns: int, rows: int
) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        command,
        cwd=project.folder,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield ours, process
    finally:
        process.kill()
        process.wait()
        os.close(ours)

"""`perdure run` at a real terminal of a known size: what a person sees, types, and is left with."""

import codecs
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from perdure.testkit.model_server import Reply, ScriptedModel, calls, says, slow
from tests.e2e.conftest import ROOT, Project
from tests.screen import Seen

PATIENCE = 40.0
UNFINISHED = re.compile(r"\x1b(\[[0-9;?]*)?$")
ARGUMENTS = {"text": "milk \x1b]0;evil\x07 and eggs " * 300}  # longer than a question's text
TOOL = """
[tools.note]
kind = "python"
effect = "once"
approval = "always"
target = "notes:note"
"""
CODE = '''
def note(text: str) -> str:
    """Writes a line down."""
    return f"noted {text}"
'''
PLAN = "Plan:\n1. Note it.\n2. Finish.\n"


def reply(body: dict[str, Any]) -> Any:
    goal = body["messages"][0]["content"][0]["text"]
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    match goal, turn:
        case "note it", 0:
            return slow(Reply(text=PLAN, calls=(("note", ARGUMENTS),)), 1)
        case "ask", 0:
            return calls(("ask_human", {"question": "Which shop?", "options": ["near", "far"]}))
        case "take long", _:
            return slow(says("word \x1b[31m" * 400), 30)
        case _:
            return says("All is \x1b[31mdone.")


@dataclass
class Terminal:
    """`seen` fails at each code that is not ours."""

    descriptor: int
    process: "subprocess.Popen[bytes]"
    seen: Seen
    written: str = ""
    shown: int = 0
    read: int = 0
    decoder: codecs.IncrementalDecoder = field(default_factory=codecs.getincrementaldecoder("utf-8"))

    def types(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def until(self, words: str) -> None:
        """Until these words come, after those that were waited for before."""
        deadline = time.monotonic() + PATIENCE
        while (at := re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.written).find(words, self.read)) < 0:
            left = deadline - time.monotonic()
            assert self.hears(max(left, 0)), f"{words!r} never came in:\n{self}"
        self.read = at + len(words)

    def hears(self, seconds: float = 1.0) -> bool:
        """False where nothing comes any more."""
        if not select.select([self.descriptor], [], [], seconds)[0]:
            return False
        try:
            self.written += self.decoder.decode(os.read(self.descriptor, 65536))
        except OSError:
            return False
        whole = UNFINISHED.sub("", self.written)
        self.seen.write(whole[self.shown :])
        self.shown = len(whole)
        return True

    def has_area(self) -> bool:
        return any(line.startswith(("─", "│", "plan ", "step ", "⠋")) for line in self.seen.lines)

    def __str__(self) -> str:
        return "\n".join(self.seen.lines)

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.descriptor)[3] & termios.ECHO)


@pytest.fixture(scope="module")
def project(make_project: Any) -> Iterator[Project]:
    with ScriptedModel(reply) as model:
        project = make_project(ANTHROPIC_BASE_URL=model.base_url, PERDURE_MODEL="scripted")
        project.write("perdure.toml", TOOL)
        project.write("notes.py", CODE)
        project.write("agents/clerk.md", "---\ntools: [note]\n---\nYou take notes.\n")
        yield project


@contextmanager
def at_terminal(project: Project, *args: str, columns: int = 80, rows: int = 24, **env: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = project.environment(env)
    del environment["COLUMNS"]
    # The terminal has to be the process's own, so that it is in its foreground.
    owned = "import fcntl,os,sys,termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, sys.argv[1:])"
    command = [sys.executable, "-c", owned, sys.executable, str(ROOT / "cli.py"), *args]
    process = subprocess.Popen(
        command,
        cwd=project.folder,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    try:
        yield Terminal(ours, process, Seen(columns))
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(("columns", "rows"), [(60, 24), (200, 50)])
def test_a_call_is_seen_whole_and_approved_by_its_number_and_by_nothing_typed_before(
    project: Project, columns: int, rows: int
) -> None:
    run = f"noting-{columns}"
    with at_terminal(project, "run", "--agent", "clerk", "--id", run, "note it", columns=columns, rows=rows) as it:
        it.until("Plan:")
        it.types("1\n")  # by accident, while the model writes
        it.until("answer> ")
        shown = "".join("".join(line.split()) for line in it.seen.lines)
        assert "".join(json.dumps(ARGUMENTS["text"]).split()) in shown
        it.types("\n")
        it.until("type a number from 1 to 3")
        it.until("answer> ")
        it.types("maybe\n")
        it.until("takes one of: approve, approve_tool, deny")
        it.until("answer> ")
        assert it.echoes
        it.types("1\n")
        it.until("✓ note")
        it.until("■ completed")
        it.until("USD")
        assert it.echoes
    assert not it.seen.hides_cursor
    assert not it.has_area()


def test_ctrl_c_leaves_the_terminal_as_it_was(project: Project) -> None:
    with at_terminal(project, "run", "--id", "left", "take long") as it:
        it.until("word ␛[31mword")
        it.until("step 0 of")
        assert not it.echoes
        it.process.send_signal(signal.SIGINT)
        it.until("left the run. Follow it: perdure watch left")
        it.until("Waiting for running calls to finish")
        assert it.echoes
        assert not it.seen.hides_cursor
        assert not it.has_area()
        it.process.send_signal(signal.SIGINT)


def test_ctrl_c_while_only_a_person_is_awaited_speaks_of_no_work(project: Project) -> None:
    with at_terminal(project, "run", "--agent", "clerk", "--id", "idle", "ask") as it:
        it.until("answer> ")
        it.process.send_signal(signal.SIGINT)
        it.until("left the run. Follow it: perdure watch idle")
        assert it.process.wait(PATIENCE) == 130
        while it.hears(0):
            pass
    assert "Finishing" not in it.written


def test_ctrl_z_gives_the_terminal_back_and_goes_on_later(project: Project) -> None:
    with at_terminal(project, "run", "--id", "stopped", "take long") as it:
        it.until("word ␛[31mword")
        it.until("step 0 of")
        it.process.send_signal(signal.SIGTSTP)
        assert os.WIFSTOPPED(os.waitpid(it.process.pid, os.WUNTRACED)[1])
        while it.hears():
            pass
        assert it.echoes
        assert not it.has_area()
        it.process.send_signal(signal.SIGCONT)
        it.until("step 0 of")
        assert not it.echoes


def test_ctrl_d_leaves_the_question_open_and_says_how_to_answer_later(project: Project) -> None:
    with at_terminal(project, "run", "--agent", "clerk", "--id", "open", "ask") as it:
        it.until("1 near")
        it.until("2 far")
        it.until("answer> ")
        it.types("\x04")
        it.until('answer it with: perdure answer open --question q1 "…"')
        it.until("waiting for human: asks: Which shop?")
        assert project.perdure("answer", "open", "the near one").code == 0
        it.until("■ completed")


def test_what_somebody_else_answers_ends_the_prompt(project: Project) -> None:
    with at_terminal(project, "run", "--agent", "clerk", "--id", "other", "ask", NO_COLOR="1") as it:
        it.until("answer> ")
        assert project.perdure("answer", "other", "far").code == 0
        it.until("■ completed")
    assert not re.search(r"\x1b\[[0-9;]*[34][0-7]m", it.written)


def test_a_terminal_that_can_only_print_gets_lines(project: Project) -> None:
    with at_terminal(project, "run", "--agent", "clerk", "--id", "dumb", "ask", TERM="dumb") as it:
        it.until("? the agent asks: Which shop? · near, far")
        it.until("answer> ")
        it.types("2\n")
        it.until("■ completed")
    assert "\x1b" not in it.written

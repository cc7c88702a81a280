"""`perdure chat` as a person at a terminal, a pipe and a program meet it."""

import json
import os
import pty
import re
import select
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from devserver import embedded_server
from perdure.testkit.model_server import Reply, ScriptedModel, calls, says, slow
from tests.e2e.conftest import Project
from tests.preloaded import program

PATIENCE = 40.0
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def last_said(body: dict[str, Any]) -> str:
    texts = [b["text"] for m in body["messages"] if m["role"] == "user" for b in m["content"] if b["type"] == "text"]
    return str(texts[-1])


def reply(body: dict[str, Any]) -> Any:
    results = [b["content"] for b in body["messages"][-1]["content"] if b["type"] == "tool_result"]
    match last_said(body), results:
        case _, [answer, *_]:
            return says(f"I heard {answer}")
        case "ask me", _:
            return calls(("ask_human", {"question": "which one?", "options": ["red", "blue"]}))
        case "take long", _:
            return slow(says("done at last " * 20), 30)  # of which the first words come soon
        case "note it", _:
            return Reply(text="noted", calls=(("update_run_journal", {"current_state": "all is noted"}),))
        case said, _:
            return says(f"you said {said}")


@dataclass
class Terminal:
    """A terminal with a person at it."""

    descriptor: int
    process: "subprocess.Popen[bytes]"
    seen: str = ""
    read: int = field(default=0)

    def type(self, line: str) -> None:
        os.write(self.descriptor, f"{line}\n".encode())

    def until(self, words: str) -> None:
        """Until these words come, after those that were waited for before."""
        deadline = time.monotonic() + PATIENCE
        while (at := self.seen.find(words, self.read)) < 0:
            left = deadline - time.monotonic()
            assert left > 0, f"{words!r} never came in:\n{self.seen}"
            if not select.select([self.descriptor], [], [], left)[0]:
                continue
            try:
                data = os.read(self.descriptor, 65536)
            except OSError:
                raise AssertionError(f"it ended before {words!r}:\n{self.seen}") from None
            self.seen += CONTROLS.sub("", data.decode(errors="replace"))
        self.read = at + len(words)


@pytest.fixture(scope="module")
async def project(make_project: Any) -> AsyncIterator[Project]:
    """Its embedded server is held up, so that no command has to start one."""
    with ScriptedModel(reply) as model:
        project: Project = make_project(ANTHROPIC_BASE_URL=model.base_url, PERDURE_MODEL="scripted")
        async with embedded_server(project.home):
            yield project


@contextmanager
def at_terminal(project: Project, *args: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [program("cli"), "chat", *args],
        cwd=project.folder,
        env=project.environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_line_of_a_pipe_that_is_no_text_costs_no_other(project: Project) -> None:
    done = subprocess.run(
        [program("cli"), "chat", "bytes"],
        cwd=project.folder,
        env=project.environment({"PYTHONIOENCODING": "utf-8:strict"}),
        input=b"hello\ncaf\xe9\nbye\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    said = done.stdout.decode()
    assert all(f"you said {each}" in said for each in ("hello", "caf\N{REPLACEMENT CHARACTER}", "bye"))


def test_a_conversation_at_the_terminal(project: Project) -> None:
    with at_terminal(project, "sea") as it:
        it.until("/help lists the commands")
        it.type("hello")
        it.until("you said hello")
        it.type("ask me")
        it.until("which one?")
        it.type("2")
        it.until("I heard blue")
        it.type("note it")
        it.until("noted")
        it.type("/journal")
        it.until("all is noted")
        it.type("take long")
        it.until("done at last")  # what is seen is cancelled, and before that it may be the turn before
        it.type("after it")
        it.until("queued; 1 ahead")
        it.type("/cancel")
        it.until("■ cancelled")
        it.until("you said after it")
        it.type("/forget")
        it.until("removed from the next turn on: after it")
        it.type("/nonsense")
        it.until("there is no /nonsense")
        it.type("/quit")
        it.until("to continue: perdure chat sea")
        assert it.process.wait(PATIENCE) == 0
    with at_terminal(project, "sea") as it:
        it.until("> ask me")
        it.until("I heard blue")
        it.until("> take long")
        it.until("cancelled")
        it.type("and now?")
        it.until("you said and now?")


def test_what_was_asked_a_moment_ago_can_be_cancelled(project: Project) -> None:
    with at_terminal(project, "hasty") as it:
        it.until("/help")
        it.type("take long")
        it.type("/cancel")
        it.until("■ cancelled")
        it.type("/cancel")
        it.until("no turn is active")


def test_what_ran_when_the_person_left_is_shown_when_they_come_back(project: Project) -> None:
    with at_terminal(project, "away") as it:
        it.until("/help")
        it.type("ask me")
        it.until("which one?")
        it.process.kill()
    with at_terminal(project, "away") as it:
        it.until("which one?")
        it.type("red")
        it.until("I heard red")


def test_what_came_too_late_to_steer_is_shown_as_a_turn_of_its_own(project: Project) -> None:
    with at_terminal(project, "late") as it:
        it.until("/help")
        it.type("ask me")
        it.until("which one?")
        it.type("/steer and hurry")
        it.type("/cancel")
        it.until("■ cancelled")
        it.until("I heard interrupted")


def test_one_message_and_its_answer(project: Project) -> None:
    said = project.perdure("chat", "once", "-m", "hello")
    assert (said.code, said.out.strip().splitlines()[-1]) == (0, "you said hello")
    told = project.perdure("chat", "once", "-m", "again", "--json")
    end = json.loads(told.out)
    assert (end["conversation_id"], end["status"]) == ("once", "completed")
    assert end["event"]["payload"]["outcome"] == "you said again"


def test_a_pipe_is_answered_to_its_end(project: Project) -> None:
    said = project.perdure("chat", "pipe", typed="one\ntwo\n")
    assert said.code == 0
    assert said.out.index("you said one") < said.out.index("you said two")


def test_what_is_too_long_is_told_and_the_conversation_goes_on(project: Project) -> None:
    """Also where it would have been an answer."""
    endless, told = "x" * 200_001, "String should have at most 200000 characters"
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [program("cli"), "chat", "endless"]
    with subprocess.Popen(command, cwd=project.folder, env=project.environment({}), **pipes) as chat:
        gives_up = threading.Timer(2 * PATIENCE, chat.kill)
        gives_up.start()
        typed, shown = chat.stdin, chat.stdout
        assert typed
        assert shown
        for line, words in (
            (endless, f"goal: {told}"),
            ("ask me", "answer it with"),
            (endless, f"text: {told}"),
            ("red", "I heard red"),
        ):
            typed.write(f"{line}\n")
            typed.flush()
            assert any(words in said for said in shown), words
        typed.close()
        assert chat.wait() == 0
        gives_up.cancel()


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--json",), "--json needs a --message"),
        (("x" * 300,), "the name of a conversation must have 1 to 200 characters"),
        (("",), "the name of a conversation must have 1 to 200 characters"),
        (("-m", " "), "the request is empty"),
        (("--agent", "nobody", "-m", "x"), "there is no agent 'nobody'"),
    ],
)
def test_wrong_usage_is_one_line(project: Project, args: tuple[str, ...], complaint: str) -> None:
    done = project.perdure("chat", *args)
    assert done.code != 0
    assert complaint in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_what_somebody_else_says_in_the_conversation_is_shown_too(project: Project) -> None:
    with at_terminal(project, "shared") as it:
        it.until("/help")
        assert project.perdure("chat", "shared", "-m", "from elsewhere").code == 0
        it.until("> from elsewhere")
        it.until("you said from elsewhere")

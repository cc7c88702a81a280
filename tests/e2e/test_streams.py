"""The standard streams of a command: what a tool prints, what is closed, a reader that goes away, ASCII."""

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.testkit.model_server import ScriptedModel, calls
from tests.e2e.projects import MakeProject, Project, Served
from tests.preloaded import program
from tests.waiting import PATIENCE

LOUD = '''
import os, subprocess, sys

print("at import")


def loud() -> str:
    """Print everywhere, and read all there is."""
    print("plainly")
    os.write(1, b"to the descriptor\\n")
    sys.stderr.write("to the error\\n")
    subprocess.run("echo by a program; echo its error >&2; cat", shell=True, check=True)
    return sys.stdin.read()


async def softly() -> str:
    """Print on the loop."""
    print("softly")
    return input()
'''
SAID = ("at import", "plainly", "to the descriptor", "to the error", "by a program", "its error", "softly")
TOOLS = "\n".join(
    f'[tools.{name}]\nkind = "python"\ntarget = "noise:{name}"\neffect = "read"\n' for name in ("loud", "softly")
)
ANSWER = "grüße 😀"


def script(body: dict[str, Any]) -> Any:
    turn: int = sum(message["role"] == "assistant" for message in body["messages"])
    return (calls(("loud", {}), ("softly", {})), calls(("finish", {"outcome": ANSWER})))[min(turn, 1)]


@pytest.fixture(scope="module")
def noisy(make_project: MakeProject) -> Iterator[Project]:
    with ScriptedModel(script) as model:
        project = make_project(ANTHROPIC_BASE_URL=model.base_url, ANTHROPIC_API_KEY="key")
        project.write("perdure.toml", TOOLS)
        project.write("noise.py", LOUD)
        project.write("agents/noise.md", "---\ndescription: noise\ntools: [loud, softly]\n---\nMake noise.\n")
        yield project


@pytest.mark.parametrize(
    "command",
    [("run", "--agent", "noise", "--json", ANSWER), ("chat", "--agent", "noise", "--json", "-m", ANSWER)],
    ids=lambda c: c[0],
)
def test_a_tool_has_none_of_the_commands_streams(noisy: Project, command: tuple[str, ...]) -> None:
    """Its output is JSON alone, in ASCII, its input stays where it was, and what the tool prints is in the log."""
    log = noisy.home / "worker.log"
    log.unlink(missing_ok=True)
    rest, typed = os.pipe()
    os.write(typed, b"the next line of a loop\n")
    os.close(typed)
    done = subprocess.run(
        [program("cli"), *command],
        cwd=noisy.folder,
        env=noisy.environment({"PYTHONIOENCODING": "ascii"}),
        stdin=rest,
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    (line,) = done.stdout.decode("ascii").splitlines()
    assert json.loads(line)["event"]["payload"]["outcome"] == ANSWER
    assert done.stderr == b""
    assert os.read(rest, 100) == b"the next line of a loop\n"
    os.close(rest)
    lines = [json.loads(entry) for entry in log.read_text(encoding="utf-8").splitlines()]
    printed = [entry["message"] for entry in lines if entry["logger"] == "perdure.tools"]
    assert sorted(set(printed)) == sorted(SAID)


def test_what_a_module_prints_is_not_a_commands_output(noisy: Project) -> None:
    done = noisy.perdure("tools", "--json")
    assert (done.code, done.err) == (0, "")
    json.loads(done.out)
    assert "loud" in done.out


@pytest.mark.parametrize(
    ("command", "closed"),
    [
        ("list", "2>&-"),
        ("list", ">&-"),
        ("list", "<&-"),
        *((command, "<&- >&- 2>&-") for command in ("agents", "list", "doctor")),
    ],
)
def test_a_closed_stream_is_no_failure(served: Served, command: str, closed: str) -> None:
    project = served.project
    shell = ["/bin/sh", "-c", f'"$0" {command} {closed}', program("cli")]
    done = subprocess.run(
        shell, cwd=project.folder, env=project.environment(), capture_output=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert bool(done.stdout) == (">&-" not in closed.split())


@pytest.mark.parametrize("command", [("dev",), ("gateway", "--port", "0")], ids=lambda c: c[0])
def test_a_command_ends_when_its_reader_goes_away(served: Served, command: tuple[str, ...]) -> None:
    """At once, and without complaint, also one that has nothing more to write."""
    with served.project.running(*command) as process:
        process.until("Ctrl-C")
        assert process.popen.stdout
        assert process.popen.stderr
        process.popen.stdout.close()
        assert process.popen.wait(PATIENCE) == 0
        assert process.popen.stderr.read() == ""


def test_an_answer_that_looks_like_an_option_is_refused_with_the_way_to_write_it(served: Served) -> None:
    done = served.project.perdure("answer", "r", "-x")
    assert (done.code, done.out) == (2, "")
    assert "put arguments that begin with - after --" in done.err

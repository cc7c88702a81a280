"""`perdure run` beside `perdure dev`: the code of today works, and of one process alone."""

import asyncio
import fcntl
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

import pytest
from temporalio.client import Client

from perdure import session
from perdure.settings import load_settings
from perdure.testkit.model_server import ScriptedAnswer, ScriptedModel, calls, says
from tests.e2e.projects import Json, MakeProject, Project, turn_of, use_model

TOOL = 'def look() -> str:\n    "Looks."\n    return "{word}"\n'
STARTING = "no worker is running yet; one is starting, and takes the work up then"
FILES = {
    "perdure.toml": '[tools.look]\nkind = "python"\neffect = "read"\ntarget = "eyes:look"\n',
    "agents/one.md": "---\ndescription: looks\ntools: [look]\n---\nLook.\n",
    "eyes.py": TOOL.format(word="before"),
}


def reply(body: Json) -> ScriptedAnswer:
    return says(str(body["messages"][-1]["content"][0])) if turn_of(body) else calls(("look", {}))


@pytest.fixture
def project(make_project: MakeProject) -> Iterator[Project]:
    with ScriptedModel(reply) as model:
        project = make_project(**use_model(model))
        project.write_all(FILES)
        yield project


def checked_tools(project: Project) -> str:
    done = project.perdure("run", "--json", "--agent", "one", "look")
    assert done.code == 0, done
    return str(json.loads(done.out)["event"]["payload"]["outcome"])


def test_dev_takes_up_changed_files_and_runs_beside_it_use_them(project: Project) -> None:
    with project.running("dev") as dev:
        dev.until("Ctrl-C stops everything")
        server = (project.home / "server.json").read_text()
        assert "before" in checked_tools(project)
        project.write("eyes.py", TOOL.format(word="afterwards"))
        dev.until("eyes.py changed; the worker starts again")
        meanwhile = project.perdure("run", "--detach", "--agent", "one", "look")
        assert meanwhile.code == 0, meanwhile
        assert meanwhile.err in ("", f"perdure: {STARTING}\n"), "it waits, and then does not say that none is there"
        dev.until("Ctrl-C stops everything")
        assert ["afterwards" in checked_tools(project) for _ in range(4)] == [True] * 4
        project.write("agents/two.md", FILES["agents/one.md"])
        dev.until("agents/two.md changed")
        dev.until("Ctrl-C stops everything")
        assert project.perdure("run", "--agent", "two", "look").code == 0
        assert (project.home / "server.json").read_text() == server
        assert dev.send_signal(signal.SIGINT).code == 0


@pytest.fixture
def here(tmp_path: Path) -> session.Session:
    settings = load_settings({}, tmp_path)
    settings.home.mkdir()
    return session.Session(cast("Client", None), settings, "http://localhost")


@contextmanager
def holding(here: session.Session, state: Literal["worker", "starting"]) -> Iterator[None]:
    with session.worker_lock_path(here.settings, state).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


async def test_a_command_waits_for_a_worker_that_is_starting(here: session.Session) -> None:
    with holding(here, "starting"):
        waiting = asyncio.create_task(here.missing_worker_message("a"))
        assert not (await asyncio.wait({waiting}, timeout=0.5))[0]
        with holding(here, "worker"):
            assert await waiting is None


async def test_a_worker_that_takes_long_to_start_is_reported_as_one_that_starts(
    here: session.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "WORKER_START_TIMEOUT", 0.0)
    with holding(here, "starting"):
        assert await here.missing_worker_message("a") == STARTING
    assert await here.missing_worker_message("a") == "no worker is running; start one with: perdure watch a"


def test_dev_goes_on_with_what_it_has_where_the_change_does_not_load(project: Project) -> None:
    with project.running("dev") as dev:
        dev.until("Ctrl-C stops everything")
        project.write("agents/one.md", "---\ntools: [nosuch]\n---\n")
        said = dev.until("agents/one.md changed, and the worker goes on without")
        assert "there is no tool 'nosuch'" in said
        project.write("agents/one.md", FILES["agents/one.md"] + "Again.\n")
        dev.until("agents/one.md changed; the worker starts again")
        dev.until("Ctrl-C stops everything")
        assert "before" in checked_tools(project)


def test_a_run_beside_a_worker_that_leaves_takes_its_work_over(project: Project, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    project.write(
        "eyes.py",
        f'import pathlib, time\n\ndef look() -> str:\n    "Looks."\n    gate = pathlib.Path({str(gate)!r})\n'
        '    while not gate.exists():\n        time.sleep(0.05)\n    return "seen"\n',
    )
    with project.running("dev") as dev:
        dev.until("Ctrl-C stops everything")
        with project.running("run", "--json", "--agent", "one", "look") as run:
            dev.popen.kill()
            dev.popen.wait()
            gate.touch()
            done = run.wait()
    assert (done.code, "seen" in done.out) == (0, True), done

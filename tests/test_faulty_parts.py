"""Which command a faulty part of a project stops: those that need the part, and no other."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

import perdure.features.mcp_server.commands as mcp_server
from perdure import session
from perdure.cli import app, commands
from perdure.commands import new
from perdure.decisions.errors import ReportedError
from perdure.features.proof import crashtest
from perdure.process import worker
from perdure.process.project import display_project
from perdure.session import Needs
from perdure.settings import Settings
from perdure.terminal import command

SOUND = {
    "agents/ext.md": "---\nmailbox: true\n---\n",
    "event.json": "{}",
    "cases.yaml": "- {goal: x}\n",
    "crash.yaml": "goal: x\nmodel: [{text: done}]\n",
    "try.toml": '[[rule]]\nname = "all"\nthen = "allow"\n',
}
FAULTY = {
    "agent": {"agents/bad.md": "---\njournal: 7\n---\n"},
    "tool": {"perdure.toml": '[tools.lookup]\nkind = "python"\ntarget = "no_module:lookup"\n'},
    "declared": {"perdure.toml": '[tools.lookup]\nkind = "pyton"\n'},
    "schema": {"perdure.toml": '[tools.lookup]\nkind = "signal"\ninput_schema = "no.json"\n'},
    "start": {"perdure.toml": '[[start]]\nname = "s"\nwebhook = "none"\non = ["x"]\ngoal = "g"\n'},
    "notify": {"perdure.toml": '[[notify]]\nname = "ops"\nkind = "fax"\n'},
    "mcp": {".mcp.json": "{"},
    "policy": {"policy.toml": '[[rule]]\nname = "r"\nthen = "perhaps"\n'},
    "people": {"perdure.toml": "[people]\nops = 7\n"},
}
PLACES = {
    "agent": "bad.md, line 2: journal",
    "tool": "tools.lookup.target",
    "declared": "tools.lookup: ",
    "schema": "no.json",
    "start": "perdure.toml: start.s.webhook: ",
    "notify": "notify.0.kind",
    "mcp": ".mcp.json: ",
    "policy": "policy.toml, line 3: rule.then",
    "people": "people.ops",
}
FREE: frozenset[str] = frozenset()  # no file of the project is needed
CLIENT = frozenset({"people"})  # who answers: the rest is for workers to say
FILES = CLIENT | {
    "declared",
    "schema",
    "start",
    "notify",
    "mcp",
}  # secrets of all of these are redacted, or what they set is shown
WHOLE = FILES | {"tool", "policy"}  # a worker, or what is about all of the project
NEEDED: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "run": (("hello",), WHOLE),
    "run --detach": (("--detach", "hello"), CLIENT),
    "chat": (("--message", "hello"), WHOLE),
    "watch": (("r1",), CLIENT),
    "cancel": (("r1",), CLIENT),
    "resume": (("--detach", "r1"), CLIENT),
    "fork": (("--detach", "r1", "--step", "1"), CLIENT),
    "schedule": (("list",), CLIENT),
    "pause": (("--all",), CLIENT),
    "unpause": (("--all",), WHOLE),
    "budget": (("list",), CLIENT),
    "event": (("event.json",), CLIENT),
    "mail": (("box", "--agent", "ext"), WHOLE),
    "questions": ((), CLIENT),
    "answer": (("r1", "yes"), CLIENT),
    "approve": (("r1",), CLIENT),
    "deny": (("r1",), CLIENT),
    "list": ((), CLIENT),
    "show": (("r1",), CLIENT),
    "replay": (("r1", "--policy", "try.toml"), WHOLE),
    "redeliver": (("all",), CLIENT),
    "trace": (("r1",), CLIENT),
    "trace --export": (("--export", "-", "r1"), FILES),
    "verify": (("record.json",), FREE),
    "new": (("fresh",), FREE),
    "agents": ((), WHOLE | {"agent"}),
    "tools": ((), WHOLE),
    "policy": (("check", "try.toml"), WHOLE),
    "eval": (("cases.yaml",), WHOLE),
    "crashtest": (("crash.yaml",), WHOLE),
    "worker": ((), WHOLE),
    "dev": ((), WHOLE),
    "gateway": (("--port", "0"), WHOLE),
    "token": (("list",), FREE),
    "mcp": ((), WHOLE),
    "doctor": ((), WHOLE | {"agent"}),
    "completion": (("bash",), FREE),
}
LOCAL = {"verify", "new", "agents", "tools", "policy", "token", "completion"}  # they need no server


class ReachedError(ReportedError):
    """The command has got as far as the server."""


@asynccontextmanager
async def serve_nothing(*_: object, **__: object) -> AsyncIterator[None]:
    yield None


@asynccontextmanager
async def open_embedded(_: object, settings: Settings, needs: Needs, **__: object) -> AsyncIterator[Any]:
    """Start the worker that the command needs, as far as its files go."""
    if needs in (Needs.work, Needs.worker):
        await start_worker(settings)
    raise ReachedError("reached")
    yield


async def start_worker(settings: Settings) -> None:
    async with display_project(settings, is_worker=True):
        pass


async def serve_worker(settings: Settings) -> None:
    await start_worker(settings)
    raise ReachedError("reached")


def leave(code: int) -> NoReturn:
    raise SystemExit(code)


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "configured_address", lambda: None)
    monkeypatch.setattr(session, "embedded_server", serve_nothing)
    monkeypatch.setattr(session, "_open_embedded", open_embedded)
    monkeypatch.setattr(worker, "serve_worker", serve_worker)
    monkeypatch.setattr(crashtest.CrashTest, "run", lambda test: serve_worker(test.settings))
    monkeypatch.setattr(mcp_server, "_claim_stdio", lambda: (1, 0))
    for module in (command, worker, new):
        monkeypatch.setattr(module, "exit_now", leave)
    for module in (command, worker):
        monkeypatch.setattr(module, "quiet_core", lambda _: None)
    for setting in ("log_to_stderr", "open_null_streams", "guard_streams"):
        monkeypatch.setattr(worker, setting, lambda *_: None)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text, encoding="utf-8")


def test_the_table_has_each_command() -> None:
    own_project = {"demo"}
    assert {name.partition(" ")[0] for name in NEEDED} | own_project == {*commands()}


@pytest.mark.parametrize("name", NEEDED)
def test_a_faulty_part_stops_the_commands_that_need_it_and_no_other(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, needed = NEEDED[name]
    stopped = set[str]()
    for part, files in FAULTY.items():
        folder = tmp_path / part
        write(folder, SOUND | files)
        monkeypatch.chdir(folder)
        try:
            app([name.partition(" ")[0], *arguments], standalone_mode=False)
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        said = "".join(capsys.readouterr())
        if code and PLACES[part] in said and (name == "doctor" or "reached" not in said):
            stopped.add(part)
        else:
            assert name in LOCAL or "reached" in said, said
    assert stopped == needed

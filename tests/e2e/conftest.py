"""A project in a folder of its own, and the product there as a person starts it: by processes."""

import asyncio
import importlib.util
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

import cli
from devserver import embedded_server
from perdure.converter import data_converter
from tests.preloaded import program

ROOT = Path(cli.__file__).parent
PATIENCE = 60.0  # seconds for what takes a few
# What the person who runs the tests has set is not what the tests are about.
OURS = ("TEMPORAL_", "PERDURE_", "ANTHROPIC_", "NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@dataclass
class Project:
    """`env` is added to each process's environment."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / ".perdure"

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        # Nobody's profile, and what a person sees at a terminal of 100 columns.
        fixed = {"TEMPORAL_CONFIG_FILE": str(self.folder / "no-profile.toml"), "TERM": "xterm", "COLUMNS": "100"}
        return {**plain, **fixed, **self.env, **(more or {})}

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def perdure(self, *args: str, typed: str = "", **env: str) -> Done:
        """A command to its end."""
        command = [program("cli"), *args]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(env),
            input=typed,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def running(self, *args: str, script: str = "cli.py", **env: str) -> Iterator["Process"]:
        """A command while the block runs; whatever happens, it is gone afterwards."""
        process = subprocess.Popen(
            [program(script.removesuffix(".py")), *args],
            cwd=self.folder,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield Process(process)
            finally:
                process.kill()


@dataclass
class Process:
    popen: "subprocess.Popen[str]"
    seen: list[str] = field(default_factory=list)

    def until(self, words: str) -> str:
        """The first line of standard output with these words in it."""
        out = self.popen.stdout
        assert out is not None
        for line in out:
            self.seen.append(line)
            if words in line:
                return line
        raise AssertionError(
            f"{words!r} never came in:\n{''.join(self.seen)}{self.popen.stderr and self.popen.stderr.read()}"
        )

    def signalled(self, number: signal.Signals) -> Done:
        self.popen.send_signal(number)
        return self.ended()

    def ended(self) -> Done:
        out, err = self.popen.communicate(timeout=PATIENCE)
        return Done(self.popen.returncode, "".join(self.seen) + out, err)


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    """The address of the example site."""
    spec = importlib.util.spec_from_file_location("site_server", ROOT / "examples" / "critique" / "site_server.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with module.serve() as address:
        yield address


@pytest.fixture(scope="session")
def critique(site: str) -> str:
    """The goal of the worked example (A13)."""
    return f"fetch web {site} and produce a 2 para critique"


MakeProject = Callable[..., Project]


@pytest.fixture(scope="session")
def make_project(tmp_path_factory: pytest.TempPathFactory, site: str) -> MakeProject:
    """A project that may fetch from the example site, in a folder with a space in its name."""

    def make(**env: str) -> Project:
        folder = tmp_path_factory.mktemp("e2e") / "my project"
        folder.mkdir()
        project = Project(folder, env)
        project.write("perdure.toml", f'[fetch]\nallow_hosts = ["{site.split("/")[2]}"]\n')
        return project

    return make


@dataclass(frozen=True)
class Served:
    """A project whose embedded server is held up, so that no command has to start one."""

    project: Project
    client: Client
    address: str


@pytest.fixture(scope="module")
async def served(make_project: MakeProject) -> AsyncIterator[Served]:
    project = make_project()
    async with embedded_server(project.home) as server:
        client = await Client.connect(server.address, data_converter=data_converter)
        yield Served(project, client, server.address)


@pytest.fixture(scope="module")
def worked(served: Served) -> Iterator[Served]:
    """As `served`, with a worker; a command that is told TEMPORAL_ADDRESS brings none of its own."""
    with served.project.running(script="worker.py", TEMPORAL_ADDRESS=served.address) as worker:
        worker.until("worker ready")
        yield served


async def until(holds: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """Waits for a condition, never for the clock."""
    deadline = time.monotonic() + seconds
    while True:
        claim = holds()
        if asyncio.iscoroutine(claim):
            claim = await claim
        if claim:
            return
        assert time.monotonic() < deadline, "it never came to hold"
        await asyncio.sleep(0.05)


@pytest.fixture(scope="session", name="until")
def until_fixture() -> Callable[..., Any]:
    return until

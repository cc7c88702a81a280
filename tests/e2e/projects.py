"""A project in a folder of its own, and the product there as a person starts it: by processes."""

import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.client import Client

from perdure import cli
from perdure.client.errors import RunNotFoundError
from perdure.client.runs import query_run_state
from perdure.converter import data_converter
from perdure.devserver import embedded_server
from perdure.testkit.model_server import ScriptedAnswer, ScriptedModel
from tests.preloaded import program
from tests.waiting import PATIENCE, until

ROOT = Path(cli.__file__).parents[1]

# What the person who runs the tests has set is not what the tests are about.
OURS = ("TEMPORAL_", "PERDURE_", "ANTHROPIC_", "NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS")
Json = dict[str, Any]


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str

    def error(self, code: int = 1) -> str:
        """The only line that a command printed which failed with this code: the one on standard error."""
        assert (self.code, self.out, self.err.count("\n")) == (code, "", 1), self
        return self.err

    def rows(self) -> list[Any]:
        """Its output, a JSON value a line."""
        return [json.loads(line) for line in self.out.splitlines()]


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

    def write_all(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            self.write(name, text)

    def perdure(self, *args: str, typed: str = "", **env: str) -> CommandResult:
        """A command to its end."""
        done = subprocess.run(
            [program("cli"), *args],
            cwd=self.folder,
            env=self.environment(env),
            input=typed,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

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

    @contextmanager
    def worker(self, **env: str) -> Iterator["Process"]:
        """A worker that is ready, while the block runs."""
        with self.running(script="worker.py", **env) as worker:
            worker.until("worker ready")
            yield worker


MakeProject = Callable[..., Project]


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

    def send_signal(self, number: signal.Signals) -> CommandResult:
        self.popen.send_signal(number)
        return self.wait()

    def wait(self) -> CommandResult:
        out, err = self.popen.communicate(timeout=PATIENCE)
        return CommandResult(self.popen.returncode, "".join(self.seen) + out, err)


@dataclass(frozen=True)
class Served:
    """A project whose embedded server is held up, so that no command has to start one."""

    project: Project
    client: Client
    address: str

    def perdure(self, *args: str, typed: str = "", **env: str) -> CommandResult:
        """A command that knows the server's address, and so brings no worker of its own."""
        return self.project.perdure(*args, typed=typed, **{"TEMPORAL_ADDRESS": self.address, **env})


@asynccontextmanager
async def serve(project: Project) -> AsyncIterator[Served]:
    async with embedded_server(project.home) as server:
        client = await Client.connect(server.address, data_converter=data_converter)
        yield Served(project, client, server.address)


@asynccontextmanager
async def serve_with_worker(project: Project, **env: str) -> AsyncIterator[Served]:
    """While it lasts, every process of the project knows the server's address."""
    async with serve(project) as served:
        project.env["TEMPORAL_ADDRESS"] = served.address
        try:
            with project.worker(**env):
                yield served
        finally:
            del project.env["TEMPORAL_ADDRESS"]


async def until_asked(client: Client, run_id: str, question_id: str = "q1", kind: str | None = None) -> None:
    """Waits until a run's question is open; the run need not have begun."""

    async def is_asked() -> bool:
        try:
            view = await query_run_state(client, run_id)
        except RunNotFoundError:
            return False
        question = view.question if view is not None else None
        return question is not None and question.id == question_id and kind in (None, question.kind)

    await until(is_asked)


async def results_of(client: Client, run_id: str) -> list[str]:
    """The results of a run's calls, as its model was shown them."""
    page = await client.get_workflow_handle(f"run:{run_id}").query("transcript")
    return [part["content"][0]["content"] for part in page["parts"] if part["kind"] == "result"]


def turn_of(body: Json) -> int:
    """The number of replies that a conversation has already."""
    return sum(message["role"] == "assistant" for message in body["messages"])


def goal_of(body: Json) -> str:
    return str(body["messages"][0]["content"][0]["text"])


def reply_by_goal(scripts: Mapping[str, Sequence[ScriptedAnswer]]) -> Callable[[Json], ScriptedAnswer]:
    """A model that plays the script of the longest of these goals that a conversation begins with or quotes."""

    def reply(body: Json) -> ScriptedAnswer:
        goal = max((goal for goal in scripts if goal in goal_of(body)), key=len)
        return scripts[goal][turn_of(body)]

    return reply


def use_model(model: ScriptedModel) -> dict[str, str]:
    """The environment in which this model answers."""
    return {"ANTHROPIC_API_KEY": "sk-none", "PERDURE_MODEL": "scripted", "ANTHROPIC_BASE_URL": model.base_url}

"""What strangers install: the wheel in an empty environment, in another folder; its commands, and its end."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.release.build import ROOT, build_release

PATIENCE = 600.0  # seconds; an installation downloads a third of a gigabyte
NOT_A_STRANGERS = ("TEMPORAL_", "PERDURE_", "ANTHROPIC_", "PYTEST_", "PYTHON", "VIRTUAL_ENV")
SDK = ("temporalio", "protobuf", "nexus-rpc", "types-protobuf", "typing-extensions")  # and what it needs itself
MAX_CLIENT_BYTES = 55_000_000  # beyond the SDK
SIZES = """
import importlib.metadata as m, json, sys
print(json.dumps({d.name: sum(p.stat().st_size for f in d.files or () if (p := f.locate()).is_file())
                  for d in m.distributions()}))
"""


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and an empty folder to work in."""

    bin: Path
    folder: Path

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith(NOT_A_STRANGERS)}
        return {**plain, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", **(more or {})}

    def run(
        self, name: str, *args: str, code: int = 0, folder: Path | None = None, env: Mapping[str, str] | None = None
    ) -> str:
        """Run a command of the environment, and return what it printed."""
        done = subprocess.run(
            [str(self.bin / name), *args],
            cwd=folder or self.folder,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == code, done.stdout[-4000:]
        return done.stdout


@contextmanager
def environment(home: Path) -> Iterator[Installed]:
    """An environment with pip alone; it is removed afterwards, since pytest keeps folders of three sessions."""
    subprocess.run([sys.executable, "-m", "venv", str(home / "venv")], check=True, timeout=PATIENCE)
    folder = home / "an empty folder"
    folder.mkdir()
    yield Installed(home / "venv" / "bin", folder)
    shutil.rmtree(home / "venv")


def install(there: Installed, *what: str) -> None:
    """Install by name, as a stranger does, but in the versions that the lock file pins."""
    pins = there.folder.parent / "pins.txt"
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pins.write_text("\n".join(re.findall(r"^[\w.-]+==\S+", lock, re.MULTILINE)), encoding="utf-8")
    there.run("python", "-m", "pip", "install", "--quiet", "--constraint", str(pins), *what)


@pytest.mark.timeout(PATIENCE * 3)  # on a busy machine
def test_a_stranger_installs_runs_and_removes_it(tmp_path: Path) -> None:
    """One test, since an installation takes a minute, and each process of the tests would make its own."""
    wheel = build_release(ROOT, tmp_path / "dist")[1]
    (tmp_path / "client").mkdir()
    (tmp_path / "whole").mkdir()
    with environment(tmp_path / "client") as client, environment(tmp_path / "whole") as whole:
        install(client, str(wheel))
        check_client(client)
        install(whole, f"{wheel}[all]", "pytest")
        check_demo(whole)
        check_new_project(whole)
        check_client_of_a_server(client, whole)
        whole.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", "perdure")
        assert [*whole.bin.parent.rglob("*perdure*")] == []


def check_client(client: Installed) -> None:
    """It is small, and what it lacks is one line with the command."""
    sizes = json.loads(client.run("python", "-c", SIZES))
    own = {name: size for name, size in sizes.items() if canonicalize_name(name) not in (*SDK, "pip", "setuptools")}
    assert {"perdure", "pydantic", "rich"} <= own.keys()
    assert "anthropic" not in own
    assert sum(own.values()) <= MAX_CLIENT_BYTES, own
    client.run("python", "-c", "from perdure import Perdure")
    for command in (("list",), ("run", "hello"), ("questions",), ("demo",)):
        said = client.run("perdure", *command, code=1)
        assert said.splitlines()[-1].startswith("perdure: no Temporal server is configured"), said
        assert "pip install 'perdure[all]'" in said
    for command, extra in ((("worker",), "worker"), (("gateway",), "gateway"), (("verify", "x"), "keys")):
        said = client.run("perdure", *command, code=1)
        assert (said.count("\n"), f"pip install 'perdure[{extra}]'" in said) == (1, True), said
    assert "  pip install 'perdure[all]'\n  pip install pytest\n  pytest\n" in client.run("perdure", "new", "shop")


def check_demo(whole: Installed) -> None:
    printed = whole.run("perdure", "demo")
    assert "■ completed  2 steps" in printed
    assert "\n  perdure dev\n  perdure list\n" in printed
    assert len(list((whole.folder / ".perdure" / "runs").glob("demo-*/artifacts/critique.md"))) == 1


def check_new_project(whole: Installed) -> None:
    """Each step that it names works there."""
    said = whole.run("perdure", "new", "shop")
    assert "pip install" not in said
    shop = whole.folder / "shop"
    assert "2 passed" in whole.run("pytest", "-q", folder=shop)
    assert whole.run("perdure", "policy", "test", "tests/policy.yaml", folder=shop).count("ok  ") == 3
    played = whole.run("perdure", "crashtest", "tests/crash.yaml", "--sample", "3", folder=shop)
    assert "passed: cancel order A-1002" in played
    assert "✗" not in whole.run("perdure", "doctor", folder=shop)


def check_client_of_a_server(client: Installed, whole: Installed) -> None:
    """It starts, lists, shows and cancels runs of a worker elsewhere."""
    there = whole.folder / "elsewhere"
    there.mkdir()
    with subprocess.Popen(
        [str(whole.bin / "perdure"), "dev"],
        cwd=there,
        env=whole.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            printed = list(iter(server.stdout.readline, "Ctrl-C stops everything; runs continue at the next start.\n"))
            here = {"TEMPORAL_ADDRESS": next(line.split()[1] for line in printed if line.startswith("Temporal "))}
            # In the server's folder: on its own machine, an embedded server serves no other project.
            ask = partial(client.run, "perdure", env=here, folder=there)
            ask("run", "--id", "far", "--detach", "which page?")
            assert "far" in ask("list")
            assert "which page?" in ask("show", "far")
            assert ask("doctor", "--quick") == "✓ Temporal           answers, namespace default\n"
            ask("cancel", "far")
            assert "cancelled" in ask("watch", "far", code=4)
        finally:
            server.terminate()

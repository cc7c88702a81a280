"""A stranger's first two minutes: a fresh clone, `make demo`, and again. Installs the whole lock file once."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from perdure import cli
from tests.waiting import until

ROOT = Path(cli.__file__).parents[1]
GIT, MAKE = shutil.which("git"), shutil.which("make")
PATIENCE = 300.0  # seconds; the first demo downloads and installs everything
NOT_A_STRANGERS = ("TEMPORAL_", "PERDURE_", "ANTHROPIC_", "MAKE", "MFLAGS", "PYTEST_", "VIRTUAL_ENV")

pytestmark = [
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this copy is no git checkout, so it cannot be cloned"),
    pytest.mark.skipif(not (GIT and MAKE), reason="git and make are needed"),
]


@dataclass(frozen=True)
class Clone:
    """What the first and the second `make demo` in a fresh clone printed."""

    folder: Path
    printed: tuple[str, str]

    def run(self, *command: str) -> str:
        plain = {name: value for name, value in os.environ.items() if not name.startswith(NOT_A_STRANGERS)}
        python = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
        environment = {**plain, "PYTHON": str(python)}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Clone]:
    folder = tmp_path / "a fresh clone"
    subprocess.run([str(GIT), "clone", "--quiet", "--no-hardlinks", str(ROOT), str(folder)], check=True)
    fresh = Clone(folder, ("", ""))
    yield Clone(folder, (fresh.run("make", "demo"), fresh.run("make", "demo")))
    shutil.rmtree(folder / ".venv")  # a third of a gigabyte; pytest keeps the folders of three sessions


async def test_make_demo_works_in_a_fresh_clone_and_again_and_leaves_it_clean(clone: Clone) -> None:
    """One test, since a clone takes a minute, and each process of the tests that has a part of them would make one."""
    for printed in clone.printed:
        check_output(printed)
    check_second_demo(clone)
    check_named_commands(clone)
    assert clone.run("git", "status", "--porcelain") == ""
    if sys.platform == "linux":  # reads /proc
        await until(lambda: processes_in(clone.folder) == [])  # a server takes a second to end in order


def check_output(printed: str) -> None:
    assert "rehearsal model" in printed
    assert re.search(r"page\s+http://127\.0\.0\.1:\d+/namespaces/default/workflows/run:", printed)
    assert printed.count("✓ ") == 2
    assert "■ completed  2 steps" in printed
    assert "Marrow Quay Tide Mill" in printed.partition("■ completed")[2]
    assert "Traceback" not in printed


def check_second_demo(clone: Clone) -> None:
    assert "setting up" in clone.printed[0]
    assert "setting up" not in clone.printed[1]
    written = list((clone.folder / ".perdure" / "runs").glob("*/artifacts/critique.md"))
    assert len(written) == 2
    assert len(clone.run(".venv/bin/perdure", "list", "--json").splitlines()) == 2


def check_named_commands(clone: Clone) -> None:
    named = re.findall(r"^  (\.venv/bin/perdure .+)$", clone.printed[1], re.MULTILINE)
    assert named
    for command in named:
        assert "Usage: perdure" in clone.run(*command.split()[:2], "--help")


def processes_in(folder: Path) -> list[str]:
    """The command lines of processes that work in a folder, or run a program of it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            where = (process / "cwd").readlink()
            command = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it has ended, or is somebody else's
            continue
        if where.is_relative_to(folder) or str(folder) in command:
            found.append(command)
    return found

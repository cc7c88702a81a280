"""A clone in a path with a blank, and in a long one: one test of each kind of process runs there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import cli

ROOT = Path(cli.__file__).parents[1]
GIT = shutil.which("git")
PATIENCE = 300.0
KINDS = (
    "tests/test_preloaded.py::test_signals_that_the_parent_ignores_stay_ignored",
    "tests/e2e/test_live_terminal.py::test_ctrl_c_leaves_the_terminal_as_it_was",
    "tests/e2e/test_mcp.py::test_a_run_uses_a_server_and_leaves_none_behind",
    "tests/e2e/test_chat.py::test_one_message_and_its_answer",
    "tests/e2e/test_devserver.py::test_sigkill_of_the_only_user_ends_the_server",
)


@pytest.mark.skipif(not (GIT and (ROOT / ".git").exists()), reason="this copy cannot be cloned")
@pytest.mark.parametrize("name", ["a clone with blanks", f"{'l' * 100}/{'m' * 100}"], ids=["blanks", "long"])
def test_the_tests_run_in_any_path(tmp_path: Path, name: str) -> None:
    """With the environment of this checkout: what is installed does not depend on the path of the clone."""
    clone = tmp_path / name
    clone.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([str(GIT), "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
    (clone / ".venv").symlink_to(sys.prefix)
    plain = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [
            str(clone / ".venv" / "bin" / "python"),
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            *KINDS,
        ],
        cwd=clone,
        env=plain,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout

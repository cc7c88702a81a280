"""The sources of the gateway's page: types, format, and libraries that are the ones of their lock."""

import shutil
import subprocess
from pathlib import Path

import pytest

from perdure.gateway.app import PAGE, PAGE_FILES
from tests.page.vendor import PACKAGES, VENDOR, read_lock, sha256_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NOT_LOCKED = {"vendor.lock", *(path.name for path in VENDOR.glob("*.d.mts"))}  # ours: the types that the page uses


def npm_tool(name: str, *args: str) -> None:
    """Run a tool of tests/page to its end; it must find no fault."""
    path = HERE / "node_modules" / ".bin" / name
    if shutil.which("node") is None or not path.exists():
        pytest.skip(f"{name} is not installed: npm ci --prefix tests/page")
    done = subprocess.run([str(path), *args], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_types_of_the_page_fit() -> None:
    npm_tool("tsc", "-p", "tests/page")


def test_the_page_is_formatted() -> None:
    files = sorted(str(path) for path in PAGE.glob("*.js"))
    npm_tool("prettier", "--config", "tests/page/prettier.json", "--check", *files)


def test_the_libraries_are_the_files_of_their_lock() -> None:
    lock = read_lock()
    assert {name: row["version"] for name, row in lock.items()} == {name: each[0] for name, each in PACKAGES.items()}
    locked = {file: sha256 for row in lock.values() for file, sha256 in row["sha256"].items()}
    assert {path.name: sha256_of(path) for path in VENDOR.iterdir() if path.name not in NOT_LOCKED} == locked


def test_only_what_a_browser_reads_is_served() -> None:
    assert {Path(name).suffix for name in PAGE_FILES} == {".html", ".js", ".mjs", ".css", ".svg"}
    assert PAGE_FILES.keys() >= {"index.html", "app.js", "app.css", "icon.svg", "vendor/preact.mjs"}

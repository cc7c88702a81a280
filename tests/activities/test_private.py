"""What Perdure keeps is for its own user, whatever the umask; a file that has another name elsewhere is refused."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.activities.security import create_private, make_private
from perdure.activities.storage.store import LocalStore
from perdure.activities.storage.workspace import OutsideWorkspaceError, Workspace, ignore_special_files
from perdure.devserver import embedded_server
from perdure.features.follow_ups.contract import Outbound
from perdure.features.follow_ups.outbox import FILE, LogOutbox


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    paths = [folder, *folder.rglob("*")]
    return sorted(p.name for p in paths if not p.is_symlink() and stat.S_IMODE(p.stat().st_mode) & 0o077)


async def test_what_is_written_is_private_whatever_the_umask(tmp_path: Path) -> None:
    home = tmp_path / ".perdure"
    async with embedded_server(home):
        workspace = Workspace(home / "runs" / "r1")
        workspace.create()
        workspace.write("a/b.txt", b"x")
        workspace.append_line("trace.jsonl", "{}")
        LocalStore(workspace).write("segment.json", b"x")
        LocalStore(workspace).create("ledger/1", b"x")
        await LogOutbox(home).send(Outbound(channel_id="x", text="y"), "k")
        create_private(home / "worker.log")
        assert {"temporal.db", "temporal.log", "server.json", "ports.json", FILE} <= {p.name for p in home.iterdir()}
        assert open_to_others(home) == []


def test_what_was_open_to_others_is_closed_and_links_are_left(tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    (home / "runs" / "r").mkdir(parents=True)
    (home / "runs" / "r" / "trace.jsonl").touch()
    outside.touch()
    (home / "link").symlink_to(outside)
    make_private(home)
    assert open_to_others(home) == []
    assert stat.S_IMODE(outside.stat().st_mode) == 0o666


def test_a_hard_link_in_a_workspace_is_refused(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "run")
    workspace.create()
    (tmp_path / "secret").write_text("s")
    (workspace.root / "s.txt").hardlink_to(tmp_path / "secret")
    with pytest.raises(OutsideWorkspaceError, match="a hard link"):
        workspace.open("s.txt")
    with pytest.raises(OutsideWorkspaceError, match="a hard link"):
        workspace.append_line("s.txt", "x")


def test_the_files_of_a_run_have_a_limit_by_count_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace(tmp_path / "run")
    workspace.create()
    monkeypatch.setattr("perdure.activities.storage.workspace.MAX_RUN_FILES", 3)
    monkeypatch.setattr("perdure.activities.storage.workspace.MAX_RUN_BYTES", 100)
    for name in ("a", "b/c", "artifacts/d"):
        workspace.write(name, b"x" * 30)
    with pytest.raises(OutsideWorkspaceError, match="this run has 3 files, which is the limit"):
        workspace.write("e", b"x")
    workspace.write("a", b"y" * 30)
    with pytest.raises(OutsideWorkspaceError, match="more than 100 bytes"):
        workspace.write("b/c", b"x" * 41)
    workspace.write_own("memory.md", b"x" * 200)  # the runtime's own are never refused


def test_a_run_that_goes_on_from_another_takes_over_no_link(tmp_path: Path) -> None:
    (tmp_path / "own.md").write_text("mine", encoding="utf-8")
    secret = tmp_path / "folder" / "secret"
    (tmp_path / "folder").mkdir()
    secret.touch()
    (tmp_path / "linked.md").hardlink_to(secret)
    (tmp_path / "soft.md").symlink_to(tmp_path / "own.md")
    assert set(ignore_special_files(str(tmp_path), ["own.md", "linked.md", "soft.md", "folder"])) == {
        "linked.md",
        "soft.md",
    }

"""`mcp.lock.json` is read strictly and written whole."""

import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from perdure.activities.storage.workspace import SafeDir
from perdure.contracts.tool import Pin
from perdure.features.mcp.activities.lock import (
    LOCK_FILE_NAME,
    LockFileError,
    accept_new_servers,
    change_lock,
    read_lock,
)
from perdure.features.mcp.rules import pin_tool

LOOK = pin_tool("Looks ü.", {"type": "object", "properties": {"at": {"type": "string"}}}, {"readOnlyHint": True})


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / LOCK_FILE_NAME
    assert read_lock(path) == {}
    assert accept_new_servers(path, {"s": {"look": LOOK}}) == {"s": {"look": LOOK}}
    assert read_lock(path) == {"s": {"look": LOOK}}
    file = json.loads(path.read_text())
    assert file["servers"]["s"]["tools"]["look"] == {
        "description": "Looks ü.",
        "inputSchema": {"type": "object", "properties": {"at": {"type": "string"}}},
        "annotations": {"readOnlyHint": True},
        "sha256": LOOK.sha256,
    }
    assert os.listdir(tmp_path) == [LOCK_FILE_NAME]  # noqa: PTH208 - with what is hidden


def test_what_was_seen_first_stays(tmp_path: Path) -> None:
    path = tmp_path / LOCK_FILE_NAME
    accept_new_servers(path, {"s": {"look": LOOK}})
    assert accept_new_servers(path, {"s": {}, "t": {}}) == {"s": {"look": LOOK}, "t": {}}


def test_nothing_is_written_where_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / LOCK_FILE_NAME
    accept_new_servers(path, {"s": {"look": LOOK}})
    before = path.stat().st_ino
    accept_new_servers(path, {"s": {}})
    assert path.stat().st_ino == before


def test_writers_at_the_same_time_lose_nothing_of_each_other(tmp_path: Path) -> None:
    path = tmp_path / LOCK_FILE_NAME
    threads = [threading.Thread(target=accept_new_servers, args=(path, {f"s{n}": {"look": LOOK}})) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read_lock(path)) == sorted(f"s{n}" for n in range(16))


def test_a_folder_that_cannot_be_written_holds_for_this_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(SafeDir, "write", refuses)
    with caplog.at_level(logging.WARNING):
        assert accept_new_servers(tmp_path / LOCK_FILE_NAME, {"s": {"look": LOOK}}) == {"s": {"look": LOOK}}
    assert "cannot be written (Permission denied)" in caplog.text
    assert not (tmp_path / LOCK_FILE_NAME).exists()


def test_a_write_that_breaks_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / LOCK_FILE_NAME
    accept_new_servers(path, {"s": {"look": LOOK}})

    def breaks(_: int) -> None:
        raise OSError(28, "No space left on device")

    def take(pins: dict[str, dict[str, Pin]]) -> None:
        pins["t"] = {}

    monkeypatch.setattr(os, "fsync", breaks)
    with pytest.raises(OSError, match="No space"):
        change_lock(path, take)
    assert read_lock(path) == {"s": {"look": LOOK}}
    assert os.listdir(tmp_path) == [LOCK_FILE_NAME]  # noqa: PTH208 - with what is hidden


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "Invalid JSON"),
        ("[]", "Input should be an object"),
        ('{"version": 2}', "version"),
        ('{"servers": {"s": {"tools": {"t": {"sha256": "x"}}}}}', "servers.s.tools.t"),
        ('{"servers": {}, "more": 1}', "more"),
    ],
)
def test_an_invalid_file_is_reported_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / LOCK_FILE_NAME
    path.write_text(text)
    with pytest.raises(LockFileError, match=said) as caught:
        read_lock(path)
    assert "\n" not in str(caught.value)


def test_a_definition_that_was_edited_by_hand_is_refused(tmp_path: Path) -> None:
    path = tmp_path / LOCK_FILE_NAME
    accept_new_servers(path, {"s": {"look": LOOK}})
    path.write_text(path.read_text().replace("Looks", "Overlooks"))
    with pytest.raises(LockFileError, match=r"s\.look was edited"):
        read_lock(path)

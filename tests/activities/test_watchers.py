"""A run is watched as long as one of its watchers lives, as every worker on the shared folder sees it."""

import asyncio
import os
from pathlib import Path

import pytest

from perdure.activities.storage import watchers
from perdure.activities.storage.watchers import WATCHED_FOLDER, WatchedRuns, keep_watched


class Clock:
    """The worker's clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    async def check(self, watched: WatchedRuns, run_id: str = "a") -> bool:
        """Return what the next check of the worker finds."""
        self.now += watchers.CHECK_EVERY
        return await watched.has(run_id)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watchers, "monotonic", clock)
    return clock


async def until_marked(workspaces: Path, marks: int) -> list[Path]:
    folder = workspaces / WATCHED_FOLDER
    while len(found := list(folder.iterdir()) if folder.is_dir() else []) < marks:  # noqa: ASYNC110 - of files
        await asyncio.sleep(0.01)
    return found


async def test_a_run_is_watched_until_its_last_watcher_leaves(tmp_path: Path, clock: Clock) -> None:
    watched = WatchedRuns(tmp_path)
    assert not await clock.check(watched)
    async with keep_watched(tmp_path, "a"):
        async with keep_watched(tmp_path, "a"):
            await until_marked(tmp_path, 2)
            assert await clock.check(watched)
            assert not await clock.check(watched, "b")
        assert await clock.check(watched)
    assert not await clock.check(watched)
    assert await until_marked(tmp_path, 0) == []


async def test_a_watcher_that_was_killed_is_forgotten_and_its_file_removed(tmp_path: Path, clock: Clock) -> None:
    watched = WatchedRuns(tmp_path)
    (tmp_path / WATCHED_FOLDER).mkdir()
    (tmp_path / WATCHED_FOLDER / "a~00000000").touch()
    assert await clock.check(watched)
    clock.now += watchers.LEASE
    assert not await clock.check(watched)
    assert await until_marked(tmp_path, 0) == []


@pytest.mark.parametrize("skew", [-7 * 86400, 7 * 86400])
async def test_the_clock_of_a_watcher_may_be_wrong(tmp_path: Path, clock: Clock, skew: float) -> None:
    watched = WatchedRuns(tmp_path)
    (tmp_path / WATCHED_FOLDER).mkdir()
    mark = tmp_path / WATCHED_FOLDER / "a~00000000"
    mark.touch()
    for touched in range(5):
        os.utime(mark, (0, 1_800_000_000 + skew + touched * watchers.TOUCH_EVERY))
        assert await clock.check(watched)
        clock.now += watchers.LEASE - watchers.CHECK_EVERY
    assert await clock.check(watched)


async def test_a_run_whose_id_is_no_name_of_a_file_is_watched_too(tmp_path: Path, clock: Clock) -> None:
    run_id = "../~a/" + "b" * 300
    async with keep_watched(tmp_path, run_id):
        await until_marked(tmp_path, 1)
        assert await clock.check(WatchedRuns(tmp_path), run_id)
    assert os.listdir(tmp_path) == [WATCHED_FOLDER]  # noqa: PTH208 - names


async def test_who_may_not_write_there_watches_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with keep_watched(tmp_path / "file", "a"):
        pass
    assert not await WatchedRuns(tmp_path / "file").has("a")


async def test_a_worker_checks_once_for_all_its_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, checks = 1000.0, list[int]()
    monkeypatch.setattr(watchers, "monotonic", lambda: now)
    watched = WatchedRuns(tmp_path)
    listing = watched._list_runs

    def check() -> frozenset[str]:
        checks.append(1)
        return listing()

    monkeypatch.setattr(watched, "_list_runs", check)
    for run in range(100):
        assert not await watched.has(str(run))
    assert len(checks) == 1
    now += watchers.CHECK_EVERY
    await watched.has("a")
    assert len(checks) == 2

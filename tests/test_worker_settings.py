"""`[worker]` in `perdure.toml`: how much a worker does at once, and what is refused in one line."""

from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

import worker
from settings import ProjectError, load_settings


class Seen(Exception):
    """With what a worker was to be made."""


async def made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    def see(*_: Any, **options: Any) -> None:
        raise Seen(options)

    monkeypatch.setattr(worker, "Worker", see)
    client = await Client.connect("127.0.0.1:1", lazy=True)
    with pytest.raises(Seen) as seen:
        async with worker.run_worker(client, load_settings({}, folder)):
            pass
    options: dict[str, Any] = seen.value.args[0]
    return options


@pytest.mark.parametrize(
    ("said", "activities", "runs"),
    [("", 100, 1000), ("[worker]\nmax_concurrent_activities = 7\nmax_cached_workflows = 0\n", 7, 0)],
)
async def test_a_worker_does_and_keeps_as_much_as_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, activities: int, runs: int
) -> None:
    (tmp_path / "perdure.toml").write_text(said, encoding="utf-8")
    options = await made(tmp_path, monkeypatch)
    assert (options["max_concurrent_activities"], options["max_cached_workflows"]) == (activities, runs)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("max_concurrent_activities = 0", "worker.max_concurrent_activities: "),
        ("max_cached_workflows = -1", "worker.max_cached_workflows: "),
        ("max_activities = 5", "worker.max_activities: "),
    ],
)
def test_what_no_worker_could_be_is_refused(tmp_path: Path, said: str, wrong: str) -> None:
    (tmp_path / "perdure.toml").write_text(f"[worker]\n{said}\n", encoding="utf-8")
    with pytest.raises(ProjectError, match=f"perdure.toml, line 2: {wrong}"):
        load_settings({}, tmp_path)

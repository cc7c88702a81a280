"""`[worker]` in `perdure.toml`: how much a worker does at once, and what is refused in one line."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.worker import PollerBehavior, PollerBehaviorAutoscaling, PollerBehaviorSimpleMaximum

from perdure.process import worker
from perdure.process.project import display_project
from perdure.settings import Settings
from tests.projects import load_project, rejection_line


class Seen(Exception):
    """With what a worker was to be made."""


async def worker_options(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    def see(*_: Any, **options: Any) -> None:
        raise Seen(options)

    monkeypatch.setattr(worker, "Worker", see)
    client = await Client.connect("127.0.0.1:1", lazy=True)
    with pytest.raises(Seen) as seen:
        async with worker.run_worker(client, settings):
            pass
    options: dict[str, Any] = seen.value.args[0]
    return options


@pytest.mark.parametrize(
    ("said", "activities", "tasks", "runs"),
    [
        ("", 500, 8, 1000),
        (
            "[worker]\nmax_concurrent_activities = 7\nmax_concurrent_workflow_tasks = 9\nmax_cached_workflows = 0\n",
            7,
            9,
            0,
        ),
    ],
)
async def test_a_worker_uses_the_configured_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, activities: int, tasks: int, runs: int
) -> None:
    options = await worker_options(load_project(tmp_path, said), monkeypatch)
    assert (options["max_concurrent_activities"], options["max_cached_workflows"]) == (activities, runs)
    assert options["max_concurrent_workflow_tasks"] == tasks


AUTOSCALING = PollerBehaviorAutoscaling()


@pytest.mark.parametrize(
    ("said", "sticky", "grace", "pollers"),
    [
        ("", 5, 30, AUTOSCALING),
        ('[worker]\nsticky_timeout = "2s"\ngrace = "10m"\npollers = 7\n', 2, 600, PollerBehaviorSimpleMaximum(7)),
    ],
)
async def test_a_worker_polls_and_stops_as_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, sticky: int, grace: int, pollers: PollerBehavior
) -> None:
    options = await worker_options(load_project(tmp_path, said), monkeypatch)
    times = [options["sticky_queue_schedule_to_start_timeout"], options["graceful_shutdown_timeout"]]
    assert times == [timedelta(seconds=sticky), timedelta(seconds=grace)]
    assert options["workflow_task_poller_behavior"] == options["activity_task_poller_behavior"] == pollers


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("pollers = 1", "worker.pollers: "),
        ('grace = "0s"', "worker.grace: "),
        ("max_concurrent_activities = 0", "worker.max_concurrent_activities: "),
        ("max_concurrent_workflow_tasks = 1", "worker.max_concurrent_workflow_tasks: "),
        ("max_cached_workflows = -1", "worker.max_cached_workflows: "),
        ("max_activities = 5", "worker.max_activities: "),
        ('heartbeat = "500ms"', "worker.heartbeat: "),
        ("heartbeat = 601", "worker.heartbeat: "),
    ],
)
def test_wrong_worker_settings_are_rejected(tmp_path: Path, said: str, wrong: str) -> None:
    assert f"perdure.toml, line 2: {wrong}" in rejection_line(tmp_path, f"[worker]\n{said}\n")


async def test_reads_are_fused_as_the_project_says_or_its_agent(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "plain.md").write_text("---\nfuse_reads: false\n---\nBe plain.\n")
    settings = load_project(tmp_path, "[worker]\nfuse_reads = true\n")
    async with display_project(settings) as project:
        fuses = {name: agent.fuse_reads for name, agent in project.agents.items()}
    assert (project.fuse_reads, fuses["default"], fuses["plain"]) == (True, None, False)

"""The example of a feature in another package, installed beside the product and named by a project."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.testkit.model_server import ScriptedModel, calls, says
from tests.e2e.projects import ROOT, MakeProject, Project, Served, use_model
from tests.waiting import until

DOORS = (
    ("watch", "p1"),
    ("watch", "p1", "--json"),
    ("trace", "p1"),
    ("trace", "p1", "--export", "-"),
    ("list",),
    ("show", "p1"),
    ("replay", "p1", "--model", "scripted", "--json"),
)
PAUSE = {"duration": "2d", "reason": "until the parcel is there"}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the example is installed."""
    copy, target = tmp_path_factory.mktemp("copy") / "pause", tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "examples" / "pause", copy)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(target), str(copy)], check=True)
    return target


def _append(project: Project, text: str) -> None:
    project.write("perdure.toml", (project.folder / "perdure.toml").read_text() + text)


@pytest.fixture
def paused(make_project: MakeProject, package: Path) -> Iterator[Project]:
    def reply(body: dict[str, Any]) -> Any:
        return says("rested") if "seconds have passed" in json.dumps(body) else calls(("pause", PAUSE))

    with ScriptedModel(reply) as model:
        project = make_project(PYTHONPATH=str(package), **use_model(model))
        _append(project, '\n[features]\nuse = ["pause"]\n[pause]\nmost = "300ms"\n')
        yield project


def test_an_agent_pauses_for_as_long_as_the_project_allows(paused: Project) -> None:
    done = paused.perdure("run", "--json", "--id", "p1", "rest")
    events = done.rows()
    assert (done.code, "rested" in json.dumps(events[-1])) == (0, True), done
    shown = {door: paused.perdure(*door) for door in DOORS}
    assert [(door, result) for door, result in shown.items() if result.code != 0] == []
    replies = [row for row in shown["watch", "p1", "--json"].rows() if row.get("type") == "model_replied"]
    assert ["pause" in line for reply in replies for line in reply["calls"]] == [True]  # the page reads the same event
    assert [door for door, result in shown.items() if "pause" not in result.out] == [("list",), ("show", "p1")], shown


def test_a_dry_run_pauses_as_it_changes_nothing(paused: Project) -> None:
    done = paused.perdure("run", "--dry-run", "--id", "p2", "rest")
    assert (done.code, "→ pause" in done.out) == (0, True), done


def test_doctor_names_the_features_in_use(paused: Project) -> None:
    assert "pause (perdure-pause 0.1)" in paused.perdure("doctor").out


def test_a_project_that_does_not_name_it_knows_no_pause(make_project: MakeProject, package: Path) -> None:
    project = make_project(PYTHONPATH=str(package), PERDURE_MODEL="rehearsal")
    _append(project, '\n[pause]\nmost = "1s"\n')
    assert "pause" in project.perdure("agents").error(), "the table of a feature that is not used is unknown"


async def test_workers_of_one_queue_that_differ_are_reported(served: Served, package: Path) -> None:
    project = served.project
    before = (project.folder / "perdure.toml").read_text()

    def is_reported() -> bool:
        checked = served.perdure("doctor", PYTHONPATH=str(package))
        return checked.code == 1 and "workers of task queue" in checked.out

    with project.worker(TEMPORAL_ADDRESS=served.address):
        assert "differ" not in served.perdure("doctor").out
        _append(project, '\n[features]\nuse = ["pause"]\n')
        try:
            with project.worker(TEMPORAL_ADDRESS=served.address, PYTHONPATH=str(package)):
                await until(lambda: asyncio.to_thread(is_reported))  # once the server has its first poll
        finally:
            (project.folder / "perdure.toml").write_text(before)

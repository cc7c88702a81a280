"""The benchmark runs, and tells of every figure; what the figures are is for a quiet machine to say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHandle

from bench import peer
from bench.__main__ import main as benchmark
from bench.peer import NAMES, Dead, attempt
from bench.peer_rows import _cells
from bench.side import Report, Side
from bench.work import Work
from perdure import cli

ROOT = Path(cli.__file__).parents[1]


def test_the_quick_benchmark_measures_both_sides_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    command = [sys.executable, "-m", "bench", "--quick", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["figure"].partition(",")[0]: row for row in json.loads(path.read_text(encoding="utf-8"))}
    steps = {"history bytes", "history events a step", "wall a step", "worker CPU a step"}
    assert steps | {"worker killed", "billable actions a step"} <= rows.keys()
    finished = next(row for figure, row in rows.items() if "T(" in figure and row["target"] == "all there")
    assert finished["met"]


def test_the_benchmark_of_a_mailbox_tells_what_a_file_costs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.mail", "30"], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30 files in" in done.stdout


def test_the_benchmark_of_many_tells_what_each_level_takes() -> None:
    command = [sys.executable, "-m", "bench.scale", "runs", "84", "--rest", "0.1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    levels = [line.split()[0] for line in done.stdout.splitlines() if line.split()[0].isdigit()]
    assert levels == ["21", "42", "63", "84"]


def refusal(option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The last line of what the benchmark says to it."""
    monkeypatch.setattr(sys, "argv", ["bench", option])
    with pytest.raises(SystemExit) as refused:
        benchmark()
    assert refused.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_an_unknown_peer_is_refused_in_one_line_with_those_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refusal("--peer=nobody", monkeypatch, capsys)
    assert "nobody" in error
    assert [name for name in NAMES if name not in error] == []


@pytest.mark.parametrize("option", ["--repeats=0", "--workers=-1", "--long=7", "--long=many"])
def test_a_size_that_measures_nothing_is_refused_in_one_line(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, _, given = option.partition("=")
    error = refusal(option, monkeypatch, capsys)
    assert f"{name}: '{given}' is not a whole number of at least" in error


def test_each_peer_has_a_worker_and_a_lock() -> None:
    workers = {path.stem for path in (ROOT / "bench" / "peers").glob("[!_]*.py")}
    assert workers == set(NAMES)


class Deaf(Side):
    """Its runs come no further than their first event, as nobody works on its queue."""

    async def start(self, work: Work) -> WorkflowHandle[Any, Any]:
        return await self.client.start_workflow("Peer", id=f"deaf:{uuid4().hex}", task_queue=self.queue)

    async def report(self) -> Report:
        return Report()


async def test_a_run_without_progress_is_ended_and_counted_as_dead(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "STALLED", 0.2)
    assert await attempt(Deaf("deaf", client, uuid4().hex, tmp_path, []), Work(3)) == Dead(0)


def test_workers_report_as_one() -> None:
    one = Report(cpu=0.5, model=[1.0, 4.0], tool=[(2.0, 10.0), (5.0, 10.4)])
    two = Report(cpu=0.25, model=[3.0], tool=[(3.5, 7.1)])
    report = Report.joined([one, two, Report()])
    assert (report.cpu, report.model) == (0.75, [1.0, 3.0, 4.0])
    assert [(at, round(cpu, 1)) for at, cpu in report.tool] == [(2.0, 17.1), (3.5, 17.1), (5.0, 17.5)]


def test_a_peer_that_died_once_has_no_ratio() -> None:
    turns: list[dict[str, float | Dead]] = [{"raw": 2.0, "a": 4.0, "b": 5.0}, {"raw": 2.0, "a": 8.0, "b": Dead(48)}]
    assert _cells(turns, "{:.0f} ms".format) == {"raw": "2 ms", "a": "×3.00", "b": "dies at 48"}


def test_an_environment_that_cannot_be_made_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr("sys.executable", "false")
    with pytest.raises(SystemExit, match=r"^bench: \.bench/\w+ could not be made; leave it out with --peer$"):
        peer.environment(NAMES[0])

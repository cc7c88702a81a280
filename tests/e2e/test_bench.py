"""The benchmark runs, and tells of every figure; what the figures are is for a quiet machine to say."""

import json
import subprocess
import sys
from pathlib import Path

import cli

ROOT = Path(cli.__file__).parent


def test_the_quick_benchmark_measures_both_sides_and_loses_nothing(tmp_path: Path) -> None:
    told = tmp_path / "rows.json"
    command = [sys.executable, "-m", "bench", "--quick", "--json", str(told)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["figure"].partition(",")[0]: row for row in json.loads(told.read_text(encoding="utf-8"))}
    assert {"history bytes", "history events a step", "wall a step", "worker CPU a step"} <= rows.keys()
    finished = next(row for figure, row in rows.items() if "T(" in figure and row["target"] == "all there")
    assert finished["met"]


def test_the_benchmark_of_a_mailbox_tells_what_a_file_costs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.mail", "30"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30 files in" in done.stdout

"""`python -m bench.crash` with Perdure's side alone: each moment once."""

import subprocess
import sys
from pathlib import Path

from bench.crash.results import Results
from bench.crash.server import Moment
from bench.crash.trial import Variant
from perdure import cli

ROOT = Path(cli.__file__).parents[1]


def test_each_moment_is_hit_and_the_bill_is_paid_once(tmp_path: Path) -> None:
    told = tmp_path / "crash.json"
    command = [
        sys.executable,
        "-m",
        "bench.crash",
        "--sides",
        "perdure",
        "--times",
        "1",
        "--at-once",
        "3",
        "--no-costs",
    ]
    done = subprocess.run(
        [*command, "--results", str(told)], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    trials = Results.load(told).trials
    tried = {(trial.variant, trial.moment) for trial in trials if trial.is_hit}
    plain = {(Variant.plain.value, moment.value) for moment in Moment}
    assert tried == plain | {(Variant.keyed.value, moment) for moment in ("before", "in", "after")}, done.stdout
    assert {(trial.end, trial.payments) for trial in trials} == {("ended", 1)}
    asked = {(trial.variant, trial.moment) for trial in trials if trial.asked_of is not None}
    assert asked == {("plain", "before"), ("plain", "in"), ("plain", "after")}

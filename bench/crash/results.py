"""The file of results: what was tried with which versions, written after each trial, so that a pass can be resumed."""

import json
import os
import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.crash.server import Moment
from bench.crash.sides import SIDES, Side
from bench.crash.trial import Case, Trial, Variant
from bench.peer import LOCKS
from bench.side import ROOT

FILE = ROOT / "bench" / "results" / "crash.json"


@dataclass(frozen=True)
class CostOfSteps:
    """Of the run without a kill, for each of its three steps: billable actions, bytes of record, seconds."""

    side: str
    actions: float
    size: float
    wall: float


@dataclass
class Results:
    path: Path
    trials: list[Trial] = field(default_factory=list)
    costs: dict[str, CostOfSteps] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    months: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path = FILE) -> "Results":
        """An absent file has no results."""
        if not path.is_file():
            return cls(path)
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        trials = [
            Trial(cell["side"], cell["variant"], cell["moment"], **trial | {"at_kill": tuple(trial["at_kill"])})
            for cell in read["cells"]
            for trial in cell["trials"]
        ]
        costs = {name: CostOfSteps(name, **cost) for name, cost in read["costs"].items()}
        return cls(path, trials, costs, read["versions"], read["months"])

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        self.save()

    def of(self, case: Case) -> list[Trial]:
        """The trials of a cell that were killed where they should be."""
        found = [each for each in self.trials if (each.side, each.variant, each.moment) == _key(case)]
        return [each for each in found if each.is_hit]

    def save(self) -> None:
        """In one piece, a trial a line."""
        month = f"{datetime.now(UTC):%Y-%m}"
        self.months = sorted({*self.months, month})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(self._written(), encoding="utf-8")
        partial.replace(self.path)

    def _written(self) -> str:
        head = {"machine": f"{platform.system()}, {os.cpu_count()} cores", "months": self.months}
        parts = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
        parts.append(f'"versions": {json.dumps(self.versions, indent=1)}')
        costs = {name: {k: v for k, v in asdict(cost).items() if k != "side"} for name, cost in self.costs.items()}
        parts.append(f'"costs": {json.dumps(costs, indent=1)}')
        parts.append('"cells": [\n' + ",\n".join(self._cells()) + "\n]")
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def _cells(self) -> Iterator[str]:
        for side, variant, moment in Counter((each.side, each.variant, each.moment) for each in self.trials):
            own = [each for each in self.trials if (each.side, each.variant, each.moment) == (side, variant, moment)]
            lines = ",\n".join(f" {json.dumps(_short(each))}" for each in own)
            yield f'{{"side": "{side}", "variant": "{variant}", "moment": "{moment}", "trials": [\n{lines}\n]}}'


def _key(case: Case) -> tuple[str, str, str]:
    return case.side, case.variant.value, case.moment.value


def _short(trial: Trial) -> dict[str, Any]:
    return {name: value for name, value in asdict(trial).items() if name not in ("side", "variant", "moment")}


def cases_of(side: Side) -> Iterator[Case]:
    """The cells of a side."""
    for moment in Moment:
        yield Case(side.name, Variant.plain, moment)
    in_the_call = (Moment.before, Moment.within, Moment.after)
    for variant in (Variant.keyed, *([Variant.single] if side.has_attempts else [])):
        for moment in in_the_call:
            yield Case(side.name, variant, moment)


def versions_of(side: Side) -> dict[str, str]:
    """Of its packages, as its environment's lock has them."""
    if side.peer is None:
        return {"perdure": version("perdure"), **{name: version(name) for name in side.packages}}
    lines = (LOCKS / f"{side.peer}.lock").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split()[0].split("==") for line in lines if "==" in line and not line.startswith(" "))
    return {name: pinned[name] for name in side.packages}


ALL_CASES = tuple(case for side in SIDES for case in cases_of(side))

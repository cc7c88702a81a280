"""What a scenario is given, and what it gives back."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.client import Client

from tests.chaos.auditor import Audit
from tests.chaos.environment import Environment, environment


@dataclass
class ScenarioContext:
    """What a scenario is given. `seed` decides everything that is random in it, but not what the machine does."""

    folder: Path
    seed: int
    client: Client
    short_history: Client  # of a server that suggests continue-as-new early

    @property
    def key(self) -> str:
        """For the task queue, and names of runs: scenarios share a server, and some of them their code."""
        return f"{self.folder.name.lower()}-{self.seed}"

    def environment(self, client: Client | None = None, **options: Any) -> AbstractAsyncContextManager[Environment]:
        number = len(list(self.folder.iterdir())) if self.folder.exists() else 0
        return environment(client or self.client, self.folder / str(number), self.seed, **options)


@dataclass
class Row:
    """A line of the page. `window` is the share of kills that left a call between its claim and its result."""

    scenario: str
    seed: int
    runs: int = 0
    faults: int = 0
    effects: int = 0
    duplicates: int = 0
    lost: int = 0
    in_doubt: int = 0
    window: float | None = None
    recovery: float = 0.0
    seconds: float = 0.0
    slowest: str = ""
    note: str = ""
    violations: list[str] = field(default_factory=list)


def row(it: Environment, found: Audit, note: str = "") -> Row:
    return Row(
        scenario="",
        seed=it.seed,
        runs=found.runs,
        faults=it.faults,
        effects=found.effects,
        duplicates=found.duplicates,
        lost=found.lost,
        in_doubt=found.in_doubt,
        window=it.in_window / it.kills if it.kills else None,
        recovery=found.recovery,
        slowest=found.slowest,
        note=note,
        violations=found.violations,
    )


def expect_no_doubt(it: Environment, found: Audit) -> None:
    """No worker died: nothing may be in doubt."""
    for asked in it.asked:
        found.wrong(f"{asked.run}: step {asked.step} was in doubt although its worker lived")

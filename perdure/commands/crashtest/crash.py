"""A crash test: the whole play, one play for each kill, and their verdicts."""

import asyncio
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from decisions.evaluation import failed_checks
from devserver import DevServer, embedded_server, remove_folder
from perdure.client.connection import connect
from perdure.commands.crashtest.case import CrashCase, open_script
from perdure.commands.crashtest.compare import PlayFacts, PlayVerdict, find_differences
from perdure.commands.crashtest.kills import EventRow, KillPoint, Target, kill_points, plan_kills
from perdure.commands.crashtest.play import FAILED_COMMAND, Play, PlayPlan
from perdure.process.supervisor import CRASH_LOOP
from settings import Settings

WHOLE_PATIENCE = 600.0  # seconds for the whole play
EXTRA_PATIENCE = 90.0  # seconds for a killed play, beyond three times the whole one
PLAYS_PER_SERVER = (
    4  # plays with the worker killed for each one with the server killed, which needs a server of its own
)


@dataclass(frozen=True)
class CrashOptions:
    """`targets` are what is killed, `sample` the number of plays (None: all), `jobs` the plays at a time."""

    targets: tuple[Target, ...]
    sample: int | None
    seed: int
    jobs: int


@dataclass
class CrashReport:
    """The result. `failed` are the checks of the whole play that do not hold; then nothing is killed."""

    case: CrashCase
    seed: int
    folder: Path
    whole: PlayFacts = field(default_factory=PlayFacts)
    failed: tuple[str, ...] = ()
    rows: list[EventRow] = field(default_factory=list)
    planned: int = 0  # kills that there are
    points: list[KillPoint] = field(default_factory=list)  # those that are played
    verdicts: dict[KillPoint, PlayVerdict] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def has_passed(self) -> bool:
        return not self.failed and not any(verdict.findings for verdict in self.verdicts.values())


@dataclass
class CrashTest:
    """Plays a case. `show` is called after each play."""

    case: CrashCase
    settings: Settings
    options: CrashOptions
    show: Callable[[CrashReport], None]

    async def run(self) -> CrashReport:
        """Return the report. The folders of the plays stay if it has not passed. Raises ProjectError."""
        root = Path(tempfile.mkdtemp(prefix="perdure-crashtest-"))
        began, report = time.monotonic(), CrashReport(self.case, self.options.seed, root)
        self._plan = PlayPlan(self.case, open_script(self.case, self.settings), self.settings, root)
        try:
            async with embedded_server(root / "server") as server:
                await self._play_whole(report, server)
                if not report.failed:
                    await self._play_kills(report, server, 3 * (time.monotonic() - began) + EXTRA_PATIENCE)
            report.seconds = time.monotonic() - began
        finally:
            if not report.seconds or report.has_passed:
                await remove_folder(root)
        return report

    async def _play_whole(self, report: CrashReport, server: DevServer) -> None:
        self.show(report)
        play = Play(self._plan, "crashtest-whole", await connect(server.address), server.address, report.folder)
        report.whole = await play.run(WHOLE_PATIENCE)
        if play.facts is None:
            report.failed = (report.whole.error or "",)
            return
        report.failed = failed_checks(self.case.expect, play.facts)
        if report.whole.check and report.whole.check.startswith(FAILED_COMMAND):
            report.failed = (*report.failed, f"check: {report.whole.check.strip()}")
        report.rows = [row for subtask, events in play.histories.items() for row in plan_kills(events, subtask)]
        every = kill_points(report.rows, self.options.targets)
        report.planned = len(every)
        chosen = set(every)
        if self.options.sample is not None and self.options.sample < len(every):
            chosen = set(Random(self.options.seed).sample(every, self.options.sample))  # noqa: S311 - a sample
        report.points = [point for point in every if point in chosen]

    async def _play_kills(self, report: CrashReport, server: DevServer, patience: float) -> None:
        workers = deque(point for point in report.points if point.target is Target.worker)
        servers = deque(point for point in report.points if point.target is Target.server)
        own_servers = min(max(1, self.options.jobs // PLAYS_PER_SERVER), len(servers))
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self.options.jobs, len(workers))):
                group.create_task(self._play_all(report, workers, server, report.folder / "server", patience))
            for number in range(own_servers):
                home = report.folder / f"server-{number}"
                group.create_task(self._play_on_own_server(report, servers, home, patience))

    async def _play_on_own_server(
        self, report: CrashReport, points: deque[KillPoint], home: Path, patience: float
    ) -> None:
        """Play on a server that is killed in each play, and comes back with its file."""
        async with embedded_server(home) as server:
            await self._play_all(report, points, server, home, patience)

    async def _play_all(
        self, report: CrashReport, points: deque[KillPoint], server: DevServer, home: Path, patience: float
    ) -> None:
        """Play what is left of `points`, which several tasks share."""
        client = await connect(server.address)
        while points:
            point = points.popleft()
            if point.target is Target.server:
                await asyncio.sleep(CRASH_LOOP)  # a server that dies sooner after its start is not started again
            began = time.monotonic()
            play = Play(self._plan, f"crashtest-{point.name}", client, server.address, home, point)
            facts = await play.run(patience, report.whole.check)
            report.verdicts[point] = PlayVerdict(
                point=point,
                # A call that a person was asked about, and gave up, may have happened or not.
                findings=() if facts.doubts and not facts.error else find_differences(report.whole, facts),
                asked=facts.doubts,
                seconds=time.monotonic() - began,
            )
            self.show(report)

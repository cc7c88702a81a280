"""The figures of peers. All sides take turns, as in `bench.rows`; each ratio is to raw-min of the same turn."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from statistics import median

from bench.actions import Actions
from bench.measure import Run, at_once
from bench.peer import Dead, attempt
from bench.rows import Sizes
from bench.side import Side
from bench.work import KIB, Work

Turn = dict[str, Run | Dead]  # what each side did


@dataclass(frozen=True)
class Figure:
    """Of a run. `as_is`: each side's number stands there, no ratio."""

    what: str
    of: Callable[[Run], float]
    shown: Callable[[float], str]
    as_is: bool = False


FIGURES = (
    Figure("history bytes", lambda run: run.size, "{:,.0f} B".format),
    Figure("history events a step", lambda run: run.events / run.work.steps, "{:.2f}".format, as_is=True),
    Figure("wall a step", lambda run: run.wall / run.work.steps * 1000, "{:.1f} ms".format),
    Figure("worker CPU a step", lambda run: run.report.cpu / run.work.steps * 1000, "{:.1f} ms".format),
)


@dataclass(frozen=True)
class PeerRow:
    """`cells` by side: raw-min's is a number, the others' are ratios to it, unless they are numbers, too."""

    figure: str
    cells: dict[str, str]


@dataclass(frozen=True)
class PeerBench:
    """`sides` begins with raw-min."""

    sides: list[Side]
    sizes: Sizes
    actions: Actions

    async def rows(self) -> AsyncIterator[PeerRow]:
        await self._turn(Work(3))  # what a process does first also pays for its imports
        for work in (Work(self.sizes.steps), Work(self.sizes.steps // 2, 20 * KIB)):
            turns = [await self._turn(work) for _ in range(self.sizes.repeats)]
            for figure in FIGURES:
                found = [{name: _of(run, figure.of) for name, run in turn.items()} for turn in turns]
                yield PeerRow(f"{figure.what}, {work}", _cells(found, figure.shown, as_is=figure.as_is))
        yield await self._at_once(Work(self.sizes.short))
        yield await self._actions(Work(self.sizes.short))
        yield await self._large(Work(self.sizes.steps, 20 * KIB))

    async def _turn(self, work: Work) -> Turn:
        return {side.name: await attempt(side, work) for side in self.sides}

    async def _at_once(self, work: Work) -> PeerRow:
        runs = self.sizes.runs
        rates: list[dict[str, float | Dead]] = [
            {side.name: await at_once(side, work, runs) for side in self.sides} for _ in range(self.sizes.repeats)
        ]
        return PeerRow(f"steps/s, {runs} × {work} at once", _cells(rates, "{:.0f}".format))

    async def _actions(self, work: Work) -> PeerRow:
        cells = {side.name: await self.actions.of(attempt(side, work)) / work.steps for side in self.sides}
        return PeerRow(f"billable actions a step, {work}", {name: f"{count:.2f}" for name, count in cells.items()})

    async def _large(self, work: Work) -> PeerRow:
        """Last, as a run that dies leaves its worker with work that nobody wants."""
        ends = {
            name: str(end) if isinstance(end, Dead) else "finishes" for name, end in (await self._turn(work)).items()
        }
        return PeerRow(str(work), ends)


def _of(run: Run | Dead, of: Callable[[Run], float]) -> float | Dead:
    return run if isinstance(run, Dead) else of(run)


def _cells(
    turns: list[dict[str, float | Dead]], shown: Callable[[float], str], *, as_is: bool = False
) -> dict[str, str]:
    floor = next(iter(turns[0]))
    return {
        name: _cell([(turn[floor], turn[name]) for turn in turns], shown if as_is or name == floor else None)
        for name in turns[0]
    }


def _cell(pairs: list[tuple[float | Dead, float | Dead]], shown: Callable[[float], str] | None) -> str:
    """A ratio where there is no `shown`. A side that died once has no figure, as it did less than the work."""
    alive = [(raw, own) for raw, own in pairs if not isinstance(raw, Dead) and not isinstance(own, Dead)]
    if len(alive) < len(pairs):
        return next(str(end) for pair in pairs for end in pair if isinstance(end, Dead))
    return shown(median(own for _, own in alive)) if shown else f"×{median(own / raw for raw, own in alive):.2f}"

"""The figures of the scorecard, each beside its target. Both sides take turns, so that noise hits them alike."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from statistics import median

from bench.actions import Actions
from bench.measure import Run, at_once, is_complete, parked, replay, run, taken_over
from bench.side import Side
from bench.work import KIB, Work

Pairs = list[tuple[Run, Run]]  # raw-min and ours
Figures = list[tuple[float, float]]


@dataclass(frozen=True)
class Row:
    """`raw` and `ours` as they read; `ratio` is the median of the pairs. `met` is None where there is no target."""

    figure: str
    raw: str
    ours: str
    ratio: float | None = None
    target: str = ""
    met: bool | None = None


@dataclass(frozen=True)
class Target:
    """What the ratio must be."""

    bound: float
    at_least: bool = False

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} ×{self.bound}"

    def met(self, ratio: float) -> bool:
        return ratio >= self.bound if self.at_least else ratio <= self.bound


BYTES = Target(1.15)
WALL = Target(1.2)
WALL_LARGE = Target(1.3)
CPU = Target(1.3)
REPLAY = Target(1.5)
THROUGHPUT = Target(0.9, at_least=True)
SIGNAL = Target(1.25)
FUSED_BYTES = Target(1.0)
FUSED_WALL = Target(0.65)
FUSED_CPU = Target(0.75)
FUSED_THROUGHPUT = Target(1.15, at_least=True)
MOST_EVENTS = 12.5  # a step
MOST_FUSED_EVENTS = 6.4
MOST_MISS = 0.1  # seconds
MOST_LOST = 5.5  # seconds until the runs of a killed worker go on
MOST_ACTIONS = 2.2  # a step
MOST_FUSED_ACTIONS = 1.35
MOST_ACTIONS_SLOW = 2.6  # with a model that takes its time
FLAT = 1.2  # of the last quarter over the first: what noise may add
MIN_DIFFERENCE = 10  # bytes a step by which a type of event must differ to be shown


@dataclass(frozen=True)
class Sizes:
    """How much is measured. `repeats` counts pairs of raw-min and ours; `runs` go at once, of `short` steps each."""

    repeats: int = 3
    steps: int = 100
    long: int = 400
    short: int = 20
    runs: int = 50
    questions: int = 20
    thinks: float = 10.0  # seconds; at most 12 cost no heartbeat


QUICK = Sizes(repeats=1, steps=12, long=40, short=5, runs=8, questions=3, thinks=1.0)


@dataclass(frozen=True)
class Bench:
    """`fused` is ours with `fuse_reads`."""

    raw: Side
    ours: Side
    fused: Side
    sizes: Sizes
    actions: Actions

    async def rows(self) -> AsyncIterator[Row]:
        """In the order of the scorecard."""
        for done in (done for pair in await self._pairs(Work(3), 1) for done in pair):
            await replay(done)  # what a process does first also pays for its imports
        steps, long = self.sizes.steps, self.sizes.long
        middle = await self._pairs(Work(steps))
        for row in (*_bytes_of(middle), _events_of(middle)):
            yield row
        yield _linear([*await self._pairs(Work(steps // 2), 1), middle[0], *await self._pairs(Work(2 * steps), 1)])
        yield _a_step("wall", middle, lambda done: done.wall, WALL)
        yield _a_step("worker CPU", middle, lambda done: done.report.cpu, CPU)
        for row in await self._fused(Work(steps)):
            yield row
        large = await self._pairs(Work(steps // 2, 20 * KIB))
        yield _a_step("wall", large, lambda done: done.wall, WALL_LARGE)
        yield await self._replay(middle)
        yield await self._at_once()
        for row in await self._parked():
            yield row
        yield await self._taken_over()
        yield await self._finishes(Work(long, 20 * KIB))
        for thinks, streams in ((0.0, False), (self.sizes.thinks, True), (self.sizes.thinks, False)):
            yield await self._actions(Work(self.sizes.short, thinks=thinks, streams=streams))
        yield await self._fused_actions(Work(self.sizes.short))
        for row in _growth(await self._pairs(Work(long))):
            yield row

    async def _pairs(self, work: Work, repeats: int | None = None, ours: Side | None = None) -> Pairs:
        side = ours or self.ours
        return [(await run(self.raw, work), await run(side, work)) for _ in range(repeats or self.sizes.repeats)]

    async def _fused(self, work: Work) -> list[Row]:
        """Reads fused with the next model call."""
        pairs = await self._pairs(work, ours=self.fused)
        short, runs = Work(self.sizes.short), self.sizes.runs
        both = [(await at_once(self.raw, short, runs), await at_once(self.fused, short, runs)) for _ in self._repeats]
        sizes = [(float(raw.size), float(fused.size)) for raw, fused in pairs]
        return [
            _compared(f"fused: history bytes, {work}", sizes, _bytes, FUSED_BYTES),
            _events_of(pairs, "fused: history events a step", MOST_FUSED_EVENTS),
            _a_step("wall", pairs, lambda done: done.wall, FUSED_WALL, "fused: "),
            _a_step("worker CPU", pairs, lambda done: done.report.cpu, FUSED_CPU, "fused: "),
            _compared(f"fused: steps/s, {runs} runs of {short} at once", both, "{:.0f}".format, FUSED_THROUGHPUT),
        ]

    async def _replay(self, pairs: Pairs) -> Row:
        both = [(await replay(raw), await replay(ours)) for raw, ours in pairs]
        return _compared(f"replay of {pairs[0][0].work}, cold", both, _ms, REPLAY)

    async def _at_once(self) -> Row:
        work, runs = Work(self.sizes.short), self.sizes.runs
        both = [(await at_once(self.raw, work, runs), await at_once(self.ours, work, runs)) for _ in self._repeats]
        return _compared(f"steps/s, {runs} runs of {work} at once", both, "{:.0f}".format, THROUGHPUT)

    async def _parked(self) -> list[Row]:
        work = Work(2 * self.sizes.steps, questions=self.sizes.questions)
        both = [(await parked(self.raw, work), await parked(self.ours, work)) for _ in self._repeats]
        answered = [(raw.answered, ours.answered) for raw, ours in both]
        missed = median(ours.missed for _, ours in both)
        return [
            _compared(f"signal to next model call, parked at {work}", answered, _ms, SIGNAL),
            Row(f"transcript miss at {work}", "", _ms(missed), None, f"≤ {_ms(MOST_MISS)}", missed <= MOST_MISS),
        ]

    async def _taken_over(self) -> Row:
        work = Work(self.sizes.short, questions=1)
        both = [(await taken_over(self.raw, work), await taken_over(self.ours, work)) for _ in self._repeats]
        raw, ours = (median(side) for side in zip(*both, strict=True))
        figure = f"worker killed, signal to next model call, {work}"
        return Row(figure, _ms(raw), _ms(ours), ours / raw, f"≤ {_ms(MOST_LOST)}", ours <= MOST_LOST)

    async def _finishes(self, work: Work) -> Row:
        done = await run(self.ours, work)
        complete = await is_complete(self.ours, done)
        said = f"{'all' if complete else 'NOT ALL'} there, {len(done.histories)} executions"
        return Row(f"{work} finishes, transcript complete", "", said, None, "all there", complete)

    async def _actions(self, work: Work) -> Row:
        """raw-min's model always answers at once: it sends no heartbeats in any case."""
        raw, ours = [await self.actions.of(run(side, work)) / work.steps for side in (self.raw, self.ours)]
        model = f"model {'streams' if work.streams else 'thinks'} {work.thinks:g} s" if work.thinks else "instant model"
        most = MOST_ACTIONS_SLOW if work.thinks else MOST_ACTIONS
        figure = f"billable actions a step, {work}, {model}"
        return Row(figure, f"{raw:.2f}", f"{ours:.2f}", ours / raw, f"≤ {most}", ours <= most)

    async def _fused_actions(self, work: Work) -> Row:
        fused = await self.actions.of(run(self.fused, work)) / work.steps
        figure = f"fused: billable actions a step, {work}"
        return Row(figure, "", f"{fused:.2f}", None, f"≤ {MOST_FUSED_ACTIONS}", fused <= MOST_FUSED_ACTIONS)

    @property
    def _repeats(self) -> range:
        return range(self.sizes.repeats)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _bytes(count: float) -> str:
    return f"{count:,.0f} B"


def _compared(figure: str, both: Figures, shown: Callable[[float], str], target: Target) -> Row:
    ratio = median(ours / raw for raw, ours in both)
    raw, ours = (shown(median(side)) for side in zip(*both, strict=True))
    return Row(figure, raw, ours, ratio, str(target), target.met(ratio))


def _a_step(what: str, pairs: Pairs, of: Callable[[Run], float], target: Target, shape: str = "") -> Row:
    work = pairs[0][0].work
    both = [(of(raw) / work.steps, of(ours) / work.steps) for raw, ours in pairs]
    return _compared(f"{shape}{what} a step, {work}", both, _ms, target)


def _bytes_of(pairs: Pairs) -> list[Row]:
    """In all, and where the difference is."""
    raw, ours = (done.sizes() for done in pairs[0])
    events = [event for event, size in ours.items() if abs(size - raw.get(event, 0)) > MIN_DIFFERENCE]
    return [
        _compared(f"history bytes, {pairs[0][0].work}", [(raw.size, ours.size) for raw, ours in pairs], _bytes, BYTES),
        _compared(
            "  as the server counts them", [(raw.described, ours.described) for raw, ours in pairs], _bytes, BYTES
        ),
        *(Row(f"  {event}, a step", _bytes(raw.get(event, 0)), _bytes(ours[event])) for event in events),
    ]


def _events_of(pairs: Pairs, figure: str = "history events a step", most: float = MOST_EVENTS) -> Row:
    raw, ours = (median(done.events / done.work.steps for done in side) for side in zip(*pairs, strict=True))
    return Row(figure, f"{raw:.2f}", f"{ours:.2f}", ours / raw, f"≤ {most}", ours <= most)


def _linear(pairs: Pairs) -> Row:
    """Linear: the steps that the longest run adds cost no more bytes each than those of the shortest run."""
    raw, ours = ("/".join(f"{done.size / done.work.steps:,.0f}" for done in side) for side in zip(*pairs, strict=True))
    short, middle, long = (ours for _, ours in pairs)
    added = (long.size - middle.size) / (long.work.steps - middle.work.steps)
    steps = "/".join(str(run.work.steps) for run, _ in pairs)
    linear = added <= short.size / short.work.steps
    return Row(f"history bytes a step, n = {steps}", raw, ours, target="linear", met=linear)


def _growth(pairs: Pairs) -> list[Row]:
    """Long runs in quarters. The ratio is ours alone: the last quarter over the first."""
    rows = []
    for index, what in enumerate(("wall", "worker CPU")):
        raw, ours = (
            [[quarter[index] for quarter in done.quarters()] for done in side] for side in zip(*pairs, strict=True)
        )
        growth = median(quarters[-1] / quarters[0] for quarters in ours)
        figure = f"{what} a step in quarters, {pairs[0][0].work}, ms"
        rows.append(Row(figure, _quarters(raw), _quarters(ours), growth, f"flat: ≤ ×{FLAT}", growth <= FLAT))
    return rows


def _quarters(runs: list[list[float]]) -> str:
    return "/".join(f"{median(quarter) * 1000:.1f}" for quarter in zip(*runs, strict=True))

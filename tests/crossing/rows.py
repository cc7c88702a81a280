"""What is crossed in pairs: options of a project and of a run, and the rows in which each pair of them is met."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from allpairspy import AllPairs

from tests.crossing.doors import DOORS

MCP = "MCP server"
PROJECT = {
    "fuse_reads": ("off", "on"),
    "encryption": ("off", "on"),
    "signed answers": ("off", "on"),
    "notices": ("off", "on"),
    "policy": ("none", "ask", "review"),
    "rotation": ("late", "early"),
}
RUN = {
    "wire": ("messages", "openai"),
    "pace": ("live", "batch"),
    "result": ("text", "typed"),
    "killed": ("never", "in a call", "at a question"),
    "start": ("CLI", "gateway", "client", "conversation", "MCP"),
    "answer": ("CLI", "gateway", "client", "Slack", "signal", "MCP"),
    "door": (*DOORS, MCP),
}
PARAMETERS: dict[str, Sequence[str]] = {**PROJECT, **RUN}
IMPOSSIBLE = ({"wire": "openai", "pace": "batch"},)  # the settings refuse it
Pair = tuple[tuple[str, str], tuple[str, str]]


@dataclass(frozen=True)
class Row:
    """One run: a value of each parameter."""

    number: int
    values: dict[str, str]

    def __getitem__(self, parameter: str) -> str:
        return self.values[parameter]

    @property
    def project(self) -> tuple[str, ...]:
        return _project_of(self.values)


def is_possible(values: dict[str, str]) -> bool:
    return not any(excluded.items() <= values.items() for excluded in IMPOSSIBLE)


def pairs_in(values: dict[str, str]) -> Iterator[Pair]:
    yield from combinations(values.items(), 2)


def all_pairs() -> set[Pair]:
    """Each pair of values that there can be."""
    return {
        ((one, value), (other, second))
        for one, other in combinations(PARAMETERS, 2)
        for value in PARAMETERS[one]
        for second in PARAMETERS[other]
        if is_possible({one: value, other: second})
    }


def make_rows() -> list[Row]:
    """Rows with each pair at least once. Few projects occur in them: each is a worker and a gateway to start."""
    projects = [tuple(row) for row in AllPairs(list(PROJECT.values()))]

    def fits(values: Sequence[str]) -> bool:
        start = tuple(values[: len(PROJECT)])
        known = any(start == project[: len(start)] for project in projects)
        return known and is_possible(dict(zip(PARAMETERS, values, strict=False)))

    found = [dict(zip(PARAMETERS, row, strict=True)) for row in AllPairs(list(PARAMETERS.values()), filter_func=fits)]
    missing = all_pairs() - {pair for values in found for pair in pairs_in(values)}
    for pair in sorted(missing):  # the filter leaves some out
        if not any(pair in pairs_in(values) for values in found):
            found.append(_with_pair(pair, found, projects))
    _lighten(found, projects)
    found.sort(key=lambda values: projects.index(_project_of(values)))
    return [Row(number, values) for number, values in enumerate(found, start=1)]


def _lighten(rows: list[dict[str, str]], projects: Sequence[tuple[str, ...]]) -> None:
    """Leave out kills that no pair needs, and spread the rows over the projects: a kill holds up all runs of one."""
    met = Counter(pair for values in rows for pair in pairs_in(values))

    def change(values: dict[str, str], **to: str) -> bool:
        lost, won = set(pairs_in(values)), set(pairs_in({**values, **to}))
        if any(met[pair] == 1 for pair in lost - won):
            return False
        met.subtract(lost - won)
        met.update(won - lost)
        values.update(to)
        return True

    for values in rows:
        change(values, killed="never")
    sizes = Counter(_project_of(values) for values in rows)
    for values in rows:
        project = _project_of(values)
        for other in sorted(projects, key=lambda other: sizes[other]):
            if sizes[other] < sizes[project] and change(values, **dict(zip(PROJECT, other, strict=True))):
                sizes.update({other: 1, project: -1})
                break


def _project_of(values: dict[str, str]) -> tuple[str, ...]:
    return tuple(values[name] for name in PROJECT)


def _with_pair(pair: Pair, rows: Sequence[dict[str, str]], projects: Sequence[tuple[str, ...]]) -> dict[str, str]:
    """Some row with this pair in it, of one of the projects."""
    for project in projects:
        for row in rows:
            values = {**row, **dict(zip(PROJECT, project, strict=True))}
            of_run = {name: value for name, value in pair if name in RUN}
            values |= of_run
            if all(values[name] == value for name, value in pair) and is_possible(values):
                return values
    raise AssertionError(f"no project has {pair}")

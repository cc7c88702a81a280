"""The features of Perdure: what a run can do without. Each has one row, which says what it adds to the core.

A target is `module:name`. It is imported when it is first used, so `perdure --help` and `perdure list` import none.
An optional one, and another package's, an entry point of the group `perdure.features`, is named in `[features] use`.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "perdure.features"  # of entry points

BUILT_IN = (
    "follow_ups",
    "delegation",
    "mailbox",
    "notices",
    "pushes",
    "project_questions",
    "starts",
    "mcp",
    "mcp_server",
    "a2a_client",
    "reconciler",
    "batches",
    "schedules",
    "pauses",
    "budgets",
    "places",
    "proof",
)
# Doors and the like, off until a project names them in `[features] use`. They add nothing to workers.
OPTIONAL = ("web_ui", "ag_ui", "mcp_http", "a2a")


@dataclass(frozen=True)
class Command:
    """A command of `perdure`: its target, the section of `perdure --help`, and its summary there."""

    target: str
    section: str
    summary: str


@dataclass(frozen=True)
class Pacing:
    """A pace of model calls that is not live. They wait in activities of a task queue that no worker polls."""

    turn: str
    """In a run: `async (run, request, summary)`, the reply of a model turn; None if the run has failed instead."""
    queue_suffix: str
    """The end of that task queue's name, which begins with the run's own."""
    watch: str
    """A class of the client. `async report(task_queue, activity_id)` says what a call waits for, if that is news."""
    left: str
    """The words for a call that the run no longer awaits, in its events."""


@dataclass(frozen=True)
class Check:
    """The result of a check of `perdure doctor`; `found` is what was found, or what to do."""

    name: str
    ok: bool
    found: str


@dataclass(frozen=True)
class Figures:
    """Counts of a feature by name, for an overview of the project."""

    counts: Mapping[str, int]
    counted_at: datetime | None = None  # null: at the time of the overview
    are_findings: bool = True  # each that is above 0 is of something broken or stuck


@dataclass(frozen=True)
class FeatureTool:
    """A built-in tool of a run, which starts other work."""

    handler: str
    """Makes a call, inside the run: `async (run: RunContext, call: Call) -> ToolOutcome`."""
    schema: str
    """Its `ToolSchema`, which the model gets; pure."""
    effect: str = "read"
    """A `perdure.contracts.tool.Effect`."""
    summary: str | None = None
    """Formats the arguments of a call, even malformed ones, as one line; pure. By default it is their first text."""
    has_events: bool = False
    """A call has events of its own (`events`). The events of a run show others with the reply that makes them."""


@dataclass(frozen=True)
class Addressed:
    """Workflows that are no runs, and that a person addresses by an id with a prefix of their own."""

    query: str
    """A function of the client, the id, and optionally the patience and a cache: what a worker answers, as the
    `AddressedView` of `perdure.client.runs`."""
    show: str
    """A function that prints it: of the console, the server's record (`RunInfo`) and the state of that view, if any."""


@dataclass(frozen=True)
class ToolSource:
    """Servers that offer tools, as a file of the project names them. The settings have them by name."""

    file: str
    """The file's name, in the project's folder."""
    read: str
    """A function of the file's path, the environment and a list for faults: the servers (`ToolServer`) by name."""
    show: str
    """A function of the settings: the tools (`ToolOffer`) as far as they are known without starting a server."""
    open: str
    """A function of the settings: a context manager with a worker's tools, which may accept those of new servers."""
    open_known: str
    """A function of the settings and an exit stack: a worker's tools, if it knows all servers."""
    print_servers: str
    """`perdure tools --check` and `--accept`: an async function of the settings, what to accept, and `as_json`."""
    print_unseen: str
    """A function of the settings that prints which servers are not in the table of `perdure tools`."""


@dataclass(frozen=True)
class Feature:
    """The row of a feature. All targets are optional."""

    workflows: tuple[str, ...] = ()
    """Workflow classes of every worker."""
    activities: tuple[str, ...] = ()
    """Classes with activities. `of` makes one of the worker's parts (`perdure.activities.parts.WorkerParts`)."""
    acting: tuple[str, ...] = ()
    """Types of its activities that may call a model or have an effect outside. A guard may hold them."""
    guard: str | None = None
    """A function of a worker's client and task queue: a `Guard` of `perdure.activities.effects.holding`, which is
    awaited before each acting attempt and each request to a provider."""
    tools: Mapping[str, FeatureTool] = field(default_factory=dict)
    """Built-in tools of a run, by name, in the order in which the model sees them."""
    tool_kinds: Mapping[str, str] = field(default_factory=dict)
    """Kinds of `[tools.NAME]`: a function of the route, the settings, the headers and an HTTP client: the tool
    (`perdure.activities.tools.interface.Tool`)."""
    events: Mapping[str, str] = field(default_factory=dict)
    """Child workflows and activities that are a run's own work, by type: what reads a history event about one (a JSON
    object; returns a list of `perdure.client.run_events.RunEvent`). An activity's is its end, with its `request`."""
    beside_worker: str | None = None
    """A function of the client and the task queue: a context manager that is open while a worker runs."""
    admission: str | None = None
    """A function of the client, the settings, the project and an exit stack: what admits a worker's runs and model
    calls (`perdure.activities.providers.port.Admission`), or None. One feature has it. It raises ProjectError."""
    places: str | None = None
    """A function of the client, the project and the task queue: what limits how many runs and calls are at work at once
    (`perdure.activities.effects.places.LimitedPlaces`). One feature has it."""
    provider_limits: str | None = None
    """A function of the client, the settings and an exit stack: a worker's part of the limits of providers that workers
    share (`perdure.activities.providers.port.SharedLimit`), by provider."""
    commands: Mapping[str, Command] = field(default_factory=dict)
    """Commands of `perdure`, by name."""
    routes: str | None = None
    """A router of the gateway (FastAPI)."""
    paces: Mapping[str, Pacing] = field(default_factory=dict)
    """Paces of model calls, by `Pace`."""
    server_checks: tuple[str, ...] = ()
    """Checks of `perdure doctor` at the server: async functions of the client and the settings: a list of `Check`."""
    figures: str | None = None
    """Its part of an overview: an async function of the client and the settings: `Figures`, or None if it has none. It
    may raise RPCError and ReportedError."""
    on_question: str | None = None
    """In a run: `async (state, question, kind)`, awaited when it asks people (`waiting`) and at an expiry."""
    on_rest: str | None = None
    """In a run that has a place: `async (state)`, awaited when all that it does is to wait for people or subtasks."""
    on_return: str | None = None
    """In a run that has left its place: `async (run)`, awaited before it goes on."""
    on_end: str | None = None
    """In a run: `async (state, ending)`, awaited at its end; the ending of a cancelled run is None."""
    project: str | None = None
    """A function of the settings and an HTTP client: the feature's part of a project. It raises ProjectError."""
    check_worker: str | None = None
    """A function of the settings. It raises ProjectError for what a worker lacks, such as variables."""
    on_open: str | None = None
    """A function of a worker's project and an agent's name: fields of the `StartSnapshot` of a run of this agent."""
    tables: tuple[str, ...] = ()
    """Tables of `perdure.toml` (`perdure.settings.tables.Table`)."""
    flaws: str | None = None
    """A function of a project and its settings: a line for each setting that can never work."""
    gateway: str | None = None
    """A function of the settings and the environment: the feature's part of a gateway. It raises ProjectError."""
    on_answer: Mapping[str, str] = field(default_factory=dict)
    """By the subject of a project question: `async (parts, question, answer)`, which carries out an answer, with the
    `WorkerParts`, the `QuestionInput` and the `ProjectAnswer`. It may be called again. It raises ApplicationError."""
    dead_letters: Mapping[str, str] = field(default_factory=dict)
    """The inputs of workflows that are dead letters when they fail, by workflow type."""
    addressed: Mapping[str, Addressed] = field(default_factory=dict)
    """Workflows that a person addresses, by the prefix of their ids."""
    stubs: tuple[str, ...] = ()
    """Shells of its workflows, and their contracts: names of `perdure.stubs`."""
    tool_source: ToolSource | None = None
    """Servers that offer tools. One feature has them."""
    project_checks: tuple[str, ...] = ()
    """Checks of `perdure doctor` without a server: async functions of the settings: a list of `Check`."""


class FeatureError(Exception):
    """A feature that a project uses cannot be loaded."""


_used: dict[str, "EntryPoint"] = {}
_rows: dict[str, Feature] = {}


def features() -> Mapping[str, Feature]:
    """Return the rows by name."""
    for name in BUILT_IN:
        if name not in _rows:
            _rows[name] = load(f"perdure.features.{name}:FEATURE")
    return _rows


def optional() -> Mapping[str, Feature]:
    """Return the rows of all optional features by name, in use or not."""
    return {name: load(f"perdure.features.{name}:FEATURE") for name in OPTIONAL}


def use(names: Iterable[str]) -> None:
    """Add optional features and those of other packages, until this process ends. Raises FeatureError."""
    for name in names:
        if name in features():
            continue
        if name in OPTIONAL:
            row = optional()[name]
            _check_clashes(name, row)
            _rows[name] = row
            continue
        from importlib.metadata import entry_points  # most projects use none

        installed = {entry.name: entry for entry in entry_points(group=GROUP)}
        if name not in installed:
            others = f"there are: {', '.join(sorted({*installed, *OPTIONAL}))}"
            raise FeatureError(f"there is no feature {name!r}; {others}")
        try:
            row = installed[name].load()
        except Exception as error:
            raise FeatureError(f"feature {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
        if not isinstance(row, Feature):
            raise FeatureError(f"feature {name!r} is a {type(row).__name__}; its entry point must name a Feature")
        _check_clashes(name, row)
        _used[name], _rows[name] = installed[name], row


def use_of_project(path: Path) -> None:
    """Add the features that a `perdure.toml` names, for their commands. Settings report what is wrong with the file."""
    with suppress(OSError, ValueError, RecursionError, AttributeError, TypeError, FeatureError):
        use(tomllib.loads(path.read_text(encoding="utf-8")).get("features", {}).get("use", ()))


def used() -> Mapping[str, str]:
    """Return the features of other packages in use, each with its package and version."""
    return {
        name: f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value for name, entry in _used.items()
    }


def used_packages() -> tuple[str, ...]:
    """Return the import names of the features of other packages in use."""
    return tuple(entry.module.partition(".")[0] for entry in _used.values())


def _check_clashes(name: str, row: Feature) -> None:
    """Raise FeatureError if another feature has a command or a tool of the same name."""
    for other, known in features().items():
        for kind, own, others in (("command", row.commands, known.commands), ("tool", row.tools, known.tools)):
            if both := own.keys() & others.keys():
                raise FeatureError(f"features {name!r} and {other!r} both have the {kind} {min(both)!r}")


def paces() -> Mapping[str, Pacing]:
    """Return the paces that are not live."""
    return {pace: row for feature in features().values() for pace, row in feature.paces.items()}


def feature_tools() -> Mapping[str, FeatureTool]:
    """Return the built-in tools of all features by name."""
    return {name: tool for feature in features().values() for name, tool in feature.tools.items()}


def tool_kinds() -> Mapping[str, str]:
    """Return what opens a tool of a kind that a feature adds."""
    return {kind: target for feature in features().values() for kind, target in feature.tool_kinds.items()}


def event_readers() -> Mapping[str, str]:
    """Return what reads the events of child workflows and activities of features, by their type."""
    return {kind: reader for feature in features().values() for kind, reader in feature.events.items()}


def find_addressed(workflow_id: str) -> Addressed | None:
    """Return the row of a workflow that a person addresses; None: it is a run."""
    rows = (row for feature in features().values() for row in feature.addressed.items())
    return next((row for prefix, row in rows if workflow_id.startswith(prefix)), None)


def find_tool_source() -> ToolSource | None:
    """Return the servers that offer tools, if a feature has them."""
    return next((feature.tool_source for feature in features().values() if feature.tool_source), None)


def load(target: str) -> Any:
    """Import what a target names.

    By `__import__`, which a workflow's sandbox replaces; `importlib` would load the module a second time there.
    """
    module, _, name = target.partition(":")
    return getattr(__import__(module, fromlist=(name,)), name)


def load_each(row: str) -> Iterator[Any]:
    """Import the targets of one field of all rows, such as `workflows`."""
    for feature in features().values():
        targets = getattr(feature, row)
        yield from map(load, (targets,) if isinstance(targets, str) else targets or ())

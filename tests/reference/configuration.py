"""The tables of `docs/reference/configuration.md`: its frame is written by hand, and they stand between markers."""

import re
from collections.abc import Callable, Iterator

from pydantic import BaseModel

from perdure.contracts.run.limits import LimitOverrides
from perdure.decisions.run.limits import DEFAULTS
from perdure.features.a2a.settings import A2aSettings
from perdure.features.ag_ui.settings import AgUiSettings
from perdure.features.follow_ups.settings import OutboxSettings
from perdure.features.mcp.settings import McpAccessSettings, _Http, _Stdio
from perdure.features.notices.settings import NotifySettings
from perdure.features.pushes.settings import PushSettings
from perdure.features.starts.settings import StartSettings
from perdure.features.web_ui.settings import WebUiSettings
from perdure.settings.agents import _FrontMatter
from perdure.settings.file import (
    FeatureSettings,
    FetchSettings,
    GatewaySettings,
    ModelSettings,
    PriceSettings,
    ProjectSettings,
    ProviderSettings,
    WebhookSettings,
    WorkerSettings,
)
from perdure.settings.tools import (
    A2aToolSettings,
    HttpToolSettings,
    McpToolSettings,
    PythonToolSettings,
    QueueToolSettings,
    SignalToolSettings,
    _Gated,
)
from tests.reference.fields import HEAD, Fields, Row
from tests.reference.markdown import code, format_default, table
from tests.reference.variables import GROUPS

KINDS: dict[str, type[BaseModel]] = {
    "python": PythonToolSettings,
    "http": HttpToolSettings,
    "a2a": A2aToolSettings,
    "signal": SignalToolSettings,
    "queue": QueueToolSettings,
    "mcp": McpToolSettings,
}
FIELDS = Fields({"LimitOverrides": "#limits"})
BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill_tables(frame: str) -> str:
    """The page with its tables as the code has them now."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", frame)


def _of(model: type[BaseModel], *left_out: str) -> Callable[[], str]:
    return lambda: _table(row for row in FIELDS.rows(model) if row.name not in left_out)


def _table(rows: Iterator[Row]) -> str:
    return table(("setting", *HEAD[1:]), ((code(row.name), row.type, row.default, row.meaning) for row in rows))


def _tools() -> str:
    """What every kind takes first, then what each adds to it."""
    common = {row.name: row for row in FIELDS.rows(_Gated)}
    rows = [("every", row) for row in common.values()]
    for kind, model in KINDS.items():
        rows += [(code(kind), row) for row in FIELDS.rows(model) if row != common.get(row.name) and row.name != "kind"]
    return table(("kind", "setting", *HEAD[1:]), _merged(rows))


def _merged(rows: list[tuple[str, Row]]) -> Iterator[tuple[str, ...]]:
    """A setting that several kinds have alike stands once."""
    kinds: dict[Row, list[str]] = {}
    for kind, row in rows:
        kinds.setdefault(row, []).append(kind)
    return ((", ".join(named), code(row.name), row.type, row.default, row.meaning) for row, named in kinds.items())


def _limits() -> str:
    rows = (
        (code(row.name), row.type, format_default(getattr(DEFAULTS, row.name)), row.meaning)
        for row in FIELDS.rows(LimitOverrides)
    )
    return table(("limit", "type", "default", "limits, and what happens then"), rows)


def _environment() -> str:
    parts = []
    for title, group in GROUPS.items():
        rows = ((code(each.name), each.default, each.means) for each in group)
        parts += [f"### {title}", table(("variable", "default", "means"), rows)]
    return "\n\n".join(parts)


TABLES: dict[str, Callable[[], str]] = {
    "project": _of(ProjectSettings),
    "features": _of(FeatureSettings),
    "web_ui": _of(WebUiSettings),
    "ag_ui": _of(AgUiSettings),
    "a2a": _of(A2aSettings),
    "push": _of(PushSettings),
    "model": _of(ModelSettings, "providers"),
    "providers": _of(ProviderSettings),
    "prices": _of(PriceSettings),
    "tools": _tools,
    "fetch": _of(FetchSettings),
    "mcp": _of(McpAccessSettings),
    "outbox": _of(OutboxSettings),
    "notify": _of(NotifySettings),
    "start": _of(StartSettings),
    "gateway": _of(GatewaySettings, "webhooks"),
    "webhooks": _of(WebhookSettings),
    "worker": _of(WorkerSettings),
    "limits": _limits,
    "agents": _of(_FrontMatter),
    "stdio": _of(_Stdio),
    "http": _of(_Http),
    "environment": _environment,
}

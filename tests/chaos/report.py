"""The page that `make chaos` leaves: what was broken, on what, and what became of it."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, date, datetime
from importlib.metadata import version

from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client

from tests.chaos.context import Row
from tests.chaos.environment import BEAT

HEAD = ("scenario", "runs", "faults", "effects", "twice", "lost", "in doubt", "longest", "took", "")
FRONT = f"""# Reliability

This page has the results of `make chaos`, which writes it; do not edit it. [Chaos tests](chaos.md) explains the
faults and the checks. **twice** counts effects that happened again, **lost** results that no conversation shows; both
must be 0. **in doubt** counts `once` calls that a person was asked about, cut between claim and result. **longest** is
the longest time that a run stood still, including the detection of a dead worker ({BEAT:g} s here).
"""


async def versions(client: Client) -> str:
    """What it ran on, in a line."""
    info = await client.workflow_service.get_system_info(GetSystemInfoRequest(), retry=True)
    packages = (
        f"Perdure {version('perdure')}, temporalio {version('temporalio')}, Temporal server {info.server_version}"
    )
    return f"{packages}, Python {platform.python_version()}, {platform.system()}, {os.cpu_count()} cores"


def page(rows: Sequence[Row], seed: int, on: str, today: date | None = None) -> str:
    today = today or datetime.now(UTC).date()
    broken = [row for row in rows if row.violations]
    verdict = f"{len(broken)} of {len(rows)} scenarios broke an invariant" if broken else "no invariant was broken"
    notes = [f"- **{row.scenario}**: {row.note}" for row in rows if row.note]
    violations = [f"- **{row.scenario}**: {_plain(why)}" for row in broken for why in row.violations[:5]]
    table = [_line(HEAD), _line(["---", *["---:"] * (len(HEAD) - 2), "---"]), *(_line(cells(row)) for row in rows)]
    parts = [
        FRONT,
        f"{today:%-d %B %Y}, seed {seed} (`PERDURE_CHAOS_SEED={seed} make chaos`): {verdict}.\n{on}.\n",
        "\n".join(table),
        *(["", "## What broke", "", "\n".join(violations)] if violations else []),
        *(["", "## Figures", "", "\n".join(notes)] if notes else []),
    ]
    return "\n".join(parts) + "\n"


def cells(row: Row) -> Sequence[str]:
    counts = (row.runs, row.faults, row.effects, row.duplicates, row.lost, row.in_doubt)
    figures = [f"{count:,}" for count in counts]
    return [
        row.scenario,
        *figures,
        f"{row.recovery:.1f} s",
        f"{row.seconds:.0f} s",
        "BROKEN" if row.violations else "ok",
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    return " ".join(text.split())[:300].replace("|", "\\|")

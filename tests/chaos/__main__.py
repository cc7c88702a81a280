"""`python -m tests.chaos`: all scenarios at full size, and one page of what became of them. Exits 1 if one broke."""

import argparse
import asyncio
import os
import secrets
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NoReturn

from temporalio.client import Client

from perdure.client.connection import connect, register_search_attributes
from perdure.devserver import DevServer, embedded_server
from perdure.process.streams import exit_now
from tests.chaos.context import Row, ScenarioContext
from tests.chaos.report import cells, page, versions
from tests.chaos.scenarios import SCENARIOS, Scenario
from tests.conftest import SHORT_HISTORY

HEAD = ("scenario", "runs", "faults", "effects", "twice", "lost", "in doubt", "window", "longest", "took", "verdict")
SUMMED = ("runs", "faults", "effects", "duplicates", "lost", "in_doubt", "seconds")
WIDTHS = (29, 5, 6, 7, 5, 4, 8, 6, 7, 6, 7)


def new_seed() -> int:
    """As `PERDURE_CHAOS_SEED` says, so that a failure can be looked at again."""
    return int(os.environ.get("PERDURE_CHAOS_SEED") or secrets.randbelow(10**6))


async def play(chosen: Sequence[Scenario], seed: int, minutes: float, *, short: bool) -> tuple[list[Row], str]:
    """The rows, and what they were made on."""
    rows: list[Row] = []
    home = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"seed {seed}; logs and histories' files in {home}\n")
    print(_line(HEAD), flush=True)
    async with AsyncExitStack() as held:
        plain, early = [
            await client_of(await held.enter_async_context(embedded_server(home / name, dynamic_config=config)))
            for name, config in (("server", {}), ("short-history", SHORT))
        ]
        for scenario in chosen:
            sizes = dict((scenario.short if short else None) or scenario.full)
            if "minutes" in sizes:
                sizes["minutes"] = minutes
            try:
                row = await scenario.run(ScenarioContext(home / scenario.name, seed, plain, early), sizes)
            except Exception as error:  # noqa: BLE001 - the others are worth playing all the same
                trace = "".join(traceback.format_exception(error))
                row = Row(f"{scenario.name} {scenario.title}", seed, violations=[trace])
            print(_line(_cells(row)), flush=True)
            rows.append(row)
        return rows, await versions(plain)


async def client_of(server: DevServer) -> Client:
    client = await connect(server.address)
    await register_search_attributes(client)
    return client


SHORT = {"limit.historyCount.suggestContinueAsNew": SHORT_HISTORY}


def _cells(row: Row) -> tuple[str, ...]:
    *counts, longest, took, verdict = cells(row)
    return (*counts, "" if row.window is None else f"{row.window:.0%}", longest, took, verdict)


def _line(cells: Sequence[str]) -> str:
    first, *others = zip(cells, WIDTHS, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()


def _summary(rows: Sequence[Row], seed: int) -> None:
    sums: dict[str, Any] = {name: sum(getattr(row, name) for row in rows) for name in SUMMED}
    recovery = max((row.recovery for row in rows), default=0.0)
    violations = [violation for row in rows for violation in row.violations]
    total = Row("all", seed, recovery=recovery, violations=violations, **sums)
    print(_line(_cells(total)), "\n")
    print("window: kills that left a call between its claim and its result; longest: that any run stood still")
    for row in rows:
        if row.note:
            print(f"{row.scenario}: {row.note}")
    for row in rows:
        for violation in row.violations[:5]:
            print(f"\nBROKEN {row.scenario}, seed {seed}: {violation}")
        if len(row.violations) > 5:
            print(f"... and {len(row.violations) - 5} more")


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(names)}; all without one")
    parser.add_argument("--minutes", type=float, default=5, help="of the soak R22")
    parser.add_argument("--short", action="store_true", help="as small as in `make kills`")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the page there as Markdown, too")
    options = parser.parse_args()
    if unknown := set(options.scenarios) - set(names):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    seed = new_seed()
    chosen = [s for s in SCENARIOS if not options.scenarios or s.name in options.scenarios]
    rows, on = asyncio.run(play(chosen, seed, options.minutes, short=options.short))
    _summary(rows, seed)
    if options.report:
        options.report.write_text(page(rows, seed, on), encoding="utf-8")
    exit_now(1 if any(row.violations for row in rows) else 0)


if __name__ == "__main__":
    main()

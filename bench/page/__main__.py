"""`python -m bench.page`: how fast the gateway's page shows a long run and a long list, in a real Chromium.

A run of 2,000 steps, and a list of 10,000 runs, from a server of its own with made-up answers. Prints a table, each
figure beside its aim, and writes it to `bench/results/page.json`. Exits 0 whatever the figures are.
"""

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bench.page.measures import MEASURES, ROWS, Browser, Figure
from bench.page.server import Site, serving
from bench.side import ROOT
from tests.browser import CHROMIUM, DRIVER, browsing

FILE = ROOT / "bench" / "results" / "page.json"
WINDOW = "1280,1000"
WIDTHS = (72, 16, 8)


def measure(times: int) -> Iterator[Figure]:
    """Yield each figure as soon as all its values are known."""
    site = Site()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as profile,
        serving(site) as url,
        browsing(Path(profile), WINDOW) as driver,
    ):
        browser = Browser(driver, url)
        browser.open("/now")  # the browser itself has loaded
        for each in MEASURES:
            found = [each(browser) for _ in range(times)]
            for key in found[0]:
                name, unit, least, most = ROWS[key]
                yield Figure(name, unit, tuple(round(values[key], 3) for values in found), least, most)


def line(figure: Figure) -> str:
    value = f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.3g}"
    verdict = "" if not figure.aim else "ok" if figure.is_met else "MISS"
    cells = (figure.name, f"{value} {figure.unit}".strip(), figure.aim)
    return ("".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)) + verdict).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="values behind each median (default: 5)")
    parser.add_argument("--json", type=Path, default=FILE, metavar="FILE", help=f"default: {FILE.relative_to(ROOT)}")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats is at least 1")
    if not (CHROMIUM and DRIVER):
        parser.error("it needs chromium and chromedriver on the PATH")
    figures = []
    for figure in measure(options.repeats):
        print(line(figure), flush=True)
        figures.append(figure)
    head = {
        "machine": f"{platform.system()}, {os.cpu_count()} cores",
        "month": f"{datetime.now(UTC):%Y-%m}",
        "repeats": options.repeats,
        "load": round(os.getloadavg()[1], 1),  # of the machine in these minutes: other work takes frames away
    }
    rows = [{**asdict(figure), "median": figure.value, "met": figure.is_met} for figure in figures]
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(
        json.dumps({**head, "figures": rows}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()

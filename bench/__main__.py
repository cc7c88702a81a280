"""`python -m bench`: starts a server of its own, measures, and prints the table. Exits 0 whatever the figures are."""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path

from temporalio.client import Client

from bench.actions import Actions
from bench.peer import NAMES, environment, peering
from bench.peer_rows import PeerBench, PeerRow
from bench.rows import QUICK, Bench, Row, Sizes
from bench.side import working
from perdure.converter import data_converter
from perdure.devserver import embedded_server
from tests.ports import free_port

HEAD = ("figure", "raw-min", "ours", "ratio", "target", "")
LEAST_LONG = 8  # steps of which each quarter has one to be measured
WIDTHS = (54, 19, 22, 5, 22, 4)
PEER_WIDTHS = (36, 11, 8, 13, 13, 13, 13)


async def measure(sizes: Sizes, peers: Sequence[str], workers: int) -> list[Row | PeerRow]:
    """Prints each row as it is measured."""
    rows: list[Row | PeerRow] = []
    for name in peers:
        environment(name)  # before anything is measured
    print(_line(*HEAD))
    async with AsyncExitStack() as held:
        home = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        port = free_port()
        server = await held.enter_async_context(embedded_server(home / "server", metrics_port=port))
        client = await Client.connect(server.address, data_converter=data_converter)
        raw = await held.enter_async_context(working("raw", client, home, workers))
        ours = await held.enter_async_context(working("ours", client, home, workers))
        fused = await held.enter_async_context(working("fused", client, home, workers))
        async for row in Bench(raw, ours, fused, sizes, Actions(port)).rows():
            ratio = "" if row.ratio is None else f"×{row.ratio:.2f}"
            verdict = {True: "ok", False: "MISS", None: ""}[row.met]
            print(_line(row.figure, row.raw, row.ours, ratio, row.target, verdict), flush=True)
            rows.append(row)
        if peers:
            sides = [raw, ours]
            sides += [await held.enter_async_context(peering(name, server.address, home)) for name in peers]
            print("\n" + _line("figure", "raw-min", "ours", *peers, widths=PEER_WIDTHS))
            async for peer_row in PeerBench(sides, sizes, Actions(port)).rows():
                print(_line(peer_row.figure, *peer_row.cells.values(), widths=PEER_WIDTHS), flush=True)
                rows.append(peer_row)
    await asyncio.sleep(0.2)  # the SDK's own threads must end before the interpreter goes (sdk-python#300)
    return rows


def _line(*cells: str, widths: Sequence[int] = WIDTHS) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)).rstrip()


def _at_least(least: int) -> Callable[[str], int]:
    def number(given: str) -> int:
        try:
            value = int(given)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{given!r} is not a whole number of at least {least}")
        return value

    return number


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, once each: does it run at all?")
    parser.add_argument("--repeats", type=_at_least(1), help="pairs of raw-min and ours behind each median")
    parser.add_argument(
        "--long",
        type=_at_least(LEAST_LONG),
        metavar="STEPS",
        help=f"of the runs whose growth is looked at (default: {Sizes.long}, with --quick {QUICK.long})",
    )
    parser.add_argument("--workers", type=_at_least(1), default=1, help="of each side, on its task queue")
    parser.add_argument("--peer", action="append", choices=NAMES, help="measure another framework, too (repeatable)")
    parser.add_argument("--peers", action="store_true", help="measure all of them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    sizes = QUICK if options.quick else Sizes()
    given = {"repeats": options.repeats, "long": options.long}
    sizes = replace(sizes, **{name: value for name, value in given.items() if value is not None})
    peers = NAMES if options.peers else tuple(dict.fromkeys(options.peer or ()))
    rows = asyncio.run(measure(sizes, peers, options.workers))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

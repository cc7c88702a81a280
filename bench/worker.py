"""One side's worker. Each line on its standard input is answered by what it has done since the last one, as JSON."""

import asyncio
import gc
import sys
from pathlib import Path
from typing import TextIO

from temporalio.client import Client

from bench import ours, raw_min
from bench.reports import answer, own_output
from bench.work import Marks
from perdure.converter import data_converter


async def serve(side: str, address: str, queue: str, workspaces: Path, reports: TextIO) -> None:
    """Works until its standard input ends."""
    client = await Client.connect(address, data_converter=data_converter)
    marks = Marks()
    if side == "raw":
        build = raw_min.build(client, queue, marks)
    else:
        build = ours.build(client, queue, marks, workspaces, fuses=side == "fused")
    async with build:
        gc.freeze()  # as the product's worker does
        await answer(marks, reports)
    # The SDK's own threads must see the end of their work before the interpreter goes (sdk-python#300).
    await asyncio.sleep(0.2)


if __name__ == "__main__":
    kept = own_output()
    side, address, queue, workspaces = sys.argv[1:]
    asyncio.run(serve(side, address, queue, Path(workspaces), kept))

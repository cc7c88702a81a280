"""One side's worker. Each line on its standard input is answered by what it has done since the last one, as JSON."""

import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from temporalio.client import Client

from bench import ours, raw_min
from bench.work import Marks, cpu
from converter import data_converter


async def serve(side: str, address: str, queue: str, workspaces: Path, reports: TextIO) -> None:
    """Works until its standard input ends."""
    client = await Client.connect(address, data_converter=data_converter)
    marks, used = Marks(), cpu()
    build = raw_min.build(client, queue, marks) if side == "raw" else ours.build(client, queue, marks, workspaces)
    async with build:
        while await asyncio.to_thread(sys.stdin.readline):
            report, used = {"cpu": cpu() - used, **asdict(marks)}, cpu()
            marks.model.clear()
            marks.tool.clear()
            print(json.dumps(report), file=reports, flush=True)
    # The SDK's own threads must see the end of their work before the interpreter goes (sdk-python#300).
    await asyncio.sleep(0.2)


if __name__ == "__main__":
    kept = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the SDK's core writes its warnings to standard output
    side, address, queue, workspaces = sys.argv[1:]
    asyncio.run(serve(side, address, queue, Path(workspaces), kept))

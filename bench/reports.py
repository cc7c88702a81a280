"""How a worker is asked what it did: a line on its standard input, a report on its standard output.

With the standard library alone, as the peers' workers import it, too.
"""

import asyncio
import json
import os
import sys
from dataclasses import asdict
from typing import TextIO

from bench.work import Marks, cpu


def own_output() -> TextIO:
    """Standard output for the reports alone: the SDK's core writes its warnings there."""
    kept = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return kept


async def answer(marks: Marks, reports: TextIO) -> None:
    """Each line with what was done since the last one, as JSON, until standard input ends."""
    used = cpu()
    while await asyncio.to_thread(sys.stdin.readline):
        report, used = {"cpu": cpu() - used, **asdict(marks)}, cpu()
        marks.model.clear()
        marks.tool.clear()
        print(json.dumps(report), file=reports, flush=True)

"""`python -m bench.mail [FILES]`: what a file costs a mailbox, from the first to the last of many.

The files are replies that nobody awaits: each is claimed, read, judged, acknowledged twice, archived and put
away, but no agent runs. One process holds bridge and worker, and the server is one of its own.
"""

import asyncio
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from perdure.client.connection import connect, register_search_attributes
from perdure.devserver import embedded_server
from perdure.features.mailbox.activities.folder import MailFolder
from perdure.features.mailbox.commands import make_bridge
from perdure.features.mailbox.rules.poll_mode import PollPolicy
from perdure.process.streams import exit_now
from perdure.process.worker import run_worker
from perdure.settings import load_settings

PLANS, BODY, BLOCKS = 4, 1000, 10


@dataclass(frozen=True)
class Mark:
    """After so many files: seconds since the beginning, and seconds of CPU."""

    files: int
    seconds: float
    cpu: float


async def measure(files: int) -> None:
    """Prints a line for each tenth, and what all of them took."""
    home = Path(tempfile.mkdtemp(prefix="bench-mail-"))
    async with embedded_server(home / "state") as server:
        client = await connect(server.address)
        await register_search_attributes(client)
        settings = load_settings({"PERDURE_HOME": str(home / "state")}, home)
        folder = MailFolder(home / "mail", "default")
        folder.open_folder()
        await asyncio.to_thread(_write, folder.root, files)
        async with run_worker(client, settings):
            stop = asyncio.Event()
            bridge = asyncio.create_task(make_bridge(client, settings, folder, PollPolicy()).run(stop))
            marks = await _marks(folder.root, files)
            stop.set()
            await bridge
    _print(marks)


def _write(root: Path, files: int) -> None:
    for number in range(files):
        plan = root / "inbox" / f"plan{number % PLANS}"
        plan.mkdir(exist_ok=True)
        head = {"type": "reply", "message_id": f"m{number}", "plan_id": plan.name, "task_id": f"none{number}.1"}
        head |= {"subtask_id": "a", "from": "nobody", "status": "done"}
        front = "\n".join(f"{key}: {value}" for key, value in head.items())
        (plan / f"{number}.md").write_text(f"---\n{front}\n---\nresult {number} {'x' * BODY}\n", encoding="utf-8")


async def _marks(root: Path, files: int) -> list[Mark]:
    began, cpu, marks = time.monotonic(), time.process_time(), [Mark(0, 0, 0)]
    for block in range(1, BLOCKS + 1):
        done = await asyncio.to_thread(_reached, root, files * block // BLOCKS)
        marks.append(Mark(done, time.monotonic() - began, time.process_time() - cpu))
    return marks


def _reached(root: Path, files: int) -> int:
    """How many are done, once they are so many."""
    while (done := sum(1 for _ in root.glob("inbox/*/.processed/*"))) < files:
        time.sleep(0.2)
    return done


def _print(marks: list[Mark]) -> None:
    print("   files    files/s   CPU ms a file")
    for before, after in pairwise(marks):
        files = max(after.files - before.files, 1)
        cost = (after.cpu - before.cpu) / files * 1000
        print(f"{after.files:8,}  {files / (after.seconds - before.seconds):8.1f}  {cost:8.2f}")
    last, peak = marks[-1], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{last.files:,} files in {last.seconds:.1f} s, {last.files / last.seconds:.1f} a second; ", end="")
    print(f"{peak:.0f} MB at most")


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
    exit_now(0)

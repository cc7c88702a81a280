"""`python -m bench.crash.nursery MODULE PRELOADED,…`: forks workers of a side, which are cheap to start and to kill.

It loads the side's libraries once. Each line on its standard input, a `Settings` as JSON, is answered by the process
id of a new worker, which imports MODULE and runs its `work`. With the standard library alone, as peers run it, too.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import fields
from importlib import import_module
from typing import NoReturn

from bench.crash import tools


def main() -> None:
    module, preloaded = sys.argv[1], sys.argv[2].split(",")
    for name in filter(None, preloaded):
        import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead need no one to wait for them
    print("ready", flush=True)
    while line := sys.stdin.readline():
        settings = json.loads(line)
        if pid := os.fork():
            print(pid, flush=True)
        else:
            _become_worker(module, settings)


def _become_worker(module: str, settings: dict[str, object]) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # the log: what is said on the standard output is the nursery's
    for field in fields(tools.Settings):
        setattr(tools.SETTINGS, field.name, settings[field.name])
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        asyncio.run(import_module(module).work())
    except BaseException:  # noqa: BLE001 - the last word of a process
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()

"""A process that is forked from multiprocessing's fork server, which lives as long as its forks."""

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait


def die_with_starter() -> None:
    """Kill this process when the process that started it ends, even if that was killed."""
    starter = multiprocessing.parent_process()
    if starter is None:
        raise RuntimeError("this process was not started by multiprocessing")

    def wait_and_die() -> None:
        wait([starter.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait_and_die, daemon=True).start()

"""A process of a fork server ends with the one that started it."""

import os
import subprocess
import sys
from pathlib import Path

from perdure.process import streams as forked
from tests.waiting import PATIENCE

STARTER = """
import multiprocessing, signal
from perdure.process.streams import die_with_starter

def serve():
    die_with_starter()
    print("serving", flush=True)
    signal.pause()

if __name__ == "__main__":
    process = multiprocessing.get_context("forkserver").Process(target=serve)
    process.start()
    process.join()
"""


def test_a_forked_process_ends_with_a_starter_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "starter.py").write_text(STARTER)
    env = {**os.environ, "PYTHONPATH": str(Path(forked.__file__).parents[2])}
    command = [sys.executable, "starter.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, text=True, stdout=subprocess.PIPE) as starter:
        assert starter.stdout
        assert starter.stdout.readline() == "serving\n"
        starter.kill()
        starter.communicate(timeout=PATIENCE)  # until the pipe's last writer is gone, which is the forked process

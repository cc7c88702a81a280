"""Two agents that exchange work through folders: ours (`editor`), and one that lives outside (`scribe.py`).

It starts a bridge for each folder and the scribe, puts a task into the editor's inbox, and waits for the reply file.
All that happened lies in the folders then, and the commands to look at it are printed.
"""

import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# A Temporal or project that this shell has set is not the example's: it brings its own.
ELSEWHERE = ("TEMPORAL_", "PERDURE_CONFIG", "PERDURE_HOME", "PERDURE_WORKSPACE", "PERDURE_TASK_QUEUE")
TASK = """\
---
type: task
message_id: m1
plan_id: spring
task_id: t1
from: you
---
Please ask scribe to write two lines on how a file is claimed.
"""
PATIENCE = 120.0  # seconds


def main(place: Path) -> int:
    """0 once the reply lies in the editor's outbox. What lies in `place` before is removed."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(HERE / "agents", place / "agents")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(ELSEWHERE)},
        "TEMPORAL_CONFIG_FILE": str(place / "no-profile.toml"),
    }
    perdure = [sys.executable, "-Pm", "perdure.cli", "mail"]
    with ExitStack() as running:
        for command in (
            [*perdure, "editor", "--agent", "editor"],
            [*perdure, "scribe", "--agent", "scribe"],
            [sys.executable, str(HERE / "scribe.py"), "scribe"],
        ):
            process = running.enter_context(subprocess.Popen(command, cwd=place, env=environment))
            running.callback(process.terminate)
        reply = _asked(place / "editor")
    if reply is None:
        print("no reply came", file=sys.stderr)
        return 1
    print(f"\n{reply.read_text(encoding='utf-8')}\nLook at what was exchanged:")
    print(f"  cd {place}")
    print("  ls -R editor scribe")
    print("  cat editor/outbox/spring/ack_m1.json editor/outbox/spring/task_state_t1.json editor/tasks/t1/task.md")
    print("  cat scribe/archive/*/*.md")
    return 0


def _asked(folder: Path) -> Path | None:
    inbox = folder / "inbox" / "spring"
    inbox.mkdir(parents=True, exist_ok=True)
    (inbox / "task.tmp").write_text(TASK, encoding="utf-8")
    (inbox / "task.tmp").rename(inbox / "task.md")
    reply, deadline = folder / "outbox" / "spring" / "t1-reply.md", time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if reply.is_file():
            return reply
        time.sleep(0.1)
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".perdure" / "folders"))

"""An agent that lives outside Temporal: it knows two folders, and nothing of who writes into them.

It takes each task from `scribe/inbox/<plan>/` and puts its reply into `scribe/outbox/<plan>/`: first under a name that
ends in `.tmp`, then renamed, so that nobody reads half of it.
"""

import sys
import time
from pathlib import Path

import yaml


def main(folder: Path) -> None:
    """Until somebody stops it."""
    while True:
        for task in sorted(folder.glob("inbox/*/*.md")):
            answer(folder, task)
        time.sleep(0.2)


def answer(folder: Path, task: Path) -> None:
    _, front, work = task.read_text(encoding="utf-8").split("---\n", 2)
    head = yaml.safe_load(front)
    reply = {
        "type": "reply",
        "message_id": f"{head['message_id']}-reply",
        "plan_id": head["plan_id"],
        "task_id": head["task_id"],
        "subtask_id": head["subtask_id"],
        "from": "scribe",
        "status": "done",
    }
    text = (
        f"A file is claimed by renaming it.\nWho comes second finds nothing, and that is no error.\n\n({work.strip()})"
    )
    target = folder / "outbox" / task.parent.name / f"{task.stem}-reply.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".tmp")
    temporary.write_text(f"---\n{yaml.safe_dump(reply)}---\n{text}\n", encoding="utf-8")
    temporary.rename(target)
    task.unlink()  # taken: what was asked lies in the archive
    print(f"scribe: answered {task.name}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "scribe"))

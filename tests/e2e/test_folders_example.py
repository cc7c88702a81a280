"""The example of two agents that exchange work through folders, as its page says to run it."""

import json
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "folders" / "exchange.py"


def test_two_agents_exchange_work_that_can_be_followed_with_ls_and_cat(tmp_path: Path) -> None:
    place = tmp_path / "place"
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(place)], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    reply = (place / "editor/outbox/spring/t1-reply.md").read_text()
    assert "status: done" in reply
    assert "A file is claimed by renaming it." in reply
    assert json.loads((place / "editor/outbox/spring/ack_m1.json").read_text())["status"] in ("CONSUMED", "SUCCEEDED")
    asked, answered = sorted((place / "scribe/archive").glob("*/*.md"), key=lambda path: len(path.name))
    assert asked.read_text().count("type:") == 1
    assert "how a file is claimed" in asked.read_text()
    assert "from: scribe" in answered.read_text()
    for line in ("ls -R editor scribe", "cat scribe/archive/*/*.md"):
        assert line in done.stdout

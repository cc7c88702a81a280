"""What a person who watches a run sees of what it does about itself."""

import asyncio
import json
from itertools import count
from pathlib import Path
from typing import Any

from perdure.testkit.model_server import ScriptedAnswer, calls, says
from perdure.testkit.tools import ScriptedTool
from tests.e2e.projects import Served
from tests.workflows.conftest import worlds


async def test_a_compaction_and_a_nudge_are_shown_in_a_line_each(served: Served, tmp_path: Path) -> None:
    numbers = count(1)

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if "You summarise" in str(body["system"]):
            return says("So far: lorem.")
        number = next(numbers)
        if number <= 12:
            return calls(("read", {"n": number}))
        return calls(("read", {"n": 0})) if number <= 16 else calls(("finish", {"outcome": "read"}))

    read = ScriptedTool("read", lambda arguments, _: f"{arguments['n']}: " + "lorem ipsum " * 300)
    async with worlds(served.client, tmp_path)(script, read, window=20_000, max_steps=40) as it:
        run = await it.start("read it all", run_id="watched-over")
        await asyncio.wait_for(run.result(), 60)

    def perdure(*args: str) -> Any:
        return asyncio.to_thread(served.project.perdure, *args, TEMPORAL_ADDRESS=served.address)

    seen = (await perdure("watch", "watched-over")).out
    assert "! the context is full: about" in seen
    assert "tokens: summarised by scripted" in " ".join(seen.split())
    assert "! loop detected: the model is asked to try something else" in seen
    lines = [json.loads(line) for line in (await perdure("watch", "--json", "watched-over")).out.splitlines()]
    events = {line.get("type"): line for line in lines}
    assert events["context_full"]["full"]["window"] == 20_000
    assert events["context_compacted"]["summary"]["text"] == "So far: lorem."
    assert events["notice_added"]["event"]["stage"] == "directive"

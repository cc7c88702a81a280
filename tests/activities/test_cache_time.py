"""The lifetime of the prompt cache that `auto` chooses: an hour for agents whose calls may wait for long."""

from pathlib import Path

import httpx
import pytest

from perdure.activities.run.definition import build_definition
from perdure.contracts.model_settings import CacheTime
from perdure.process.project import build_project
from perdure.settings import load_settings

PROJECT = """
[tools.asked]
kind = "signal"
description = "Asks another system."
input_schema = {type = "object"}
[tools.charge]
kind = "http"
approval = "always"
description = "Charges a card."
input_schema = {type = "object"}
url = "http://127.0.0.1:9/charge"
[tools.long]
kind = "http"
timeout = "6m"
description = "Takes long."
input_schema = {type = "object"}
url = "http://127.0.0.1:9/long"
[tools.write_file]
approval = "always"
"""


@pytest.mark.parametrize(
    ("front_matter", "lifetime"),
    [
        ("tools: [fetch]", "5m"),
        ("tools: []", "5m"),
        ("tools: [asked]", "1h"),
        ("tools: [charge]", "1h"),
        ("tools: [long]", "1h"),
        ("tools: [write_file]", "1h"),
        ("tools: []\npeers: [default]", "1h"),
    ],
)
async def test_auto_is_an_hour_for_an_agent_that_may_wait(
    tmp_path: Path, front_matter: str, lifetime: CacheTime
) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "clerk.md").write_text(f"---\n{front_matter}\n---\nYou are a clerk.\n")
    (tmp_path / "perdure.toml").write_text(PROJECT)
    async with httpx.AsyncClient() as http:
        project = build_project(load_settings({}, tmp_path), http)
    agent = project.agents["clerk"]
    assert build_definition(project, agent, may_delegate=True).options.cache == lifetime

"""The tokens that every model call carries before the agent's own prompt and tools."""

from pathlib import Path

import httpx
import pytest
from pydantic_core import to_json

from perdure.activities.run.definition import build_definition
from perdure.decisions.tools import builtin_names
from perdure.process.project import build_project
from perdure.settings import load_settings

# cl100k's count times 1.3, the measured ratio of Claude's tokens to it, is 3.40 to 3.45 bytes per token of these texts.
BYTES_PER_TOKEN = 3.4


async def overhead(folder: Path, front_matter: str) -> int:
    """Estimate the tokens of an agent's calls, without its prompt and its one tool."""
    (folder / "agents").mkdir(parents=True)
    (folder / "agents" / "clerk.md").write_text(f"---\ntools: [fetch]\n{front_matter}\n---\nYou are a clerk.\n")
    async with httpx.AsyncClient() as http:
        project = build_project(load_settings({}, folder), http)
    definition = build_definition(project, project.agents["clerk"], may_delegate=True)
    front = definition.system.removesuffix("You are a clerk.").encode()
    assert len(front) < len(definition.system)
    own = [tool.model_dump() for tool in definition.tools if tool.name in builtin_names()]
    assert len(own) == len(definition.tools) - 1
    return round(len(front + to_json(own)) / BYTES_PER_TOKEN)


@pytest.mark.parametrize(
    ("front_matter", "limit"),
    [
        pytest.param("journal: false", 600, id="without a journal"),
        pytest.param("", 900, id="as it comes"),
        pytest.param("follow_ups: {}", 1300, id="with follow-ups"),
        pytest.param("peers: [default]", 1400, id="with peers"),
    ],
)
async def test_the_overhead_of_a_call_is_bounded(tmp_path: Path, front_matter: str, limit: int) -> None:
    assert await overhead(tmp_path, front_matter) <= limit

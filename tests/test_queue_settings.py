"""A tool of the kind `queue` in `perdure.toml`: what it may say, and what is refused in one line."""

from pathlib import Path

import httpx
import pytest

from perdure.contracts.tool import Effect, ToolKind, ToolRoute
from perdure.process.project import build_project
from perdure.settings import ProjectError
from tests.projects import load_project

TOOL = """
[tools.weigh]
kind = "queue"
description = "Weighs a thing."
input_schema = { type = "object" }
"""
WHERE = 'task_queue = "scales"\nactivity = "weigh"\n'


async def route_of(folder: Path, lines: str) -> ToolRoute:
    async with httpx.AsyncClient() as client:
        return build_project(load_project(folder, TOOL + lines), client).tools["weigh"].route


async def test_a_queue_tool_has_its_task_queue_and_activity(tmp_path: Path) -> None:
    route = await route_of(tmp_path, WHERE + 'effect = "keyed"\ntimeout = "1h"\nheartbeat = "10s"\n')
    assert (route.kind, route.effect, route.timeout.total_seconds()) == (ToolKind.queue, Effect.keyed, 3600)
    assert route.queue is not None
    assert route.queue.model_dump(mode="json") == {"task_queue": "scales", "activity": "weigh", "heartbeat": "PT10S"}


async def test_a_queue_tool_is_once_without_heartbeat_by_default(tmp_path: Path) -> None:
    route = await route_of(tmp_path, WHERE)
    assert route.queue is not None
    assert (route.effect, route.queue.heartbeat) == (Effect.once, None)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('task_queue = "scales"\n', ("line 2: tools.weigh.activity:",)),
        ('task_queue = ""\nactivity = "weigh"\n', ("line 6: tools.weigh.task_queue:",)),
        ('task_queue = "perdure"\nactivity = "weigh"\n', ("tools.weigh.task_queue", "this project's own worker")),
        (WHERE + 'heartbeat = "often"\n', ("tools.weigh", "heartbeat")),
        (WHERE + 'url = "http://127.0.0.1"\n', ("tools.weigh", "url", "no such setting")),
    ],
)
async def test_a_wrong_queue_tool_is_rejected_in_one_line(tmp_path: Path, lines: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ProjectError) as error:
        await route_of(tmp_path, lines)
    line = str(error.value)
    assert "\n" not in line
    assert all(word in line for word in words), line

"""Questions of an MCP server on the page: a form with its fields, and a link that the page does not open."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.testkit.model_server import ScriptedAnswer, calls
from tests.browser import needs_browser
from tests.e2e.projects import MakeProject, turn_of
from tests.gateway.conftest import Gateway, serve_gateways
from tests.gateway.paging import Page, card_of, driver, page
from tests.mcp.tasks import TaskServer, task_server

__all__ = ["driver", "page"]  # fixtures


def replies(body: dict[str, Any]) -> ScriptedAnswer:
    """Calls the tool that the goal names, and finishes with what came."""
    if turn_of(body) == 0:
        goal = str(body["messages"][0]["content"])
        return calls((f"bank__{'fill' if 'fill' in goal else 'visit'}", {"what": "rent"}))
    return calls(("finish", {"outcome": f"done {body['messages'][-1]['content'][0]['content']}"}))


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskServer]:
    folder: Path = tmp_path_factory.mktemp("bank")
    with task_server(folder) as server:
        yield server


@pytest.fixture(scope="module")
async def gateway(make_project: MakeProject, bank: TaskServer) -> AsyncIterator[Gateway]:
    await bank.until_up()
    files = {
        ".mcp.json": json.dumps({"mcpServers": {"bank": {"type": "http", "url": bank.url}}}),
        "agents/default.md": "---\ntools: [bank__fill, bank__visit]\n---\nYou are tested.\n",
    }
    async with serve_gateways(make_project, replies, files) as opened:
        with opened.open() as gateway:
            yield gateway


@needs_browser
async def test_a_form_of_a_server_is_filled_in_on_the_page(gateway: Gateway, page: Page, bank: TaskServer) -> None:
    run_id = await gateway.waiting("fill it in")
    page.open_run(run_id)
    card = card_of(run_id)
    page.shows("The server of a tool asks", card)
    page.shows("size: one of s, l", card)
    page.choose("size *", "l")
    page.write("count", "3")
    page.press("Answer", card)
    page.shows("done answered", ".end.completed")
    [update] = [entry for entry in bank.log if entry["method"] == "tasks/update"]
    assert update["answers"] == {"q1": {"action": "accept", "content": {"size": "l", "gift": False, "count": 3}}}


@needs_browser
async def test_a_link_of_a_server_is_text_until_a_person_says_that_it_was_opened(gateway: Gateway, page: Page) -> None:
    run_id = await gateway.waiting("visit it")
    page.open_run(run_id)
    card = card_of(run_id)
    page.shows("wants you to open a page of e.example", card)
    page.shows("https://e.example/1", card)
    assert not page.all(f"{card} a[href*='e.example']")
    page.press("continue", card)
    page.shows("done answered", ".end.completed")

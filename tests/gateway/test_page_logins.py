"""A login to an MCP server from the page: the question's button, the authorization server, and the way back."""

import json
from collections.abc import AsyncIterator, Iterator

import pytest

from perdure.client.connection import connect
from perdure.features.mcp.activities.grants import NeedsLoginError
from perdure.features.mcp.offer import open_grants, servers_with_access
from perdure.features.mcp.questions import LOGGED_IN, login_question
from perdure.features.project_questions.client import ask_project
from perdure.settings import load_settings
from tests.browser import needs_browser
from tests.e2e.projects import MakeProject
from tests.gateway.conftest import AGENT, Gateway, replies, serve_gateways
from tests.gateway.paging import Page, driver, page
from tests.gateway.test_mcp_logins import KEYS
from tests.mcp.oauth import OAuthServer
from tests.ports import free_port

__all__ = ["driver", "page"]  # fixtures

PROJECT = """
[mcp.tickets]
auth = "oauth"
approvers = ["ops"]

[gateway]
public_url = "http://127.0.0.1:{port}"

[people]
ops = ["tester"]
"""


@pytest.fixture(scope="module")
def oauth() -> Iterator[OAuthServer]:
    with OAuthServer() as server:
        yield server


@pytest.fixture(scope="module")
async def gateway(make_project: MakeProject, oauth: OAuthServer) -> AsyncIterator[Gateway]:
    port = free_port()
    files = {
        "perdure.toml": PROJECT.format(port=port),
        ".mcp.json": json.dumps({"mcpServers": {"tickets": {"type": "http", "url": f"{oauth.url}/mcp"}}}),
        "agents/default.md": AGENT.replace("tools: [charge, lookup]\n", ""),
    }
    async with serve_gateways(make_project, replies, files, PERDURE_CODEC_KEYS=KEYS) as opened:
        with opened.open("--port", str(port)) as gateway:
            yield gateway


@needs_browser
async def test_a_person_logs_in_by_the_button_of_the_question(gateway: Gateway, page: Page) -> None:
    settings = load_settings(gateway.project.environment({}), gateway.project.folder)
    client = await connect(gateway.address, settings.codec, settings.payloads)
    store = open_grants(settings)
    needs = NeedsLoginError("tickets", await store.name_occasion(0), "no person has logged in")
    question = login_question(servers_with_access(settings)["tickets"], needs)
    await ask_project(client, settings.task_queue, question)
    page.open("now")
    page.shows("Log in to the MCP server tickets")
    page.shows("for a member of ops")
    page.press("go there", f'article[aria-label*="question:{question.id}"]')
    page.shows("Logged in to tickets. The runs that waited go on")
    answer = await client.get_workflow_handle(f"question:{question.id}").result()
    assert (answer["option"], answer["by"]) == (LOGGED_IN, "tester")
    grant = await store.read("tickets")
    assert grant is not None
    assert grant.by == "tester"
    page.open("now")
    page.shows("Nothing waits for a person.")

"""A login that a task of A2A waits for, from the stream's AUTH_REQUIRED over the gateway's callback to COMPLETED."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import httpx
import pytest
from a2a.client import ClientConfig, create_client
from a2a.types import SendMessageRequest

from tests.a2a.conftest import Other, message, shown, state_of, text_of
from tests.e2e.projects import MakeProject
from tests.mcp.desk import A2A, Desk, serve_desk
from tests.mcp.oauth import OAuthServer


@pytest.fixture
def oauth() -> Iterator[OAuthServer]:
    with OAuthServer() as server:
        yield server


@pytest.fixture
async def desk(make_project: MakeProject, oauth: OAuthServer) -> AsyncIterator[Desk]:
    async with serve_desk(make_project, oauth, A2A) as opened:
        yield opened


@asynccontextmanager
async def talking_by_public_url(desk: Desk, person: str) -> AsyncIterator[Other]:
    """The card names the address that people and programs outside know, which leads to the gateway."""
    own = httpx.URL(desk.gateway.url)

    async def lead(request: httpx.Request) -> None:
        request.url = request.url.copy_with(host=own.host, port=own.port)

    headers = {"Authorization": f"Bearer {desk.tokens[person]}"}
    hooks = {"request": [lead]}
    async with httpx.AsyncClient(headers=headers, timeout=60, trust_env=False, event_hooks=hooks) as http:
        settings = ClientConfig(streaming=True, httpx_client=http)
        yield Other(await create_client(f"{desk.gateway.url}/a2a/default", client_config=settings))


@pytest.mark.slow
async def test_a_stream_asks_for_the_login_of_its_requester_and_goes_on_after_it(desk: Desk) -> None:
    async with talking_by_public_url(desk, "ann") as other:
        states = list[str]()
        async for event in other.client.send_message(SendMessageRequest(message=message("stock: a1 "))):
            states.append(shown(event))
            if event.WhichOneof("payload") == "task":
                task_id = event.task.id
            if states[-1] == "AUTH_REQUIRED":
                asked = await desk.question_of(task_id)
                said = text_of(event.status_update.status)
                assert "Log in to the MCP server tickets" in said
                assert "as ann" in said
                assert said.endswith(f"A person logs in at http://gateway.test/#{quote(asked['run_id'], safe='')}")
                assert state_of((await other.get(task_id)).status) == "AUTH_REQUIRED"
                await desk.log_in("ann", asked["question"]["link"])
        assert states[0].startswith("task ")
        assert states[-2:] == ["artifact", "COMPLETED"]
        assert states.count("AUTH_REQUIRED") == 1
        task = await other.get(task_id)
    assert "pieces" in task.artifacts[0].parts[0].text
    assert desk.family_of("a1") is desk.logins["ann"]

"""Runs that need a login to an MCP server wait for one question, and a login lets all of them go on."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.client.runs import submit_answer
from perdure.contracts.run.signals import HumanInput
from perdure.contracts.tool import Effect, ToolKind, ToolRoute
from perdure.features.mcp.activities.connection import Connection
from perdure.features.mcp.activities.grants import GrantKeeper, GrantStore
from perdure.features.mcp.activities.tool import McpTool
from perdure.features.mcp.questions import settle_login
from perdure.testkit.model_server import calls
from tests.activities.test_mcp_grants import login_at_terminal, server_of, store_in
from tests.mcp.oauth import OAuthServer
from tests.workflows.conftest import MakeWorld, World
from tests.workflows.script import FINISH, count_replies
from tests.workflows.test_project_questions import listed_question, until_waiting

STOCK, WIPE = calls(("tickets__stock", {"article": "mug"})), calls(("tickets__wipe", {}))


@pytest.fixture
def oauth() -> Iterator[OAuthServer]:
    with OAuthServer() as server:
        yield server


class Tickets:
    """The tools of the server, as a worker has them."""

    def __init__(self, oauth: OAuthServer, store: GrantStore) -> None:
        self.oauth, self.store = oauth, store
        server = server_of(oauth, approvers=("ops",))
        self.connection = Connection(server, keeper=GrantKeeper(server, store))

    async def tool(self, name: str, effect: Effect = Effect.read) -> McpTool:
        pins = await self.connection.tools()
        route = ToolRoute(name=f"tickets__{name}", kind=ToolKind.mcp, effect=effect)
        return McpTool(route, name, pins[name], self.connection)

    async def question(self) -> str:
        return f"question:login:tickets:{await self.store.name_occasion(1)}"

    async def log_in(self, it: World) -> None:
        await settle_login(it.client, self.store, await login_at_terminal(self.oauth, self.store))


@pytest.fixture
async def tickets(oauth: OAuthServer, tmp_path: Path) -> Tickets:
    store = store_in(tmp_path / "grants")
    await login_at_terminal(oauth, store)
    return Tickets(oauth, store)


def says(first: Any) -> Any:
    return lambda body: [first, FINISH][count_replies(body)]


@pytest.mark.slow
async def test_a_revoked_grant_is_one_question_for_many_runs_and_a_login_frees_them(
    world: MakeWorld, tickets: Tickets
) -> None:
    tool = await tickets.tool("stock")
    tickets.oauth.revoke()
    async with world(says(STOCK), tool) as it:
        runs = [await it.start() for _ in range(4)]
        await until_waiting(it, await tickets.question(), 4)
        listed = await listed_question(it, await tickets.question())
        assert listed.question is not None
        assert "Log in to the MCP server tickets" in listed.question.text
        assert (listed.runs, listed.question.link) == (4, "v1/mcp/tickets/login")
        await tickets.log_in(it)
        await asyncio.gather(*(run.result() for run in runs))
        for run in runs:
            assert "pieces" in (await it.shown(run))[0]
            history = await it.raw_history(run)
            for family in tickets.oauth.families:  # nothing secret is in history
                assert family.access.encode() not in history
                assert family.refresh.encode() not in history
        assert tickets.oauth.count("login") == 2
        it.started.append(await tickets.question())
    await tickets.connection.close()


async def test_a_login_that_a_person_refuses_is_an_error_for_the_model(world: MakeWorld, tickets: Tickets) -> None:
    tool = await tickets.tool("stock", Effect.once)
    tickets.oauth.revoke()
    async with world(says(STOCK), tool) as it:
        run = await it.start()
        await until_waiting(it, await tickets.question(), 1)
        sender = {"door": "gateway", "token": "ann", "groups": ["ops"]}
        asked = it.client.get_workflow_handle(await tickets.question())
        with pytest.raises(Exception, match="is for ops"):
            await submit_answer(it.client, await tickets.question(), HumanInput(option="refuse"))
        await asked.execute_update("answer", {"option": "refuse", "sender": sender})
        await run.result()
        assert "ann refused to log in to tickets; the call was not made" in (await it.shown(run))[0]
        it.started.append(await tickets.question())
    await tickets.connection.close()


async def test_a_call_that_lacks_rights_waits_for_a_login_with_more_of_them(world: MakeWorld, tickets: Tickets) -> None:
    tool = await tickets.tool("wipe")
    async with world(says(WIPE), tool) as it:
        run = await it.start()
        await until_waiting(it, await tickets.question(), 1)
        listed = await listed_question(it, await tickets.question())
        assert listed.question is not None
        assert "needs more rights (admin)" in listed.question.text
        await tickets.log_in(it)
        await run.result()
        assert "wiped" in (await it.shown(run))[0]
        assert tickets.oauth.families[-1].scope == "stock admin"
        it.started.append(await tickets.question())
    await tickets.connection.close()


async def test_a_call_that_lacks_rights_and_may_not_be_repeated_is_over_and_people_are_asked(
    world: MakeWorld, tickets: Tickets
) -> None:
    tool = await tickets.tool("wipe", Effect.once)
    async with world(says(WIPE), tool) as it:
        run = await it.start()
        await run.result()
        assert "needs more rights (admin), and people are asked for them" in (await it.shown(run))[0]
        await until_waiting(it, await tickets.question(), 0)
        await tickets.log_in(it)
        it.started.append(await tickets.question())
    await tickets.connection.close()

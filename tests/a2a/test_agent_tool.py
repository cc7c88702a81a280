"""An agent of another Perdure as a tool: its outcome, its questions, and an approval that a person gives over there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from temporalio.client import Client

from perdure.contracts.tool import Effect, ToolKind, ToolRoute
from perdure.features.a2a_client.connection import AgentConnection
from perdure.features.a2a_client.tool import AgentTool
from perdure.testkit.model_server import calls
from tests.a2a.conftest import paid
from tests.gateway.conftest import Gateway
from tests.workflows.conftest import World, worlds
from tests.workflows.runs import cancel_run, expect_cancelled
from tests.workflows.script import FINISH, count_replies
from tests.workflows.test_mcp_tasks import result_in, until_looked


@asynccontextmanager
async def asking(
    client: Client, folder: Path, gateway: Gateway, message: str, agent: str = "default", **arguments: Any
) -> AsyncIterator[World]:
    """A world, with a server of its own, whose model sends an agent of the gateway one message."""
    async with httpx.AsyncClient(trust_env=False) as http:
        route = ToolRoute(name="desk", kind=ToolKind.a2a, effect=Effect.once, timeout=timedelta(seconds=60))
        headers = {"Authorization": f"Bearer {gateway.token}"}
        tool = AgentTool(route, "Pays.", AgentConnection(f"{gateway.url}/a2a/{agent}", headers, http, 30.0))
        first = calls(("desk", {"message": message, **arguments}))
        async with worlds(client, folder)(lambda body: [first, FINISH][count_replies(body)], tool) as it:
            yield it


async def test_its_outcome_is_the_result_and_its_context_goes_on(
    client: Client, tmp_path: Path, a2a_gateway: Gateway
) -> None:
    async with asking(client, tmp_path, a2a_gateway, "GOAL look", context_id="talk-7") as it:
        assert await result_in(it, await it.start()) == '{"content":"Hello, it is done.","context_id":"talk-7"}'
    async with asking(client, tmp_path, a2a_gateway, "GOAL recall", context_id="talk-7") as it:
        assert "You have said 2 things." in await result_in(it, await it.start())


async def test_its_typed_result_is_a_value(client: Client, tmp_path: Path, a2a_gateway: Gateway) -> None:
    async with asking(client, tmp_path, a2a_gateway, "GOAL count", "clerk", data={"sheet": 3}) as it:
        shown = await result_in(it, await it.start())
    assert '"data":[{"total":3}]' in shown


async def test_its_question_is_a_question_here_with_its_options(
    client: Client, tmp_path: Path, a2a_gateway: Gateway
) -> None:
    async with asking(client, tmp_path, a2a_gateway, "GOAL ask") as it:
        run = await it.start()
        question = (await it.until_state(run, question=True))["question"]
        await it.answer(run, text="red")
        shown = await result_in(it, run)
    assert "- answer (red or blue, optional)" in question["text"]
    assert "Done: red" in shown


async def test_its_approval_is_a_link_here_and_is_given_over_there(
    client: Client, tmp_path: Path, a2a_gateway: Gateway
) -> None:
    before = paid(a2a_gateway)
    async with asking(client, tmp_path, a2a_gateway, "GOAL pay") as it:
        run = await it.start()
        question = (await it.until_state(run, question=True))["question"]
        link = question["text"].split("\n\n")[-2]
        assert f"{a2a_gateway.url}/#" in question["text"]
        task = question["text"].split("task ")[-1].split()[0]
        await it.answer(run, decision="continue")
        await until_looked(it, run)
        assert paid(a2a_gateway) == before, f"nothing decides here about {link}"
        approved = await a2a_gateway.post(f"/v1/runs/{task}/answer", {"decision": "approve"})
        assert approved.status_code == 200, approved.text
        assert "Done: " in await result_in(it, run)
    assert paid(a2a_gateway) == before + 1


async def test_a_cancel_reaches_the_other_run(client: Client, tmp_path: Path, a2a_gateway: Gateway) -> None:
    async with asking(client, tmp_path, a2a_gateway, "GOAL long") as it:
        run = await it.start()
        await until_looked(it, run)
        await cancel_run(run, "signal")
        await expect_cancelled(run)
        assert "ended as canceled" in (await it.shown(run))[0]

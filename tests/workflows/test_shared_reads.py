"""The cost of reads and waits, in the actions that the server itself counts, and how soon a change is seen."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from rich.console import Console
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

import perdure.gateway.lists
from perdure.activities.security import NO_SECRETS
from perdure.activities.temporal import QueryCache
from perdure.answer_keys import NO_KEYS
from perdure.client.connection import register_search_attributes
from perdure.commands import chat
from perdure.contracts.bounds import Backoff
from perdure.contracts.tool import Approval, Effect, ToolKind
from perdure.converter import data_converter
from perdure.gateway.app import make_app
from perdure.gateway.auth import Gateway
from perdure.gateway.tokens import Scope, Tokens, new_token
from perdure.settings import load_settings
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from tests.conftest import TEMPORAL, dynamic_config
from tests.ports import free_port
from tests.workflows.conftest import World
from tests.workflows.following import FINISH, is_watched, make_follow_ups
from tests.workflows.lane import echo, new_id, say, until_idle

ASK = calls(("ask_human", {"question": "Which one?", "options": ["a", "b"]}))
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
COUNTED_WITHIN = 2.5  # seconds; the server reports its counters every second
SKIPPING = "grpc_UpdateWorkflowExecutionOptions"  # the action of `fast_forward`
QUERY = "grpc_QueryWorkflow"


@dataclass
class Meter:
    """A server where time can be skipped, and its counters."""

    env: WorkflowEnvironment
    port: int

    async def counters(self, name: str, label: str) -> Counter[str]:
        await asyncio.sleep(COUNTED_WITHIN)
        async with httpx.AsyncClient(trust_env=False) as http:
            lines = (await http.get(f"http://127.0.0.1:{self.port}/metrics")).text.splitlines()
        counted: Counter[str] = Counter()
        for line in lines:
            if line.startswith(f"{name}{{") and 'namespace="default"' in line:
                counted[line.partition(f'{label}="')[2].partition('"')[0]] += int(float(line.rpartition(" ")[2]))
        return counted

    async def actions(self) -> Counter[str]:
        counted = await self.counters("action", "action_type")
        del counted[SKIPPING]
        return counted

    async def lists(self) -> int:
        return (await self.counters("service_requests", "operation"))["ListWorkflowExecutions"]


@pytest.fixture(scope="module")
async def meter() -> AsyncIterator[Meter]:
    port = free_port()
    config = dynamic_config(**{"frontend.WorkflowTimeSkippingEnabled": True})
    async with await WorkflowEnvironment.start_time_skipping_v2(
        dev_server_existing_path=TEMPORAL,
        dev_server_extra_args=[*config, f"--metrics-port={port}"],
        data_converter=data_converter,
    ) as env:
        await register_search_attributes(env.client)
        with env.with_time_skipping_disabled():
            yield Meter(env, port)


async def test_a_parked_run_costs_nothing_in_a_day(world: Any, meter: Meter) -> None:
    async with world([ASK, FINISH], server=meter.env.client) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        before = await meter.actions()
        assert before.total() > 0
        await meter.env.fast_forward(run, DAY)
        assert await meter.actions() - before == Counter()
        await run.signal("human_input", {"text": "a"})
        await run.result()


async def test_a_follow_up_whose_run_is_open_costs_five_actions_an_hour_and_sees_the_end_at_once(
    world: Any, meter: Meter
) -> None:
    work = ScriptedTool("work", kind=ToolKind.signal)
    async with make_follow_ups(world)([calls(("work", {})), FINISH], work, server=meter.env.client) as here:
        turn = await here.it.start()
        await here.it.until_pending(turn, 1)
        run = await here.create(run_id=turn.id.removeprefix("run:"))
        await here.wait_for_reply(run)
        await here.publish(here.reply())
        await here.until_task(run, "t1", "resolved")
        await here.it.until(partial(is_watched, turn))
        before = await meter.actions()
        await meter.env.fast_forward(run, HOUR)
        spent = await meter.actions() - before
        assert 0 < spent.total() <= 5, spent  # the few looks that are left for a run that is terminated
        await here.it.send_result(turn, 1, "work")
        await asyncio.wait_for(run.result(), 10)
        watched = await run.fetch_history()
    assert "canceled" in str(watched).lower()


async def test_an_idle_chat_costs_nothing_and_shows_what_others_say_in_a_second(
    world: Any, meter: Meter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "LANE_POLL_SECONDS", 0.02)
    name, shown = new_id(), StringIO()
    async with world(echo, server=meter.env.client) as it:
        await say(it, name, "hello")
        await until_idle(it, name, 1)
        session = SimpleNamespace(client=it.client, settings=load_settings({}, tmp_path))
        talk = chat.ChatSession(session, name, None, Console(file=shown))  # type: ignore[arg-type]
        watching = asyncio.create_task(talk._watch_lane())
        await it.until(lambda: "> hello" in shown.getvalue())
        before = await meter.actions()  # takes over a hundred looks
        assert await meter.actions() - before == Counter()
        await say(it, name, "news")
        await it.until(lambda: "> news" in shown.getvalue())
        watching.cancel()


@dataclass
class Door:
    """A gateway in this process."""

    http: httpx.AsyncClient

    async def questions(self) -> dict[str, list[str]]:
        """The open questions by run."""
        answer = await self.http.get("/v1/questions")
        found: dict[str, list[str]] = {}
        for row in answer.json()["questions"]:
            found.setdefault(row["run_id"], []).append(row["question"]["id"] if row["question"] else "")
        return found

    async def answer(self, run_id: str, **body: Any) -> None:
        (await self.http.post(f"/v1/runs/{run_id}/answer", json=body)).raise_for_status()


@asynccontextmanager
async def opened(it: World, tmp_path: Path) -> AsyncIterator[Door]:
    tokens = Tokens(tmp_path / "tokens.json")
    written, stored = new_token("tester", (Scope.read, Scope.answer), None)
    tokens.add(stored)
    settings = SimpleNamespace(secrets=NO_SECRETS, answer_keys=NO_KEYS, file=SimpleNamespace(people={}))
    app = make_app(Gateway(SimpleNamespace(client=it.client, settings=settings), tokens))  # type: ignore[arg-type]
    headers = {"Authorization": f"Bearer {written}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here", headers=headers) as http:
        yield Door(http)


OPEN = 20


async def test_an_open_question_is_queried_once_however_often_a_page_reads(
    world: Any, meter: Meter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perdure.gateway.lists, "SHARED_SECONDS", 0.0)
    async with world([ASK] * OPEN + [FINISH], server=meter.env.client) as it, opened(it, tmp_path) as door:
        runs = [await it.start() for _ in range(OPEN)]
        for run in runs:
            await it.until_state(run, question=True)
        names = {run.id.removeprefix("run:") for run in runs}

        async def lists_all() -> bool:
            return names <= (await door.questions()).keys()

        await it.until(lists_all)
        others = len(await door.questions()) - OPEN  # of earlier tests
        before = await meter.actions()
        for _ in range(30):
            assert len(await door.questions()) == OPEN + others
        assert await meter.actions() - before == Counter()
        answered, *_ = names
        await door.answer(answered, text="a")
        assert answered not in await door.questions()


async def test_a_question_that_differs_from_the_last_in_its_id_alone_is_seen(
    world: Any, meter: Meter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both calls of the reply wait for the same approval. The first is denied at another door."""
    monkeypatch.setattr(perdure.gateway.lists, "SHARED_SECONDS", 0.0)
    charge = ScriptedTool("charge", effect=Effect.once, approval=Approval.always)
    script = [calls(("charge", {"usd": 1}), ("charge", {"usd": 1})), FINISH]
    async with world(script, charge, server=meter.env.client) as it, opened(it, tmp_path) as door:
        run = await it.start()
        name = run.id.removeprefix("run:")

        async def is_asked(*questions: str) -> bool:
            return (await door.questions()).get(name) == [*questions]

        await it.until(partial(is_asked, "q1", "q2"))
        await run.execute_update("answer", {"decision": "deny", "question_id": "q1"})
        await it.until(partial(is_asked, "q2"))
        await door.answer(name, decision="deny", question_id="q2")
        await run.result()
    assert charge.calls == []


async def test_a_second_question_of_a_follow_up_is_seen(
    world: Any, meter: Meter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perdure.gateway.lists, "SHARED_SECONDS", 0.0)
    async with make_follow_ups(world)(server=meter.env.client) as here, opened(here.it, tmp_path) as door:
        run = await here.create()

        async def asks(*tasks: str) -> bool:
            return (await door.questions()).get(run.id) == list(tasks)

        await here.add(run, "prompt", "t1", text="Which one?")
        await here.it.until(partial(asks, "t1"))
        await here.add(run, "prompt", "t2", text="And then?")
        await here.it.until(partial(asks, "t1", "t2"))
        await door.answer(run.id, question_id="t1", text="this")
        assert await asks("t2")
        await door.answer(run.id, question_id="t2", text="that")
        await run.result()


async def test_tabs_that_read_at_once_share_a_list(world: Any, meter: Meter, tmp_path: Path) -> None:
    async with world([], server=meter.env.client) as it, opened(it, tmp_path) as door:
        before = await meter.lists()
        looks = [door.http.get(path) for path in ("/v1/questions", "/v1/runs?limit=30") for _ in range(20)]
        assert {answer.status_code for answer in await asyncio.gather(*looks)} == {200}
        assert await meter.lists() - before == 2


async def test_a_query_without_an_answer_is_not_repeated_at_once(
    world: Any, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "perdure.activities.temporal.UNANSWERED_PAUSES", Backoff(30, 30)
    )  # however slow this machine is
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        raise RPCError("no worker", RPCStatusCode.DEADLINE_EXCEEDED, b"")

    async with world([ASK, FINISH], server=meter.env.client) as it:
        run, cache = await it.start(), QueryCache()
        await it.until_state(run, question=True)
        for _ in range(3):
            with pytest.raises(RPCError, match="no worker"):
                await cache.read(run, "state", ask)
        assert asked == 1
        await run.signal("cancel")
        with pytest.raises(WorkflowFailureError):
            await run.result()
        with pytest.raises(RPCError, match="no worker"):
            await cache.read(run, "state", ask)
        assert asked == 2  # its history has grown

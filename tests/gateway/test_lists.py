"""The lists of the gateway, which requests share at the rate that a namespace of Temporal allows."""

import asyncio
import json
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from temporalio.common import SearchAttributePair, TypedSearchAttributes

import perdure.gateway.lists
from perdure.activities.telemetry.attributes import AGENT_NAME, CONVERSATION_ID
from perdure.activities.temporal import FREE_VISIBILITY_CALLS, VISIBILITY_RATE
from perdure.contracts.run.state import RunStatus
from perdure.gateway.lists import SharedReads
from perdure.gateway.problems import ApiError
from tests.gateway.conftest import Gateway
from tests.waiting import until

Json = dict[str, Any]


async def test_a_flood_of_different_lists_is_bounded_and_a_shared_list_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perdure.gateway.lists, "MAX_LIST_DELAY", 0.5)
    reads, started = SharedReads(), 0

    async def start() -> str:
        nonlocal started
        started += 1
        return "a list"

    flood = [reads.read(number, start) for number in range(100)]
    answers = await asyncio.gather(*flood, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, ApiError)]
    assert started == answers.count("a list") == 100 - len(refused)
    assert FREE_VISIBILITY_CALLS <= started <= FREE_VISIBILITY_CALLS + VISIBILITY_RATE
    assert {(error.status_code, error.headers and error.headers["Retry-After"]) for error in refused} == {(503, "2")}
    assert await reads.read(0, start) == "a list"  # read just now
    assert started == answers.count("a list")


async def read_list(gateway: Gateway, path: str, **query: str) -> Json:
    async with gateway.http as http:
        answer = await http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    listed: Json = answer.json()
    return listed


async def ids_listed(gateway: Gateway, **query: str) -> set[str]:
    return {run["run_id"] for run in (await read_list(gateway, "/v1/runs", **query))["runs"]}


async def start_in(gateway: Gateway, conversation: str, goal: str = "say: something") -> str:
    answer = await gateway.post("/v1/runs", {"payload": {"goal": goal, "conversation_id": conversation}})
    assert answer.status_code == 202, answer.text
    run_id: str = answer.json()["run_id"]
    return run_id


async def start_bare(gateway: Gateway, conversation: str, *, queue: str, agent: str = "default", **options: Any) -> str:
    """A workflow of the type of runs, as Temporal may have one: without a valid input, or without a worker."""
    run_id = uuid4().hex[:8]
    pairs = [SearchAttributePair(CONVERSATION_ID, conversation), SearchAttributePair(AGENT_NAME, agent)]
    known = TypedSearchAttributes(pairs)
    await gateway.client.start_workflow(
        "AgentRun", {}, id=f"run:{run_id}", task_queue=queue, search_attributes=known, **options
    )
    return run_id


async def test_runs_are_listed_by_each_status(gateway: Gateway) -> None:
    """Those that Temporal ended, too, which have written no status."""
    conversation = f"statuses {uuid4().hex[:8]}"
    stopped = await start_in(gateway, conversation, "ask: what")
    expected = {
        RunStatus.completed: {await start_in(gateway, conversation)},
        RunStatus.waiting_on_human: {await start_in(gateway, conversation, "ask: which")},
        RunStatus.waiting_on_tool: {await start_in(gateway, conversation, "lookup")},
        RunStatus.queued: {await start_bare(gateway, conversation, queue="nobody")},
        RunStatus.failed: {await start_bare(gateway, conversation, queue="perdure")},
        RunStatus.timed_out: {
            await start_bare(gateway, conversation, queue="nobody", execution_timeout=timedelta(milliseconds=100))
        },
        RunStatus.cancelled: {stopped, await start_bare(gateway, conversation, queue="nobody")},
        RunStatus.escalated: set[str](),
        RunStatus.running: set[str](),
    }
    for run_id in expected[RunStatus.cancelled] - {stopped}:
        await gateway.client.get_workflow_handle(f"run:{run_id}").terminate()
    await gateway.post(f"/v1/runs/{stopped}/cancel", {})

    async def is_listed(status: RunStatus) -> bool:
        return await ids_listed(gateway, conversation=conversation, status=status) == expected[status]

    for status in RunStatus:
        await until(partial(is_listed, status))
    assert await ids_listed(gateway, conversation=conversation, since="1h") == set().union(*expected.values())
    printed = await asyncio.to_thread(
        gateway.project.perdure,
        *("list", "--conversation", conversation, "--status", "cancelled", "--since", "1h", "--json"),
        TEMPORAL_ADDRESS=gateway.address,
    )
    assert {json.loads(line)["run_id"] for line in printed.out.splitlines()} == expected[RunStatus.cancelled]
    for status in (RunStatus.waiting_on_human, RunStatus.waiting_on_tool, RunStatus.queued):
        for run_id in expected[status]:
            await gateway.client.get_workflow_handle(f"run:{run_id}").terminate()


async def test_a_cursor_goes_with_its_filters(gateway: Gateway) -> None:
    conversation = f"it's paged {uuid4().hex[:8]}"  # a query cannot hold the quote
    other = conversation.replace("it's", "it'll")
    own = {await start_in(gateway, conversation) for _ in range(3)} | {await start_in(gateway, other)}

    async def are_listed() -> bool:
        return own <= await ids_listed(gateway, agent="default", since="1h", limit="200")

    await until(are_listed)
    own = await ids_listed(gateway, conversation=conversation)
    assert len(own) == 3
    paged, query = list[str](), {"conversation": conversation, "since": "1h", "agent": "default", "limit": "2"}
    page = await read_list(gateway, "/v1/runs", **query)
    cursor = page["cursor"]
    while True:
        paged += [run["run_id"] for run in page["runs"]]
        if page["cursor"] is None:
            break
        page = await read_list(gateway, "/v1/runs", **query, cursor=page["cursor"])
    assert sorted(paged) == sorted(own)
    for changed in ({"since": "2h"}, {"agent": "clerk"}, {"conversation": other}, {"status": "failed"}):
        async with gateway.http as http:
            refused = await http.get("/v1/runs", params={**query, **changed, "cursor": cursor})
        assert (refused.status_code, refused.json()["field"]) == (422, "cursor")
        assert refused.json()["detail"] == "invalid cursor: it belongs to a list with other parameters"


async def test_a_filter_that_means_nothing_is_refused_in_one_line(gateway: Gateway) -> None:
    for wrong in ("status=done", "since=soon", "since=0s", "agent="):
        refused = await gateway.get(f"/v1/runs?{wrong}")
        assert (refused.status_code, refused.json()["field"]) == (422, wrong.partition("=")[0]), wrong
    assert await ids_listed(gateway, agent="nobody") == set()
    for options, reason in (
        (("--status", "done"), "'done' is not one of"),
        (("--since", "soon"), "'soon' is not a duration"),
        (("--dead", "--agent", "default"), "leave --dead out"),
        (("--follow-ups", "--agent", "default"), "a follow-up has no agent"),
    ):
        printed = await asyncio.to_thread(gateway.project.perdure, "list", *options, TEMPORAL_ADDRESS=gateway.address)
        assert (printed.code, len(printed.err.splitlines())) == (2, 1)
        assert reason in printed.err

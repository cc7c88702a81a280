"""The lists of the gateway, which requests share at the rate that a namespace of Temporal allows."""

import asyncio
import json
import shutil
import sys
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.common import SearchAttributePair, TypedSearchAttributes

import perdure.client.overview
import perdure.gateway.lists
from perdure.activities.telemetry.attributes import AGENT_NAME, CONVERSATION_ID
from perdure.activities.temporal import FREE_VISIBILITY_CALLS, VISIBILITY_RATE
from perdure.client.dead_letters import find_dead_letters
from perdure.client.overview import read_runs_overview
from perdure.contracts.run.state import RunStatus
from perdure.gateway.lists import SharedReads
from perdure.gateway.problems import ApiError
from perdure.process.agents import describe_agents
from perdure.settings import load_settings
from tests.gateway.conftest import Gateway
from tests.gateway.test_runs import wait_for_end
from tests.gateway.test_webhooks import standard
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

    async def have_ended() -> bool:  # one that ends between two pages may be on both
        return own <= await ids_listed(gateway, agent="default", since="1h", status="completed", limit="200")

    await until(have_ended)
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


async def test_the_overview_says_what_runs_did_and_what_needs_a_person(gateway: Gateway) -> None:
    """By agent since a time; of open runs all, and of failed ones those that ended since then."""
    agent = f"clerk {uuid4().hex[:8]}"
    before = await read_list(gateway, "/v1/overview")
    asks, done = await gateway.waiting(), await gateway.start()
    failed = [await start_bare(gateway, "none", queue="perdure", agent=agent) for _ in range(2)]
    order = uuid4().hex[:8]
    body = json.dumps({"type": "order.created", "data": {"order": {"id": order}}}).encode()
    async with gateway.http as http:
        await http.post("/v1/webhooks/mine", content=body, headers=standard(body, id_=order))

    async def is_told() -> bool:
        told = await read_list(gateway, "/v1/overview")
        return (
            {run["run_id"] for run in told["failed"]} >= set(failed)
            and {"agent": agent, "runs": 2, "cost_usd": 0.0} in told["agents"]
            and told["open"]["waiting_on_human"] > before["open"]["waiting_on_human"]
            and told["dead_letters"] > before["dead_letters"]
        )

    await until(is_told)
    told = await read_list(gateway, "/v1/overview")
    [default] = [total for total in told["agents"] if total["agent"] == "default"]
    assert default["runs"] >= 2
    assert {run["agent"] for run in told["failed"] if run["run_id"] in failed} == {agent}
    assert set(told["open"]) == {"queued", "running", "waiting_on_tool", "waiting_on_human"}
    assert (told["has_worker"], told["web_ui"], told["is_partial"], told["wedged"]) == (True, None, False, [])
    assert (told["namespace"], told["task_queue"]) == ("default", "perdure")
    assert told["figures"]["reconciler"]["counts"]["claim"] == 0
    assert [row.id async for row in gateway.client.list_workflows(f"{told['query']} AND AgentName = '{agent}'")]
    now = datetime.now(timezone(timedelta(hours=5))).isoformat()
    later = await read_list(gateway, "/v1/overview", since=now)
    assert (later["agents"], later["failed"]) == ([], [])
    for run_id in (asks, done):
        await gateway.post(f"/v1/runs/{run_id}/cancel", {})


@pytest.mark.parametrize("since", ["yesterday", "2026-11-25T00:00:00", "1999-01-01T00:00:00Z", "2999-01-01T00:00:00Z"])
async def test_the_time_of_an_overview_has_a_zone_and_is_of_the_last_year(gateway: Gateway, since: str) -> None:
    refused = await gateway.get(f"/v1/overview?since={since}")
    assert (refused.status_code, refused.json()["field"]) == (422, "since")


async def test_an_overview_of_more_runs_than_are_looked_at_is_partial(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        await wait_for_end(gateway, await gateway.start())
    monkeypatch.setattr(perdure.client.overview, "RUNS_COUNTED", 1)

    async def is_cut() -> bool:
        told = await read_runs_overview(gateway.client, datetime.now(UTC) - timedelta(hours=1))
        return (sum(total.runs for total in told.agents), told.is_partial) == (1, True)

    await until(is_cut)


async def test_a_dead_letter_that_was_started_again_is_none(gateway: Gateway) -> None:
    """Also if it was started again by a quoted id, which a query cannot hold."""
    [kept, again] = [f"start:it's {uuid4().hex[:8]}" for _ in range(2)]
    for letter in (kept, again):
        handle = await gateway.client.start_workflow("Inbound", {}, id=letter, task_queue="perdure")
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    await gateway.client.start_workflow("Inbound", {}, id=again, task_queue="nobody")

    async def are_right() -> bool:
        found = {execution.id for execution in await find_dead_letters(gateway.client)}
        return kept in found and again not in found

    await until(are_right)
    listed = await read_list(gateway, "/v1/dead-letters", limit="200")
    [letter] = [letter for letter in listed["dead_letters"] if letter["id"] == kept]
    assert (letter["kind"], letter["failed_at"] is None, listed["is_partial"]) == ("Inbound", False, False)
    assert letter["reason"]
    cut = await read_list(gateway, "/v1/dead-letters", limit="1")
    assert (len(cut["dead_letters"]), cut["is_partial"]) == (1, len(listed["dead_letters"]) > 1)
    await gateway.client.get_workflow_handle(again).terminate()


async def test_agents_are_listed_with_the_schemas_of_their_tools(gateway: Gateway) -> None:
    listed = await read_list(gateway, "/v1/agents")
    agents = {agent["name"]: agent for agent in listed["agents"]}
    assert (set(agents), listed["faulty"]) == ({"default", "clerk"}, [])
    clerk = agents["clerk"]
    assert (clerk["description"], clerk["peers"], clerk["limits"]) == ("Stamps.", ["default"], {"max_steps": 7})
    assert (clerk["pace"], clerk["external"], len(clerk["models"])) == ("live", False, 1)
    assert clerk["input_schema"]["properties"] == {"sheet": {"type": "integer"}}
    assert clerk["output_schema"]["properties"] == {"stamps": {"type": "integer"}}
    stamp, lookup = clerk["tools"]
    assert {name: stamp[name] for name in ("name", "kind", "effect", "approval", "approval_timeout_seconds")} == {
        "name": "stamp",
        "kind": "python",
        "effect": "keyed",
        "approval": "always",
        "approval_timeout_seconds": 300.0,
    }
    assert stamp["description"] == "Stamp a sheet."
    assert stamp["input_schema"]["properties"]["sheet"]["type"] == "integer"
    assert stamp["input_schema"]["required"] == ["sheet"]
    assert (lookup["kind"], lookup["approval"], lookup["input_schema"]["required"]) == ("signal", "never", ["what"])


@pytest.mark.parametrize("lacks", [None, "bs4"])
def test_a_tool_that_does_not_load_here_is_listed_without_its_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str | None
) -> None:
    """As are the schemas of an agent, and with what the files say of the others; also without a worker's libraries."""
    if lacks:
        monkeypatch.setitem(sys.modules, lacks, None)
        for module in ("perdure.process.project", "perdure.activities.tools.fetch"):
            monkeypatch.delitem(sys.modules, module, raising=False)
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "clerk.md").write_text(
        "---\nname: clerk\ntools: [gone, kept]\noutput_schema: not_here:Invoice\n---\nYou count.\n"
    )
    (tmp_path / "agents" / "odd.md").write_text("---\nname: odd\ntools: [nothing]\n---\nYou fail.\n")
    (tmp_path / "perdure.toml").write_text(
        '[tools.gone]\nkind = "python"\ntarget = "not_here:function"\neffect = "read"\n'
        '[tools.kept]\nkind = "signal"\neffect = "read"\ndescription = "Keep."\ninput_schema = { type = "object" }\n'
    )
    listed = describe_agents(load_settings({}, tmp_path))
    [clerk] = [agent for agent in listed.agents if agent.name == "clerk"]
    assert (listed.faulty, clerk.output_schema) == (("odd",), None)
    assert [(tool.name, tool.kind, tool.effect, tool.input_schema) for tool in clerk.tools] == [
        ("gone", "python", "read", None),
        ("kept", "signal", "read", {"type": "object"}),
    ]


async def test_conversations_are_listed_with_the_turn_that_runs(gateway: Gateway) -> None:
    """Also one with a quote, which a query cannot hold, and one whose lane has ended."""
    own = [f"it's listed {uuid4().hex[:8]}" for _ in range(3)]
    busy, idle, closed = own
    runs = dict[str, str]()
    for conversation, goal in ((busy, "ask: which"), (idle, "say: this"), (closed, "say: that")):
        body = {"request_id": "1", "goal": goal}
        answer = await gateway.post(f"/v1/conversations/{quote(conversation)}/requests", body)
        runs[conversation] = answer.json()["run_id"]
    for conversation in (idle, closed):
        await wait_for_end(gateway, runs[conversation])
    await gateway.client.get_workflow_handle(f"conversation:{closed}").terminate()
    listed = dict[str, Json]()

    async def are_listed() -> bool:
        page = await read_list(gateway, "/v1/conversations", limit="200")
        listed.update({row["conversation_id"]: row for row in page["conversations"]})
        turn = listed.get(busy, {}).get("turn") or {}
        return [listed.get(conversation, {}).get("status") for conversation in own] == ["busy", "idle", "closed"] and (
            turn["status"] == "waiting_on_human"
        )

    await until(are_listed)
    assert listed[busy]["turn"]["run_id"] == runs[busy]
    assert [listed[conversation]["turn"] for conversation in (idle, closed)] == [None, None]
    assert [listed[conversation]["closed_at"] is None for conversation in own] == [True, True, False]
    paged, cursor = set[str](), None
    while not set(own) <= paged:
        page = await read_list(gateway, "/v1/conversations", limit="1", **({"cursor": cursor} if cursor else {}))
        paged |= {row["conversation_id"] for row in page["conversations"]}
        cursor = page["cursor"]
        assert cursor or set(own) <= paged
    other = (await read_list(gateway, "/v1/runs", limit="1"))["cursor"]
    async with gateway.http as http:
        refused = await http.get("/v1/conversations", params={"cursor": other})
    assert (refused.status_code, refused.json()["field"]) == (422, "cursor")
    await gateway.post(f"/v1/runs/{runs[busy]}/cancel", {})


async def test_follow_ups_are_listed_with_the_time_of_their_next_event(gateway: Gateway) -> None:
    name, session = f"f-{uuid4().hex[:8]}", f"follow-ups {uuid4().hex[:8]}"
    definition = {"origin": {}, "resumeTarget": {"session_id": session}, "summary": "A waits for two dates."}
    command = {"type": "cmd.workflow.create", "data": {"workflowId": name, "definition": definition}}
    handle = await gateway.client.start_workflow("FollowUp", command, id=f"wf:{name}", task_queue="perdure")
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    for number, end in enumerate((soon + timedelta(days=1), soon)):
        data = {"workflowId": name, "taskId": f"t{number}", "kind": "wait", "description": "Wait."}
        task = {"type": "cmd.workflow.task.create", "data": {**data, "input": {"until": end.isoformat()}}}
        await handle.execute_update("create_task", task)
    found = list[Json]()

    async def is_listed(status: str) -> bool:
        found[:] = (await read_list(gateway, "/v1/follow-ups", conversation=session))["follow_ups"]
        return [row["status"] for row in found] == [status]

    await until(partial(is_listed, "waiting_on_tool"))
    [row] = found
    assert (row["run_id"], row["conversation"], row["summary"]) == (f"wf:{name}", session, "A waits for two dates.")
    assert (row["open_tasks"], datetime.fromisoformat(row["next_at"])) == (2, soon)
    await handle.signal("cancel")
    await until(partial(is_listed, "cancelled"))
    [row] = found
    assert (row["summary"], row["open_tasks"], row["next_at"]) == (None, None, None)
    assert (await read_list(gateway, "/v1/follow-ups", conversation=session, status="failed"))["follow_ups"] == []


async def test_schedules_are_listed_with_their_next_start(gateway: Gateway) -> None:
    names = sorted(f"nightly-{uuid4().hex[:8]}" for _ in range(2))
    perdure = partial(gateway.project.perdure, TEMPORAL_ADDRESS=gateway.address)
    for name in reversed(names):
        options = ("--cron", "0 3 * * *", "--time-zone", "Europe/Berlin", "--goal", "say: good night")
        added = await asyncio.to_thread(perdure, "schedule", "add", name, *options)
        assert added.code == 0, added.err

    async def are_listed() -> bool:
        listed = (await read_list(gateway, "/v1/schedules"))["schedules"]
        return [row["name"] for row in listed if row["name"] in names] == names

    await until(are_listed)
    listed = await read_list(gateway, "/v1/schedules")
    [row] = [row for row in listed["schedules"] if row["name"] == names[0]]
    assert (row["when"], row["goal"], row["is_paused"]) == ("0 3 * * * (Europe/Berlin)", "say: good night", False)
    assert datetime.fromisoformat(row["next"]) > datetime.now(UTC)
    assert listed["is_partial"] is False
    cut = await read_list(gateway, "/v1/schedules", limit="1")
    assert (len(cut["schedules"]), cut["is_partial"]) == (1, True)
    for name in names:
        await asyncio.to_thread(perdure, "schedule", "remove", name)


async def test_mailboxes_are_listed_with_what_waits_and_what_failed(gateway: Gateway) -> None:
    """One whose folder is gone is listed too, without what its folder said."""
    box, gone = gateway.project.folder / "box of clerk", gateway.project.folder / "gone"
    perdure = partial(gateway.project.perdure, TEMPORAL_ADDRESS=gateway.address)
    plan = box / "inbox" / "p"
    plan.mkdir(parents=True)
    (plan / "junk.md").write_text("no message")
    (box / "inbox" / "a file beside the plans").write_text("ignored")
    for folder in (box, gone):
        ended = await asyncio.to_thread(perdure, "mail", str(folder), "--agent", "clerk", "--once")
        assert ended.code == 0, ended.err
    shutil.rmtree(gone)
    for number in range(2):
        (plan / f"late-{number}.md").write_text("not claimed: no bridge runs")
    (plan / "late.md.tmp").write_text("not finished")
    listed = await read_list(gateway, "/v1/mailboxes")
    boxes = {row["name"]: row for row in listed["mailboxes"]}
    assert (set(boxes), listed["is_partial"]) == ({"box of clerk", "gone"}, False)
    row = boxes["box of clerk"]
    assert (row["agent"], row["external"], row["available"]) == ("clerk", False, True)
    assert (row["waiting"], row["dead_letters"], row["open"]) == (2, 1, 0)
    assert datetime.fromisoformat(row["heartbeat_at"]) <= datetime.now(UTC)
    assert (boxes["gone"]["available"], boxes["gone"]["waiting"], boxes["gone"]["mode"]) == (False, None, None)
    cut = await read_list(gateway, "/v1/mailboxes", limit="1")
    assert (len(cut["mailboxes"]), cut["is_partial"]) == (1, True)

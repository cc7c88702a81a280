"""Runs as MCP tasks at the gateway, asked by the Python SDK's client, and by plain HTTP where no client would."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import jsonschema
import pytest
from grpc import StatusCode
from mcp_types import CallToolResult

from tests.gateway.conftest import Gateway, Gateways
from tests.mcp.conftest import (
    KEY,
    PUBLIC,
    Json,
    accept,
    mcp_client,
    new_token,
    paid,
    said,
    task_client,
)
from tests.proxy import Proxy, proxied
from tests.waiting import until

INVALID_PARAMS, INTERNAL_ERROR, NO_CAPABILITY = -32602, -32603, -32021


async def test_a_task_from_the_start_to_the_result(mcp_gateway: Gateway) -> None:
    async with task_client(mcp_gateway) as tasks:
        made = await tasks.start("GOAL work")
        done = await tasks.until(made["taskId"])
        again = await tasks.get(made["taskId"])
        tool = next(each for each in (await tasks.client.list_tools()).tools if each.name == "start_run")
    assert (made["status"], made["ttlMs"], made["pollIntervalMs"]) == ("working", None, 2000)
    assert (done["status"], done["resultType"], done["createdAt"]) == ("completed", "complete", made["createdAt"])
    assert done["ttlMs"] > 24 * 3600 * 1000  # the namespace's retention, from the end on
    result = done["result"]
    assert (result["isError"], result["content"][0]["text"]) == (False, "It is done.")
    assert result["structuredContent"]["page"] == f"{PUBLIC}/#{made['taskId']}"
    assert result["structuredContent"]["folder"] == ""  # a path of the gateway's machine is of no use elsewhere
    jsonschema.validate(result["structuredContent"], tool.output_schema or {})  # as the client's may do
    assert again == done


async def test_a_question_in_words_is_a_form(mcp_gateway: Gateway) -> None:
    async with task_client(mcp_gateway) as tasks:
        task = (await tasks.start("GOAL ask"))["taskId"]
        asked = await tasks.until(task, "input_required")
        again = await tasks.get(task)
        acknowledged = await tasks.update(task, q1=accept(answer="red"), q9=accept(answer="blue"))
        done = await tasks.until(task)
        await tasks.update(task, q1=accept(answer="blue"))  # twice, and after the end
    [(key, request)] = asked["inputRequests"].items()
    assert again["inputRequests"] == asked["inputRequests"]  # a changed request under one key breaks clients
    assert (key, request["method"], request["params"]["mode"]) == ("q1", "elicitation/create", "form")
    assert request["params"]["message"] == "the agent asks: Red or blue?"
    field = request["params"]["requestedSchema"]["properties"]["answer"]
    assert (field["type"], field["description"]) == ("string", "red, blue, or other words")
    assert {key for key in acknowledged if key != "_meta"} == {"resultType"}
    assert "red" in done["result"]["content"][0]["text"]
    events = [event for _, event in await mcp_gateway.events(task) if event.get("type") == "answer_received"]
    assert [(event["answer"]["text"], event["answer"]["by"]) for event in events] == [("red", "tester")]


async def test_an_answer_that_is_sent_twice_at_once_counts_once(mcp_gateway: Gateway) -> None:
    async with task_client(mcp_gateway) as tasks:
        task = (await tasks.start("GOAL ask"))["taskId"]
        await tasks.until(task, "input_required")
        await asyncio.gather(*(tasks.update(task, q1=accept(answer="red")) for _ in range(3)))
        assert "red" in (await tasks.until(task))["result"]["content"][0]["text"]


async def test_a_cancel_of_a_question_leaves_it_open_and_a_decline_answers_it(mcp_gateway: Gateway) -> None:
    """A client without a person cancels by itself."""
    async with task_client(mcp_gateway) as tasks:
        task = (await tasks.start("GOAL ask"))["taskId"]
        asked = await tasks.until(task, "input_required")
        await tasks.update(task, q1={"action": "cancel"})
        assert (await tasks.get(task))["inputRequests"] == asked["inputRequests"]
        await tasks.update(task, q1={"action": "decline"})
        assert "declined to answer" in (await tasks.until(task))["result"]["content"][0]["text"]


@pytest.mark.parametrize("response", [accept(), accept(answer=""), accept(answer=7), {"action": "yes"}, "red", None])
async def test_a_malformed_response_is_refused_in_one_line(mcp_gateway: Gateway, response: Any) -> None:
    async with task_client(mcp_gateway) as tasks:
        task = (await tasks.start("GOAL ask", key="malformed"))["taskId"]
        await tasks.until(task, "input_required")
        refused = await tasks.refused("update", task, q1=response)
        assert (refused.code, "q1: " in refused.error.message) == (INVALID_PARAMS, True)
        assert (await tasks.get(task))["status"] == "input_required"


FORGED: tuple[Json, ...] = (
    accept(),
    accept(answer="approve"),
    accept(decision="approve", call="x"),
    accept(ok=True, answer="approve_tool"),
    {"action": "decline"},
    {"action": "cancel"},
)


async def test_no_form_approves_and_a_person_does_on_the_page(mcp_gateway: Gateway) -> None:
    """Accepting a link means that somebody opened it."""
    before = paid(mcp_gateway)
    async with task_client(mcp_gateway) as tasks:
        task = (await tasks.start("GOAL pay"))["taskId"]
        asked = await tasks.until(task, "input_required")
        params = asked["inputRequests"]["q1"]["params"]
        assert (params["mode"], params["url"]) == ("url", f"{PUBLIC}/#{task}")
        assert params["message"].startswith("approve a call: pay")
        assert "requestedSchema" not in params
        for forged in FORGED:
            await tasks.update(task, q1=forged)
            assert (await tasks.get(task))["inputRequests"] == asked["inputRequests"]
        refused = await tasks.call("answer_question", {"run_id": task, "question_id": "q1", "decision": "approve"})
        assert refused.is_error
        assert said(refused).endswith(f"question q1 is for a person (approval): {PUBLIC}/#{task}")
        assert paid(mcp_gateway) == before
        await mcp_gateway.post(f"/v1/runs/{task}/answer", {"decision": "approve"})
        done = await tasks.until(task)
        await tasks.update(task, q1=accept(answer="deny"))
    assert done["result"]["isError"] is False
    assert paid(mcp_gateway) == [*before, "42"]


async def test_a_matter_of_the_project_is_a_link_too(mcp_gateway: Gateway) -> None:
    """A budget, as a login would be. The run is held, and the question is one of its own."""
    async with task_client(mcp_gateway) as tasks:
        runs = [(await tasks.start("GOAL work", agent="thrifty"))["taskId"] for _ in range(2)]
        states = {task: await tasks.until(task, "completed", "input_required") for task in runs}
        [held] = [task for task in runs if states[task]["status"] == "input_required"]
        [(key, request)] = states[held]["inputRequests"].items()
        assert key.startswith("question:budget-starts-")
        assert request["params"]["mode"] == "url"
        assert request["params"]["url"] == f"{PUBLIC}/#{quote(key, safe='')}"
        await tasks.update(held, **{key: accept(answer="raise", option="raise")})
        refused = await tasks.call("answer_question", {"run_id": key, "question_id": key, "text": "raise"})
        assert refused.is_error
        assert (await tasks.get(held))["inputRequests"] == states[held]["inputRequests"]
        await mcp_gateway.post(f"/v1/runs/{quote(key, safe='')}/answer", {"option": "raise"})
        assert (await tasks.until(held))["status"] == "completed"


@pytest.mark.parametrize("modes", [None, {"form": {}}])
async def test_a_client_that_cannot_show_a_link_hears_where_a_person_decides(
    mcp_gateway: Gateway, modes: Json | None
) -> None:
    """By plain HTTP: the SDK's client declares both modes, or none."""
    async with task_client(mcp_gateway) as tasks:
        task = (await tasks.start("GOAL pay"))["taskId"]
        await tasks.until(task, "input_required")
        answer = await post(mcp_gateway, "tasks/get", {"taskId": task}, elicitation=modes)
        await tasks.cancel(task)
    shown = answer.json()["result"]
    assert (shown["status"], "inputRequests" in shown) == ("working", False)
    assert shown["statusMessage"].startswith("approve a call: pay")
    assert shown["statusMessage"].endswith(f"({PUBLIC}/#{task})")


async def test_the_same_key_is_the_same_task_and_without_one_two_starts_are_two(mcp_gateway: Gateway) -> None:
    other = await new_token(mcp_gateway, "runs:start", "runs:read")
    async with task_client(mcp_gateway) as tasks, task_client(mcp_gateway, other) as others:
        made = await asyncio.gather(*(tasks.start("GOAL work", key="k1") for _ in range(4)))
        shared = [await tasks.start("GOAL work", dedupe_key="mcp-1") for _ in range(2)]
        two = [await tasks.start("GOAL work") for _ in range(2)]
        elsewhere = await others.start("GOAL work", key="k1")
        changed = await tasks.call("start_run", {"goal": "GOAL play"}, "k1")
        both = await tasks.call("start_run", {"goal": "GOAL work", "dedupe_key": "x"}, "k1")
        wrong = await tasks.call("start_run", {"goal": "GOAL work"}, 7)
        taken = await others.call("start_run", {"goal": "GOAL work", "dedupe_key": "mcp-1"})
    [first] = {each["taskId"] for each in made}
    [second] = {each["taskId"] for each in shared}
    assert len({first, second, elsewhere["taskId"], *(each["taskId"] for each in two)}) == 5
    assert "the key started a run with other arguments" in said(changed)
    assert "they mean different runs" in said(both)
    assert f"{KEY} must be a text" in said(wrong)
    # A dedupe key is everybody's: the run is there to read, and no task of this token.
    assert isinstance(taken, CallToolResult)
    assert (taken.structured_content or {})["run_id"] == second


STRANGE_IDS = (
    "nobody",
    "",
    "wf:tasks",
    "question:login:x:1",
    "../../etc",
    "x" * 900,
    "é" * 900,
    "a\0b",
    "a\nb",
    "run:x",
)


async def test_the_id_of_another_token_is_an_unknown_task(mcp_gateway: Gateway) -> None:
    """Even to a token that may answer and cancel any run by other routes."""
    other = await new_token(mcp_gateway, "runs:start", "runs:read", "human:answer")
    async with task_client(mcp_gateway) as tasks, task_client(mcp_gateway, other) as others:
        task = (await tasks.start("GOAL ask"))["taskId"]
        asked = await tasks.until(task, "input_required")
        for id_ in (task, *STRANGE_IDS):
            for method in ("get", "update", "cancel"):
                refused = await others.refused(method, id_, q1=accept(answer="red"))
                assert (refused.code, refused.error.message) == (INVALID_PARAMS, "unknown task")
        assert (await tasks.get(task))["inputRequests"] == asked["inputRequests"]
        await tasks.cancel(task)


async def test_a_token_acts_on_its_own_runs_by_what_it_may_start(mcp_gateway: Gateway) -> None:
    """So a client needs no human:answer, which approves at the gateway's other routes."""
    starts, reads = [await new_token(mcp_gateway, *more, "runs:read") for more in (["runs:start"], [])]
    theirs = await mcp_gateway.waiting("GOAL ask")
    async with task_client(mcp_gateway, starts) as tasks, mcp_client(mcp_gateway, reads) as reader:
        task = (await tasks.start("GOAL ask"))["taskId"]
        await tasks.until(task, "input_required")
        answered = await tasks.call("answer_question", {"run_id": task, "question_id": "q1", "text": "red"})
        refused = [
            await tasks.call("answer_question", {"run_id": theirs, "question_id": "q1", "text": "red"}),
            await tasks.call("cancel_run", {"run_id": theirs}),
            await reader.call_tool("start_run", {"goal": "GOAL work"}),
            await reader.call_tool("cancel_run", {"run_id": task}),
        ]
        readable = await reader.call_tool("run_state", {"run_id": theirs})
        assert (await tasks.until(task))["status"] == "completed"
    assert said(answered) == "accepted"
    assert all(each.is_error for each in refused)
    assert "has no scope human:answer, and did not start this run" in said(refused[0])
    assert "has no scope human:answer" in said(refused[1])
    assert "has no scope runs:start" in said(refused[2])
    assert "has no scope human:answer" in said(refused[3])
    assert (readable.structured_content or {})["status"] == "waiting_on_human"


async def test_a_task_is_cancelled_once(mcp_gateway: Gateway) -> None:
    async with task_client(mcp_gateway) as tasks:
        task = (await tasks.start("GOAL ask"))["taskId"]
        await tasks.until(task, "input_required")
        await tasks.cancel(task)
        await tasks.cancel(task)
        done = await tasks.until(task)
        await tasks.cancel(task)
        late = (await tasks.start("GOAL work"))["taskId"]
        await tasks.until(late)
        await tasks.cancel(late)
        assert (await tasks.get(late))["status"] == "completed"
    assert (done["status"], "result" in done, "inputRequests" in done) == ("cancelled", False, False)


async def test_a_run_that_fails_is_an_error_of_the_tool_and_resumed_another_task(mcp_gateway: Gateway) -> None:
    token = await new_token(mcp_gateway, "runs:start", "runs:read")
    async with task_client(mcp_gateway, token) as tasks:
        task = (await tasks.start("GOAL fail"))["taskId"]
        failed = await tasks.until(task)
        resumed = await mcp_gateway.post(f"/v1/runs/{task}/resume", {})  # by a person: another token
        successor = resumed.json()["run_id"]
        again = await tasks.until(successor)
        forked = await mcp_gateway.post(f"/v1/runs/{task}/fork", {"step": 0})
        refused = await tasks.refused("get", forked.json()["run_id"])
        after = await tasks.get(task)
    result = failed["result"]
    assert (failed["status"], result["isError"]) == ("completed", True)
    assert "too strange" in result["content"][0]["text"]
    assert result["structuredContent"]["status"] == "failed"
    assert after["status"] == "completed"
    assert after["result"]["structuredContent"]["resumed_as"] == successor
    assert again["result"]["structuredContent"]["resumes"] == task
    assert refused.error.message == "unknown task"  # a fork is a person's other piece of work


async def test_an_escalated_run_is_an_error_with_its_status(mcp_gateway: Gateway) -> None:
    async with task_client(mcp_gateway) as tasks:
        done = await tasks.until((await tasks.start("GOAL give up"))["taskId"])
    assert (done["status"], done["result"]["isError"]) == ("completed", True)
    assert done["result"]["structuredContent"]["status"] == "escalated"
    assert "I cannot" in done["result"]["content"][0]["text"]


async def test_a_gateway_that_is_killed_between_polls_loses_no_task(mcp_gateways: Gateways) -> None:
    with mcp_gateways.open() as first:
        async with task_client(first) as tasks:
            task = (await tasks.start("GOAL ask"))["taskId"]
            asked = await tasks.until(task, "input_required")
        await asyncio.to_thread(first.process.send_signal, signal.SIGKILL)
    with mcp_gateways.open() as second:
        async with task_client(second) as tasks:
            assert (await tasks.get(task))["inputRequests"] == asked["inputRequests"]
            await tasks.update(task, q1=accept(answer="blue"))
            assert "blue" in (await tasks.until(task))["result"]["content"][0]["text"]


LOST = (("DescribeWorkflowExecution", "get"), ("GetWorkflowExecutionHistory", "update"))


async def test_a_task_is_not_unknown_while_temporal_is_away(mcp_gateways: Gateways) -> None:
    """A client would take its run for gone."""
    async with (
        proxied(mcp_gateways.address) as proxy,
        opened_beside(proxy, mcp_gateways) as gateway,
        task_client(gateway) as tasks,
    ):
        task = (await tasks.start("GOAL ask"))["taskId"]
        await tasks.until(task, "input_required")
        for lost, method in LOST:
            proxy.denied[lost] = StatusCode.UNAVAILABLE
            refused = await tasks.refused(method, task, q1=accept(answer="red"))
            assert (refused.code, "Temporal" in refused.error.message) == (INTERNAL_ERROR, True)
            proxy.denied.clear()
        await tasks.update(task, q1=accept(answer="red"))
        assert "red" in (await tasks.until(task))["result"]["content"][0]["text"]


@asynccontextmanager
async def opened_beside(proxy: Proxy, gateways: Gateways) -> AsyncIterator[Gateway]:
    """A gateway that reaches its server through a proxy of this process."""
    opening = replace(gateways, address=proxy.address).open()
    gateway = await asyncio.to_thread(opening.__enter__)
    try:
        yield gateway
    finally:
        await asyncio.to_thread(opening.__exit__, None, None, None)


async def test_a_start_whose_reply_is_lost_is_found_by_its_key(mcp_gateways: Gateways) -> None:
    """The gateway is killed with starts under way: some runs began, and none begins twice."""
    goal, keys = f"GOAL {uuid4().hex}", [f"lost-{number}" for number in range(20)]
    with mcp_gateways.open() as first:
        starts = [asyncio.create_task(start_by_key(first, goal, key)) for key in keys]
        await asyncio.wait(starts, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(first.process.send_signal, signal.SIGKILL)
        replies = await asyncio.gather(*starts, return_exceptions=True)
    with mcp_gateways.open() as second:
        found = [await start_by_key(second, goal, key) for key in keys]
        async with task_client(second) as tasks:
            for task in found:
                await tasks.until(task)
                record = (await second.get(f"/v1/runs/{task}")).json()
                assert record["state"]["goal"] == goal

        async def are_listed() -> bool:
            listed = (await second.get("/v1/runs?since=1h&limit=200")).json()["runs"]
            return {*found} <= {run["run_id"] for run in listed}

        await until(are_listed)
        runs = (await second.get("/v1/runs?since=1h&limit=200")).json()["runs"]
        goals = [(await second.get(f"/v1/runs/{run['run_id']}")).json()["state"]["goal"] for run in runs]
    assert [reply for reply in replies if isinstance(reply, Exception)], "no reply was lost"
    assert {reply for reply in replies if isinstance(reply, str)} <= {*found}
    assert goals.count(goal) == len(keys) == len({*found})


async def start_by_key(gateway: Gateway, goal: str, key: str) -> str:
    call = {"name": "start_run", "arguments": {"goal": goal}, "_meta": {KEY: key}}
    task: str = (await post(gateway, "tools/call", call)).json()["result"]["taskId"]
    return task


async def test_a_client_of_2025_has_the_tools_of_today(mcp_gateway: Gateway) -> None:
    async with mcp_client(mcp_gateway, mode="legacy") as client:
        meta: Any = {KEY: "of 2025"}
        started = await client.call_tool("start_run", {"goal": "GOAL ask"}, meta=meta)
        again = await client.call_tool("start_run", {"goal": "GOAL ask"}, meta=meta)
        run_id = (started.structured_content or {})["run_id"]
        asked = await client.call_tool("wait_for_run", {"run_id": run_id})
        await client.call_tool("answer_question", {"run_id": run_id, "question_id": "q1", "text": "red"})
        done = await client.call_tool("wait_for_run", {"run_id": run_id})
    assert (again.structured_content or {})["run_id"] == run_id
    assert (asked.structured_content or {})["question"]["answered_by"] == "you"
    assert (done.structured_content or {})["status"] == "completed"


async def test_no_stream_outlives_its_token(mcp_gateway: Gateway) -> None:
    """There is no push: a client polls."""
    answer = await post(mcp_gateway, "subscriptions/listen", {"notifications": {"taskIds": ["x"]}})
    assert answer.json()["error"]["code"] == -32601
    assert (await mcp_gateway.get("/v1/mcp")).status_code == 405


async def test_the_capability_counts_with_each_request(mcp_gateway: Gateway) -> None:
    answer = await post(mcp_gateway, "tasks/get", {"taskId": "x"}, tasks=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, NO_CAPABILITY)
    started = await post(
        mcp_gateway, "tools/call", {"name": "start_run", "arguments": {"goal": "GOAL work"}}, tasks=False
    )
    assert started.json()["result"]["structuredContent"]["run_id"]


async def post(
    gateway: Gateway, method: str, params: Json, *, tasks: bool = True, elicitation: Json | None = None, **headers: str
) -> httpx.Response:
    """A request as the protocol has it, without a client."""
    capabilities: Json = {"extensions": {"io.modelcontextprotocol/tasks": {}}} if tasks else {}
    capabilities |= {"elicitation": elicitation} if elicitation is not None else {}
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta | params.get("_meta", {})}}
    named = {"Mcp-Name": params.get("taskId") or params.get("name", "")}
    accepted = {"Accept": "application/json, text/event-stream"}
    version = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
    return await gateway.post("/v1/mcp", body, **version, **named, **accepted, **headers)


async def test_without_a_token_a_client_hears_where_the_metadata_is(mcp_gateway: Gateway) -> None:
    metadata = f"{PUBLIC}/.well-known/oauth-protected-resource/v1/mcp"
    for header in ("", "Bearer pdr_wrong"):
        answer = await post(mcp_gateway, "tools/list", {}, Authorization=header)
        assert answer.status_code == 401
        challenge = answer.headers["WWW-Authenticate"]
        assert challenge.startswith("Bearer ")
        assert challenge.endswith(f'resource_metadata="{metadata}"')
    only = await new_token(mcp_gateway, "runs:start")
    answer = await post(mcp_gateway, "tools/list", {}, Authorization=f"Bearer {only}")
    assert (answer.status_code, 'scope="runs:read", resource_metadata=' in answer.headers["WWW-Authenticate"]) == (
        403,
        True,
    )
    async with httpx.AsyncClient(base_url=mcp_gateway.url, trust_env=False) as http:
        shown = (await http.get("/.well-known/oauth-protected-resource/v1/mcp")).json()
    assert shown["resource"] == f"{PUBLIC}/v1/mcp"
    assert shown["scopes_supported"] == ["runs:read", "runs:start", "human:answer"]
    assert shown["bearer_methods_supported"] == ["header"]
    assert "authorization_servers" not in shown  # tokens come from the command alone


async def test_a_page_of_another_origin_and_a_cookie_are_refused(mcp_gateway: Gateway) -> None:
    for origin, status in (("https://evil.example", 403), ("null", 403), (PUBLIC, 200), (mcp_gateway.url, 200)):
        answer = await post(mcp_gateway, "tools/list", {}, Origin=origin)
        assert answer.status_code == status, answer.text
    async with httpx.AsyncClient(base_url=mcp_gateway.url, trust_env=False) as http:
        signed_in = await http.post("/v1/session", json={"token": mcp_gateway.token})
        assert signed_in.status_code in (200, 201, 204), signed_in.text
        own = {"Origin": mcp_gateway.url, "X-Perdure": "1", "Sec-Fetch-Site": "same-origin"}
        answer = await http.post("/v1/mcp", json={}, headers=own)
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{not json", 400), (b'{"a": 1, "a": 2}', 400), (b"[" * 100_000, 400), (b'"' + b"x" * 2**20 + b'"', 413)],
)
async def test_a_body_that_is_no_json_or_too_large_is_refused(mcp_gateway: Gateway, body: bytes, status: int) -> None:
    async with mcp_gateway.http as http:
        answer = await http.post("/v1/mcp", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text


async def test_it_is_off_until_a_project_names_it_and_then_needs_an_address(mcp_gateways: Gateways) -> None:
    project = mcp_gateways.project
    text = (project.folder / "perdure.toml").read_text()
    project.write("off.toml", text.replace('use = ["mcp_http"]', ""))
    project.write("lost.toml", text.replace(f'public_url = "{PUBLIC}"', ""))
    with mcp_gateways.open(PERDURE_CONFIG="off.toml") as gateway:
        assert (await post(gateway, "tools/list", {})).status_code == 404
    refused = await asyncio.to_thread(
        project.perdure, "gateway", "--port", "0", TEMPORAL_ADDRESS=mcp_gateways.address, PERDURE_CONFIG="lost.toml"
    )
    assert "features.use: mcp_http needs public_url in [gateway]" in refused.error()


async def test_a_wait_ends_with_the_gateway(mcp_gateways: Gateways) -> None:
    with mcp_gateways.open() as gateway:
        run_id = await gateway.start("GOAL slow")
        arguments = {"name": "wait_for_run", "arguments": {"run_id": run_id, "seconds": 50}}
        waiting = asyncio.create_task(post(gateway, "tools/call", arguments))
        await asyncio.sleep(1)
        ended = await asyncio.to_thread(gateway.process.send_signal, signal.SIGTERM)
        answer = await waiting
    state = answer.json()["result"]["structuredContent"]
    assert (ended.code, state["is_over"]) == (0, False)

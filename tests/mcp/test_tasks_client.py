"""Runs as tasks of the official client in TypeScript (`ext-tasks`), over HTTP, in processes of node."""

import asyncio
import json
import shutil
import signal
from typing import Any

import pytest

from tests.gateway.conftest import Gateway, Gateways
from tests.mcp.conftest import HERE, PUBLIC, Json, new_token, paid
from tests.waiting import until


async def node(gateway: Gateway, verb: str, what: str | Json, how: str = "none", token: str = "") -> list[Json]:
    """What the client saw, to its end."""
    process = await begin(gateway, verb, what, how, token)
    out, err = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 0, err.decode()
    return [json.loads(line) for line in out.splitlines()]


async def begin(
    gateway: Gateway, verb: str, what: str | Json, how: str = "none", token: str = ""
) -> asyncio.subprocess.Process:
    program = shutil.which("node")
    if program is None or not (HERE / "node_modules" / "@modelcontextprotocol" / "ext-tasks").exists():
        pytest.skip("node or a package is not installed: npm ci --prefix tests/mcp")
    given = what if isinstance(what, str) else json.dumps(what)
    pipe = asyncio.subprocess.PIPE
    command = (str(HERE / "tasks.mjs"), f"{gateway.url}/v1/mcp", token or gateway.token, verb, given, how)
    return await asyncio.create_subprocess_exec(program, *command, stdout=pipe, stderr=pipe)


def only(seen: list[Json], name: str) -> Any:
    [line] = [line for line in seen if name in line]
    return line[name]


def text_of(seen: list[Json]) -> str:
    """The text of the result."""
    outcome = only(seen, "outcome")
    assert outcome["status"] == "completed", outcome
    text: str = outcome["result"]["content"][0]["text"]
    return text


async def test_it_polls_answers_and_has_the_result(mcp_gateway: Gateway) -> None:
    seen = await node(mcp_gateway, "start", {"goal": "GOAL ask"}, "answer:red")
    assert only(seen, "kind") == "task"
    asked = only(seen, "asked")
    assert (asked["mode"], asked["message"]) == ("form", "the agent asks: Red or blue?")
    assert [line["sent"] for line in seen if "sent" in line] == ["tools/call", "tasks/update"]
    assert "red" in text_of(seen)


async def test_the_same_key_twice_is_the_same_task(mcp_gateway: Gateway) -> None:
    arguments = {"goal": "GOAL work", "dedupe_key": "in node"}
    first, second = [await node(mcp_gateway, "start", arguments) for _ in range(2)]
    third = await node(mcp_gateway, "start", {"goal": "GOAL work"})
    assert only(first, "task") == only(second, "task") != only(third, "task")
    assert text_of(first) == text_of(second) == "It is done."


async def test_a_decline_is_an_answer_in_words(mcp_gateway: Gateway) -> None:
    assert "declined to answer" in text_of(await node(mcp_gateway, "start", {"goal": "GOAL ask"}, "decline"))


async def test_another_process_resumes_by_the_id_after_the_gateway_was_killed(mcp_gateways: Gateways) -> None:
    with mcp_gateways.open() as first:
        seen = await node(first, "start", {"goal": "GOAL ask"}, "leave")
        task = only(seen, "task")
        await asyncio.to_thread(first.process.send_signal, signal.SIGKILL)
    with mcp_gateways.open() as second:
        assert "blue" in text_of(await node(second, "resume", task, "answer:blue"))
        assert "blue" in text_of(await node(second, "resume", task, "answer:red"))  # it is over


async def test_a_program_without_a_person_leaves_the_question_to_people(mcp_gateway: Gateway) -> None:
    """It answers `cancel` by itself."""
    process = await begin(mcp_gateway, "start", {"goal": "GOAL ask"})
    assert process.stdout is not None
    lines = [json.loads(await process.stdout.readline()) for _ in range(3)]
    assert [line["sent"] for line in lines if "sent" in line] == ["tools/call", "tasks/update"]
    task = only(lines, "task")
    answered = await mcp_gateway.post(f"/v1/runs/{task}/answer", {"text": "red"})
    assert answered.status_code == 200, answered.text
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert "red" in text_of([json.loads(line) for line in out.splitlines()])


async def test_an_approval_is_a_link_that_it_opens_once_and_a_person_approves(mcp_gateway: Gateway) -> None:
    before = paid(mcp_gateway)
    process = await begin(mcp_gateway, "start", {"goal": "GOAL pay"}, "answer:approve")
    assert process.stdout is not None
    lines = [json.loads(await process.stdout.readline()) for _ in range(4)]
    asked, task = only(lines, "asked"), only(lines, "task")
    assert (asked["mode"], asked["url"]) == ("url", f"{PUBLIC}/#{task}")
    assert paid(mcp_gateway) == before
    await mcp_gateway.post(f"/v1/runs/{task}/answer", {"decision": "approve"})
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    rest = [json.loads(line) for line in out.splitlines()]
    assert not [line for line in rest if "asked" in line]
    assert "42" in text_of(rest)
    assert paid(mcp_gateway) == [*before, "42"]


async def test_a_cancel_of_the_task_cancels_the_run(mcp_gateway: Gateway) -> None:
    seen = await node(mcp_gateway, "start", {"goal": "GOAL ask"}, "stop")
    task = only(seen, "task")
    assert only(seen, "outcome")["status"] == "cancelled"

    async def is_cancelled() -> bool:
        return bool((await mcp_gateway.get(f"/v1/runs/{task}/result")).json()["status"] == "cancelled")

    await until(is_cancelled)


async def test_the_id_of_another_token_is_unknown_to_it(mcp_gateway: Gateway) -> None:
    other = await new_token(mcp_gateway, "runs:start", "runs:read", "human:answer")
    task = await mcp_gateway.waiting("GOAL ask")
    process = await begin(mcp_gateway, "resume", task, "answer:red", other)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode != 0
    assert "unknown task" in err.decode()

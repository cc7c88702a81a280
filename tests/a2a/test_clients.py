"""Clients of others against the door: @a2a-js/sdk 1.3.0, and a2a-sdk 0.3 at a door that is open to it; and kills."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.a2a.conftest import message, paid, shown, state_of, talking
from tests.gateway.conftest import Gateway, Gateways
from tests.waiting import until

Json = dict[str, Any]
HERE = Path(__file__).parent
OLD = ("a2a-sdk==0.3.26", "httpx-sse==0.4.3")
OLD_CLIENT = """
# URL TOKEN MESSAGE_ID TEXT [TASK]: sends a text, and prints the states of the task and its outcome.
import asyncio, sys, httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import Message, Part, Role, TextPart

async def main(url, token, message_id, text, task_id=None):
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60, trust_env=False) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        client = ClientFactory(ClientConfig(httpx_client=http, streaming=True)).create(card)
        parts = [Part(root=TextPart(text=text))]
        async for event in client.send_message(
            Message(message_id=message_id, role=Role.user, task_id=task_id, parts=parts)
        ):
            print(event[0].id, event[0].status.state.value)
        for artifact in event[0].artifacts or ():
            print(artifact.parts[0].root.text)

asyncio.run(main(*sys.argv[1:]))
"""
STATES = ("UNSPECIFIED", "SUBMITTED", "WORKING", "COMPLETED", "FAILED", "CANCELED", "INPUT_REQUIRED", "REJECTED")


@dataclass(frozen=True)
class Script:
    """The client in node: each call is a process of its own, as after a restart."""

    gateway: Gateway

    async def open(self, method: str, **arguments: Any) -> asyncio.subprocess.Process:
        node = shutil.which("node")
        if node is None or not (HERE / "node_modules").exists():
            pytest.skip("node or a package is not installed: npm ci --prefix tests/a2a")
        url = f"{self.gateway.url}/a2a/default"
        command = (node, str(HERE / "client.mjs"), url, self.gateway.token, method, json.dumps(arguments))
        return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)

    async def call(self, method: str, **arguments: Any) -> list[Json]:
        return await rest_of(await self.open(method, **arguments))

    async def send(self, text: str, message_id: str, task_id: str = "") -> Json:
        [task] = await self.call("sendMessage", message=said(text, message_id, task_id))
        return task


async def rest_of(process: asyncio.subprocess.Process) -> list[Json]:
    printed, _ = await asyncio.wait_for(process.communicate(), 60)
    return [json.loads(line) for line in printed.splitlines()]


def said(text: str, message_id: str, task_id: str = "") -> Json:
    parts = [{"content": {"$case": "text", "value": text}}]
    return {"messageId": message_id, "taskId": task_id, "role": 1, "parts": parts}


def states(events: list[Json]) -> list[str]:
    """The states that a stream shows, without those of its artifacts."""
    values = [event["payload"]["value"] for event in events]
    return [STATES[value["status"]["state"]] for value in values if "status" in value]


@pytest.fixture
def script(a2a_gateway: Gateway) -> Script:
    return Script(a2a_gateway)


async def test_a_task_from_the_message_to_the_end(script: Script) -> None:
    name = uuid4().hex
    events = await script.call("sendMessageStream", message=said("GOAL ask", name))
    assert (events[0]["payload"]["$case"], states(events)[-1]) == ("task", "INPUT_REQUIRED")
    task_id = events[0]["payload"]["value"]["id"]
    again = await script.send("GOAL ask", name)
    assert (again["id"], STATES[again["status"]["state"]]) == (task_id, "INPUT_REQUIRED")
    hearing = await script.open("resubscribeTask", id=task_id)
    assert hearing.stdout is not None
    assert states([json.loads(await hearing.stdout.readline())]) == ["INPUT_REQUIRED"]
    answer = uuid4().hex
    for _ in range(2):  # everything twice
        done = await script.send("blue", answer, task_id)
        assert STATES[done["status"]["state"]] == "COMPLETED"
        assert "blue" in done["artifacts"][0]["parts"][0]["content"]["value"]
    assert states(await rest_of(hearing))[-1] == "COMPLETED"
    [read] = await script.call("getTask", id=task_id)
    assert read["artifacts"] == done["artifacts"]

    async def is_listed() -> bool:
        [listed] = await script.call("listTasks", contextId=done["contextId"], pageToken="", tenant="")
        return [task["id"] for task in listed["tasks"]] == [task_id]

    await until(is_listed)


async def test_a_cancel_and_the_errors_of_the_protocol(script: Script) -> None:
    task = await script.send("GOAL ask", uuid4().hex)
    for _ in range(2):
        [cancelled] = await script.call("cancelTask", id=task["id"])
        assert STATES[cancelled["status"]["state"]] == "CANCELED"
    [unknown] = await script.call("getTask", id="nobody")
    assert unknown["error"] == "JsonRpcTaskNotFoundError"
    [ended] = await script.call("resubscribeTask", id=task["id"])
    assert ended["error"] == "JsonRpcUnsupportedOperationError"
    late = await script.send("blue", uuid4().hex, task["id"])
    assert late["error"] == "JsonRpcUnsupportedOperationError"


async def test_a_gateway_that_is_killed_between_question_and_answer_loses_nothing(a2a_gateways: Gateways) -> None:
    with a2a_gateways.open() as gateway:
        port = gateway.url.rpartition(":")[2]
        sent = message("GOAL ask")
        async with talking(gateway) as before:
            task = (await before.stream(sent))[0].task
        await asyncio.to_thread(gateway.process.send_signal, signal.SIGKILL)
        await asyncio.to_thread(gateway.process.wait)
        with a2a_gateways.open("--port", port) as second:
            script = Script(second)
            again = await script.send("GOAL ask", sent.message_id)
            assert (again["id"], STATES[again["status"]["state"]]) == (task.id, "INPUT_REQUIRED")
            async with talking(second) as after:
                answer = message("blue", task=task.id)
                assert shown((await after.stream(answer))[-1]).endswith("COMPLETED")
                assert state_of((await after.get(task.id)).status) == "COMPLETED"


async def test_a_stream_that_a_kill_cuts_off_goes_on_at_the_next_gateway(a2a_gateways: Gateways) -> None:
    with a2a_gateways.open() as gateway:
        port = gateway.url.rpartition(":")[2]
        before = paid(gateway)
        sent = message("GOAL pay")
        async with talking(gateway) as cut:
            task = (await cut.stream(sent))[0].task
            heard = cut.subscribe(task.id)
            assert shown(await anext(heard)) == "task INPUT_REQUIRED"
            await asyncio.to_thread(gateway.process.send_signal, signal.SIGKILL)
            with pytest.raises(Exception, match=r"."):
                await anext(heard)
        with a2a_gateways.open("--port", port) as second:
            async with talking(second) as after:
                heard = after.subscribe(task.id)
                assert shown(await anext(heard)) == "task INPUT_REQUIRED"
                answered = await second.post(f"/v1/runs/{task.id}/answer", {"decision": "approve"})
                assert answered.status_code == 200, answered.text
                assert [shown(event) async for event in heard][-1] == "COMPLETED"
                assert paid(second) == before + 1


@pytest.fixture(scope="module")
def old_sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of 0.3 alone; what it imports is that of 1.0."""
    folder = tmp_path_factory.mktemp("a2a-0.3")
    command = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *OLD)
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("pip installs nothing here")
    return folder


@pytest.fixture(scope="module")
def old_gateway(a2a_gateways: Gateways) -> Iterator[Gateway]:
    with a2a_gateways.open(PERDURE_CONFIG="old.toml") as gateway:
        yield gateway


async def test_a_client_of_0_3_is_served_if_the_project_says_so(old_gateway: Gateway, old_sdk: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(old_sdk)}

    async def old(*arguments: str) -> list[str]:
        url = f"{old_gateway.url}/a2a/default"
        command = (sys.executable, "-c", OLD_CLIENT, url, old_gateway.token, *arguments)
        process = await asyncio.create_subprocess_exec(*command, env=env, stdout=asyncio.subprocess.PIPE)
        printed, _ = await asyncio.wait_for(process.communicate(), 60)
        return printed.decode().splitlines()

    name = uuid4().hex
    task_id, state = (await old(name, "GOAL ask"))[-1].split()
    assert state == "input-required"
    assert (await old(name, "GOAL ask"))[-1] == f"{task_id} input-required"
    *_, last, outcome = await old(uuid4().hex, "blue", task_id)
    assert (last, "blue" in outcome) == (f"{task_id} completed", True)
    async with talking(old_gateway) as new:  # and 1.0 at the same address
        assert shown((await new.stream(message("GOAL look")))[-1]) == "COMPLETED"

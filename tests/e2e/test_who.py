"""Who did it, and who may answer: a door records what it knows, apart from what its caller says."""

import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from temporalio.client import WorkflowUpdateFailedError

from perdure.answer_keys import format_public, read_answer_keys
from perdure.client.runs import wait_for_run_end
from perdure.testkit.model_server import ScriptedModel, calls
from tests.e2e.projects import MakeProject, Served, results_of, serve_with_worker, until_asked, use_model
from tests.waiting import until

KEY = "k1:QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
PUBLIC = format_public(read_answer_keys(KEY))  # all that the worker has, and so its tools
PROJECT = """
[tools.pay]
kind = "python"
effect = "once"
approval = "always"
target = "till:pay"

[tools.look]
kind = "python"
effect = "read"
target = "till:look"

[tools.tell]
kind = "signal"
effect = "read"
description = "Asks outside."
input_schema = { type = "object" }
"""
CODE = '''
import os
import subprocess
import sys


def pay() -> str:
    """Pays."""
    return "paid"


def look() -> str:
    """Shows the environment of a tool, and of a program that it starts."""
    program = [sys.executable, "-c", "import os; print(sorted(os.environ))"]
    return f"{sorted(os.environ)} {subprocess.run(program, capture_output=True, text=True).stdout}"
'''
FINISH = calls(("finish", {"outcome": "done"}))
HIDDEN = ("TEMPORAL_ADDRESS", "PERDURE_ANSWER_KEY", "PERDURE_CODEC_KEYS", "PERDURE_TOKENS")


def replies(body: dict[str, Any]) -> Any:
    """The first word of the goal is the tool that is called, once."""
    is_called = any(message["role"] == "assistant" for message in body["messages"])
    return FINISH if is_called else calls((body["messages"][0]["content"][0]["text"].split()[0], {}))


@dataclass(frozen=True)
class Till(Served):
    http: httpx.AsyncClient

    async def start(self, goal: str) -> str:
        return str((await self.http.post("/v1/runs", json={"payload": {"goal": goal}})).json()["run_id"])

    async def state_of(self, run_id: str) -> Any:
        return (await self.http.get(f"/v1/runs/{run_id}")).json().get("state")

    def export(self, run_id: str) -> Any:
        return json.loads(self.project.perdure("trace", run_id, "--export").out)


@pytest.fixture(scope="module")
async def till(make_project: MakeProject) -> AsyncIterator[Till]:
    with ScriptedModel(replies) as model:
        project = make_project(**use_model(model), PERDURE_ANSWER_KEY=KEY)
        project.write_all({"perdure.toml": PROJECT, "till.py": CODE})
        project.write("agents/default.md", "---\ntools: [pay, look, tell]\n---\n")
        async with serve_with_worker(project, PERDURE_ANSWER_KEY=PUBLIC) as served:
            scopes = ("runs:start", "runs:read", "human:answer", "tools:result")
            flags = [flag for scope in scopes for flag in ("--scope", scope)]
            token = project.perdure("token", "create", "ann", *flags).out.strip()
            with project.running("gateway", "--port", "0") as gateway:
                url = gateway.until("gateway").split()[1]
                headers = {"Authorization": f"Bearer {token}"}
                async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as http:
                    yield Till(project, served.client, served.address, http)


async def test_a_door_records_what_it_knows_whatever_its_caller_writes(till: Till) -> None:
    forged = {"door": "cli", "token": "root"}
    begun = await till.http.post("/v1/runs", json={"payload": {"goal": "pay it"}, "sender": forged})
    run_id = begun.json()["run_id"]
    await until_asked(till.client, run_id)
    assert (await till.state_of(run_id))["question"]["call"]
    assert till.project.perdure("deny", run_id, "--by", "root").code == 0
    assert (await wait_for_run_end(till.client, run_id)).status == "completed"
    run = (await till.http.get(f"/v1/runs/{run_id}")).json()
    known = {"door": "gateway", "token": "ann"}
    assert (run["started_by"]["sender"], run["state"]["sender"]) == (known, known)
    shown = till.project.perdure("show", run_id).out.splitlines()
    assert "  by       ann (gateway)" in shown
    assert "  answers  must be signed with key k1" in shown
    record = till.export(run_id)
    start, update = record["received"]
    assert (start["kind"], start["sender"], bool(start["identity"])) == ("start", known, True)
    assert (update["name"], update["sender"], update["by"]) == ("answer", {"door": "cli"}, "root")
    assert record["questions"][0]["answers"][0]["sender"] == {"door": "cli"}


async def test_results_cancels_and_requests_say_it_too(till: Till) -> None:
    submitted = await till.http.post(
        "/v1/conversations/who/requests",
        json={"request_id": "r1", "goal": "tell it", "sender": {"door": "mailbox"}, "origin": {"user_id": "boss"}},
    )
    run_id = submitted.json()["run_id"]

    async def awaits_its_tool() -> bool:
        state = await till.state_of(run_id)
        return bool(state and state["status"] == "waiting_on_tool")

    await until(awaits_its_tool)
    (pending,) = (await till.state_of(run_id))["pending"]
    result = {"run_id": run_id, "step": 1, "tool": "tell", "status": "error", "error": {"kind": "x", "message": "y"}}
    event = {"type": "agentic.tool_result", "payload": result, "nonce": pending["nonce"], "sender": {"door": "cli"}}
    taken = await till.http.post(f"/v1/runs/{run_id}/tool-results", json=event)
    assert taken.status_code == 202, taken.text
    again = await till.http.post(
        "/v1/conversations/who/requests", json={"request_id": "r1", "goal": "tell it", "origin": {"user_id": "boss"}}
    )
    assert again.status_code == 200  # the same request, whatever was claimed of its sender
    await wait_for_run_end(till.client, run_id)
    waits = await till.start("pay it")
    await until_asked(till.client, waits)
    await till.http.post(f"/v1/runs/{waits}/cancel", json={"reason": "no"})
    assert (await wait_for_run_end(till.client, waits)).status == "cancelled"
    known = {"door": "gateway", "token": "ann"}
    for named, name in ((run_id, "deliver_result"), (waits, "cancel")):
        record = till.export(named)
        came = [each for each in record["received"] if each["name"] in ("", name)]
        assert [each["sender"] for each in came if each["kind"] != "cancel"] == [known, known]


async def test_only_a_door_with_the_key_answers(till: Till) -> None:
    run_ids = [await till.start("pay it") for _ in "ab"]
    for run_id in run_ids:
        await until_asked(till.client, run_id)
    first, second = run_ids
    handle = till.client.get_workflow_handle(f"run:{first}")
    with pytest.raises(WorkflowUpdateFailedError):
        await handle.execute_update("answer", {"decision": "approve", "by": "ann", "sender": {"door": "cli"}})
    without = till.project.perdure("approve", first, PERDURE_ANSWER_KEY="")
    assert (without.code, without.err.count("perdure: ")) == (1, 1)  # after the call that it is about
    assert "only answers signed with key k1 are taken" in without.err
    other = till.project.perdure("approve", first, PERDURE_ANSWER_KEY="k2:" + KEY[3:])
    assert other.err.endswith(
        f"perdure: {first} accepts only answers signed with key k1: set PERDURE_ANSWER_KEY to that key\n"
    )
    assert "runs accept those signed with key k1" in " ".join(till.project.perdure("doctor").out.split())
    assert till.project.perdure("approve", first).out == "accepted\n"
    answered = await till.http.post(f"/v1/runs/{second}/answer", json={"decision": "approve"})
    assert answered.status_code == 200, answered.text
    for run_id in run_ids:
        assert (await wait_for_run_end(till.client, run_id)).status == "completed"
    record = till.export(second)
    (said,) = record["questions"][0]["answers"]
    assert (said["by"], said["sender"], said["signature"][:3]) == ("ann", {"door": "gateway", "token": "ann"}, "k1:")


async def test_a_tool_and_what_it_starts_get_no_address_of_temporal_and_no_key(till: Till) -> None:
    run_id = await till.start("look around")
    await wait_for_run_end(till.client, run_id)
    seen = (await results_of(till.client, run_id))[0]
    assert seen.count("PATH") >= 2
    assert [name for name in HIDDEN if name in seen] == []


def test_an_mcp_server_gets_neither_but_what_its_entry_names(make_project: MakeProject) -> None:
    project = make_project(**dict.fromkeys(HIDDEN[:1] + HIDDEN[3:], ""), TEMPORAL_NAMESPACE="secret-space", NAMED="yes")
    project.env |= {"PERDURE_ANSWER_KEY": KEY}
    dump = "import json, os, pathlib; pathlib.Path('seen.json').write_text(json.dumps(dict(os.environ)))"
    entry = {"command": sys.executable, "args": ["-c", dump], "env": {"NAMED": "${NAMED}"}}
    project.write(".mcp.json", json.dumps({"mcpServers": {"dump": entry}}))
    project.perdure("tools", "--check")
    seen = json.loads((project.folder / "seen.json").read_text())
    assert seen["NAMED"] == "yes"
    assert [name for name in seen if name.startswith(("TEMPORAL_", "PERDURE_"))] == []

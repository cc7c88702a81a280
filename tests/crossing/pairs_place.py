"""Where the rows of a project take place: its worker, which is killed, and the ways to begin a run and to answer it."""

import asyncio
import hashlib
import hmac
import json
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlencode

from temporalio.client import Client
from temporalio.service import RPCError

from perdure.client.connection import connect
from perdure.client.runs import sign_answer
from perdure.contracts.run.signals import HumanInput, QuestionKind
from perdure.decisions.errors import ReportedError
from perdure.decisions.ids import run_workflow_id
from perdure.features.notices.channels import ANSWER_ACTION
from perdure.settings import Settings, load_settings
from perdure.testkit.model_server import ScriptedModel
from tests.chaos.environment import Environment
from tests.chaos.task import Task
from tests.chaos.tool_server import ToolServer
from tests.crossing.doors import open_client, open_mcp
from tests.crossing.pairs_project import SLACK_SECRET
from tests.crossing.project import ANSWER_KEY_OF_WORKERS, CrossedProject
from tests.crossing.shapes import Crossing, submit_turn
from tests.e2e.projects import Json
from tests.preloaded import program
from tests.waiting import until

CLOSES_WITHIN = 120.0  # seconds: while a worker is replaced, nobody can answer


class Place(Environment):
    """As a scenario of `tests/chaos`, but the worker is the product's own, with the settings of a project."""

    left = (QuestionKind.approval, QuestionKind.question)

    def __init__(
        self,
        client: Client,
        crossed: CrossedProject,
        settings: Settings,
        seed: int,
        tools: ToolServer,
        model: ScriptedModel,
    ) -> None:
        super().__init__(client, crossed.folder, seed, tools, model, None)
        self.keys = settings.answer_keys
        self._crossed, self._settings = crossed, settings
        self._worker: subprocess.Popen[bytes] | None = None
        self._killing = asyncio.Lock()

    @classmethod
    async def open(cls, crossed: CrossedProject, seed: int, tools: ToolServer, model: ScriptedModel) -> Self:
        settings = load_settings(crossed.environment(), crossed.folder)
        client = await connect(crossed.env["TEMPORAL_ADDRESS"], settings.codec, settings.payloads)
        return cls(client, crossed, settings, seed, tools, model)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_worker()
        self.end()

    @property
    def workspaces(self) -> Path:
        return self._settings.workspaces

    def add(self, task: Task) -> None:
        """Tell the auditor what a run is to do."""
        self.tasks[task.run] = task
        self.handles[task.run] = self.client.get_workflow_handle(run_workflow_id(task.run))

    async def start_worker(self) -> None:
        log = self._crossed.folder / "logs" / f"worker-{len(self.logs)}.log"
        signed = "PERDURE_ANSWER_KEY" in self._crossed.env
        more = {"PERDURE_ANSWER_KEY": ANSWER_KEY_OF_WORKERS} if signed else {}
        with log.open("wb") as stream:
            self._worker = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
                [program("worker")],
                cwd=self._crossed.folder,
                env=self._crossed.environment(more),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        await until(lambda: b"worker ready" in log.read_bytes())

    async def kill_worker(self) -> None:
        async with self._killing:  # one at a time: two that die together are one kill
            await asyncio.to_thread(self._end_worker)
            self.kills += 1
            self.fault()
            await self.start_worker()

    async def kill_in_a_call(self, run_id: str) -> None:
        """Kill the worker while the run has an effect outside."""
        steps = [step for step, tool in self.tasks[run_id].tools.items() if tool in ("charge", "reserve")]
        while not any(self.tools.is_at_work(run_id, step) for step in steps):  # noqa: ASYNC110 - in another thread
            await asyncio.sleep(0.02)
        await self.kill_worker()

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()


async def start_by_command(it: Crossing, number: int, agent: str, goal: str) -> str:
    command = ("run", "--detach", "--id", f"row-{number}", "--agent", agent, goal)
    await asyncio.to_thread(it.perdure, *command)
    return f"row-{number}"


async def start_by_gateway(it: Crossing, number: int, agent: str, goal: str) -> str:
    begun = await it.http.post("/v1/runs", json={"payload": {"goal": goal, "agent": agent}})
    assert begun.status_code == 202, begun.text
    return str(begun.json()["run_id"])


async def start_by_client(it: Crossing, number: int, agent: str, goal: str) -> str:
    async with open_client(it) as perdure:
        return (await perdure.start(goal, agent=agent)).id


async def start_in_conversation(it: Crossing, number: int, agent: str, goal: str) -> str:
    request = {"request_id": "r1", "goal": goal, "agent": agent}
    return await submit_turn(it, f"row-{number}", request)


async def start_by_mcp(it: Crossing, number: int, agent: str, goal: str) -> str:
    async with open_mcp(it) as call:
        return str((await call("start_run", goal=goal, agent=agent))["run_id"])


STARTS: dict[str, Callable[[Crossing, int, str, str], Awaitable[str]]] = {
    "CLI": start_by_command,
    "gateway": start_by_gateway,
    "client": start_by_client,
    "conversation": start_in_conversation,
    "MCP": start_by_mcp,
}

Answer = Callable[[Crossing, str, Json], Awaitable[None]]


def _said(question: Json) -> Json:
    """Approval of the call that the question is about, or the first of the options."""
    named = {"question_id": question["id"]}
    if question["kind"] == "approval":
        return {**named, "decision": "approve", "call": question["call"]}
    return {**named, "text": question["options"][0]}


async def answer_by_command(it: Crossing, run_id: str, question: Json) -> None:
    is_approval = question["kind"] == "approval"
    command = ("approve", run_id, "--by", "ann") if is_approval else ("answer", run_id, "1")
    done = await asyncio.to_thread(it.project.perdure, *command)
    assert done.code in (0, 3), done


async def answer_by_gateway(it: Crossing, run_id: str, question: Json) -> None:
    taken = await it.people["ann"].post(f"/v1/runs/{run_id}/answer", json=_said(question))
    assert taken.status_code == 200, taken.text


async def answer_by_client(it: Crossing, run_id: str, question: Json) -> None:
    async with open_client(it) as perdure:
        await perdure.get_run(run_id).answer(**_said(question), by="ann")


async def answer_in_slack(it: Crossing, run_id: str, question: Json) -> None:
    option = question["options"].index("approve") if question["kind"] == "approval" else 0
    value = {"run_id": run_id, "question_id": question["id"], "option": option}
    value |= {"call": question["call"]} if question.get("call") else {}
    action = {"action_id": f"{ANSWER_ACTION}:{option}", "type": "button", "value": json.dumps(value)}
    payload = {"type": "block_actions", "user": {"id": "U1"}, "actions": [action]}
    body = urlencode({"payload": json.dumps(payload)}).encode()
    stamp = str(int(time.time()))
    signature = hmac.new(SLACK_SECRET.encode(), f"v0:{stamp}:".encode() + body, hashlib.sha256).hexdigest()
    headers = {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": f"v0={signature}"}
    headers["Content-Type"] = "application/x-www-form-urlencoded"
    taken = await it.http.post("/v1/webhooks/slack", content=body, headers=headers)
    assert taken.json().get("accepted"), taken.text


async def answer_by_signal(it: Crossing, run_id: str, question: Json) -> None:
    keys = load_settings(it.project.environment(), it.project.folder).answer_keys
    signed = await sign_answer(it.client, run_id, HumanInput.model_validate({**_said(question), "by": "ann"}), keys)
    said = signed.model_dump(mode="json", exclude_none=True)
    await it.client.get_workflow_handle(run_workflow_id(run_id)).signal("human_input", said)


async def answer_by_mcp(it: Crossing, run_id: str, question: Json) -> None:
    async with open_mcp(it) as call:
        await call("answer_question", run_id=run_id, **_said(question))


ANSWERS: dict[str, Answer] = {
    "CLI": answer_by_command,
    "gateway": answer_by_gateway,
    "client": answer_by_client,
    "Slack": answer_in_slack,
    "signal": answer_by_signal,
    "MCP": answer_by_mcp,
}


async def answer_until_closed(it: Crossing, run_id: str, question: Json, answer: Answer) -> None:
    """Again until it counts: a worker that is replaced takes no answer, or takes it and cannot say so any more."""
    deadline = time.monotonic() + CLOSES_WITHIN
    while True:
        refusal: Exception | None = None
        try:
            await answer(it, run_id, question)
        except (AssertionError, ReportedError, RPCError, ExceptionGroup) as error:
            refusal = error
        with suppress(AssertionError):
            await until(lambda: _is_closed(it, run_id, question), seconds=5)
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"question {question['id']} stays open") from refusal


async def _is_closed(it: Crossing, run_id: str, question: Json) -> bool:
    state = await it.state_of(run_id)
    return state is not None and all(each.id != question["id"] for each in state.questions)

"""Everything that a person does to a run works with the plain `temporal` CLI, and nothing they mistype wedges one."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from anthropic import AsyncAnthropic
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from perdure.activities.project import Project
from perdure.activities.providers.anthropic import MessagesModel
from perdure.client.run_events import RunEnded, RunStarted
from perdure.client.runs import query_run_state, wait_for_run_end
from perdure.client.watch import Watch
from perdure.contracts.agent import Agent
from perdure.contracts.model_settings import ModelOptions
from perdure.contracts.run.limits import LimitOverrides
from perdure.contracts.tool import ToolKind, ToolOutcome
from perdure.process.worker import build_worker
from perdure.testkit.model_server import Reply, ScriptedModel, calls
from perdure.testkit.tools import ScriptedTool
from tests.waiting import PATIENCE

TEMPORAL = str(Path(sys.executable).parent / "temporal")


def model(body: dict[str, Any]) -> Reply:
    """Does what the goal names, and finishes."""
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    goal = str(body["messages"][0]["content"])
    if turn == 0 and "ask" in goal:
        return calls(("ask_human", {"question": "Which one?"}), text="Frame: one is wanted.\n\nPlan: ask which.")
    if turn == 0 and "outside" in goal:
        return calls(("outside", {"what": "x"}))
    return calls(("finish", {"outcome": f"done at turn {turn}", "artifacts": []}))


@dataclass
class Shell:
    client: Client
    queue: str

    async def temporal(self, *args: str) -> tuple[int, str]:
        """The exit code and all that was printed."""
        to = ("--address", self.client.service_client.config.target_host, "--command-timeout", "30s")
        process = await asyncio.create_subprocess_exec(
            *(TEMPORAL, *args, *to), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    async def start(self, *inputs: str) -> str:
        """Starts a run with these inputs, as they stand, and gives its workflow id."""
        workflow = f"run:{uuid4().hex[:12]}"
        given = [part for text in inputs for part in ("--input", text)]
        command = ("workflow", "start", "--type", "AgentRun", "--task-queue", self.queue)
        code, out = await self.temporal(*command, "--workflow-id", workflow, *given)
        assert code == 0, out
        return workflow

    async def goal(self, goal: str, **payload: Any) -> str:
        return await self.start(json.dumps({"type": "agentic.start", "payload": {"goal": goal, **payload}}))

    async def signal(self, workflow: str, name: str, *bodies: str) -> None:
        given = [part for text in bodies for part in ("--input", text)]
        code, out = await self.temporal("workflow", "signal", "--workflow-id", workflow, "--name", name, *given)
        assert code == 0, out

    async def query(self, workflow: str, kind: str, *inputs: str) -> Any:
        given = [part for text in inputs for part in ("--input", text)]
        command = ("workflow", "query", "--workflow-id", workflow, "--type", kind, "--output", "json")
        code, out = await self.temporal(*command, *given)
        assert code == 0, out
        return json.loads(out)["queryResult"][0]

    async def update(self, workflow: str, body: str) -> tuple[int, str]:
        command = ("workflow", "update", "execute", "--workflow-id", workflow, "--name", "answer")
        return await self.temporal(*command, "--input", body)

    async def result(self, workflow: str) -> Any:
        return await asyncio.wait_for(self.client.get_workflow_handle(workflow).result(), 20)

    async def failed_tasks(self, workflow: str) -> int:
        handle = self.client.get_workflow_handle(workflow)
        kinds = [event.event_type async for event in handle.fetch_history_events()]
        return kinds.count(EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED)

    async def until_status(self, workflow: str, status: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            while True:
                state: dict[str, Any] = await self.client.get_workflow_handle(workflow).query("state")
                if state["status"] == status:
                    return state
                await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
async def shell(client: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shell]:
    outside = ScriptedTool("outside", lambda *_: ToolOutcome(), kind=ToolKind.signal)
    project = Project(
        agents={"default": Agent(name="default", tools=("outside",))},
        tools={"outside": outside},
        model="scripted",
        options=ModelOptions(max_tokens=1024),
        limits=LimitOverrides(),
        workspaces=tmp_path_factory.mktemp("runs"),
        instructions="You are tested.",
    )
    with ScriptedModel(model) as server:
        anthropic = AsyncAnthropic(api_key="none", base_url=server.base_url, max_retries=0)
        queue = f"q-{uuid4().hex[:8]}"
        async with anthropic, build_worker(client, project, queue, MessagesModel(anthropic)):
            yield Shell(client, queue)


async def test_a_run_started_by_the_plain_cli_completes(shell: Shell) -> None:
    workflow = await shell.goal("look", context={"max_steps": 3})
    result = await shell.result(workflow)
    assert (result["type"], result["payload"]["run_id"]) == ("agent.completed", workflow.removeprefix("run:"))


async def test_the_queries_answer_the_plain_cli_with_and_without_an_argument(shell: Shell) -> None:
    workflow = await shell.goal("ask which")
    await shell.until_status(workflow, "waiting_on_human")
    state, journal, whole, first = await asyncio.gather(
        shell.query(workflow, "state"),
        shell.query(workflow, "journal"),
        shell.query(workflow, "transcript"),
        shell.query(workflow, "transcript", '{"from": 0, "limit": 1}'),
    )
    assert (state["question"]["text"], state["pending"][0]["tool"]) == ("Which one?", "ask_human")
    assert journal["objective"] == "one is wanted."
    assert (whole["total"], len(whole["parts"]), len(first["parts"])) == (2, 2, 1)
    assert first["parts"][0] == whole["parts"][0]
    command = ("workflow", "query", "--workflow-id", workflow, "--type", "transcript", "--input", '{"from": -1}')
    code, out = await shell.temporal(*command)
    assert code != 0
    assert "from" in out
    assert await shell.failed_tasks(workflow) == 0
    await shell.signal(workflow, "cancel")


async def test_an_empty_list_in_a_query_is_a_list(shell: Shell) -> None:
    """The CLI prints an empty JSON array as null; what the run answers is `[]`."""
    workflow = await shell.goal("look")
    await shell.result(workflow)
    state = await shell.client.get_workflow_handle(workflow).query("state")
    assert (state["pending"], state["artifacts"], state["ignored"]) == ([], [], [])


async def test_a_tool_result_signalled_by_the_plain_cli_is_taken(shell: Shell) -> None:
    workflow = await shell.goal("outside")
    await shell.until_status(workflow, "waiting_on_tool")
    payload = {"run_id": workflow.removeprefix("run:"), "step": 1, "tool": "outside", "status": "ok", "result": "here"}
    await shell.signal(workflow, "tool_result", json.dumps({"type": "agentic.tool_result", "payload": payload}))
    assert (await shell.result(workflow))["payload"]["steps_taken"] == 1


async def test_a_question_is_answered_by_the_signal_human_input(shell: Shell) -> None:
    workflow = await shell.goal("ask which")
    await shell.until_status(workflow, "waiting_on_human")
    await shell.signal(workflow, "human_input", '{"question_id": "q1", "text": "the left one"}')
    assert (await shell.result(workflow))["type"] == "agent.completed"


async def test_a_question_is_answered_by_the_update_and_a_wrong_answer_is_refused(shell: Shell) -> None:
    workflow = await shell.goal("ask which")
    await shell.until_status(workflow, "waiting_on_human")
    refused = {'{"question_id": "q9", "text": "x"}': "q9 is not open", '{"txt": "x"}': "txt", "7": "input"}
    for body, why in refused.items():
        code, out = await shell.update(workflow, body)
        assert code != 0
        assert why in out
    code, out = await shell.update(workflow, '{"text": "the left one", "by": "me"}')
    assert code == 0, out
    assert "accepted" in out
    assert (await shell.result(workflow))["type"] == "agent.completed"
    assert await shell.failed_tasks(workflow) == 0


@pytest.mark.parametrize(
    "command",
    [
        ("signal", "--name", "cancel"),
        ("signal", "--name", "cancel", "--input", '{"reason": "no longer needed"}'),
        ("cancel",),
    ],
    ids=["the bare signal", "the signal with a reason", "Temporal's own"],
)
async def test_a_cancel_ends_the_run_canceled(shell: Shell, command: tuple[str, ...]) -> None:
    workflow = await shell.goal("ask which")
    await shell.until_status(workflow, "waiting_on_human")
    code, out = await shell.temporal("workflow", *command, "--workflow-id", workflow)
    assert code == 0, out
    with pytest.raises(WorkflowFailureError):
        await shell.result(workflow)
    described = await shell.client.get_workflow_handle(workflow).describe()
    assert described.status is WorkflowExecutionStatus.CANCELED


GOOD = '{"type": "agentic.start", "payload": {"goal": "look"}}'
BAD_STARTS = {
    "no input": (),
    "two inputs": (GOOD, GOOD),
    "a number": ("7",),
    "null": ("null",),
    "a list": ("[]",),
    "an empty object": ("{}",),
    "another type": ('{"type": "agentic.stop", "payload": {"goal": "look"}}',),
    "no goal": ('{"type": "agentic.start", "payload": {}}',),
    "an empty goal": ('{"type": "agentic.start", "payload": {"goal": " "}}',),
    "a limit that is none": ('{"type": "agentic.start", "payload": {"goal": "x", "context": {"max_steps": -1}}}',),
    "an unknown field": ('{"type": "agentic.start", "payload": {"goal": "x", "gaol": 1}}',),
    "an unknown agent": ('{"type": "agentic.start", "payload": {"goal": "x", "agent": "nobody"}}',),
    "a forged continuation": ('{"type": "agentic.continue"}',),
    "a continuation without segments": ('{"type": "agentic.continue", "state": {}, "segments": []}',),
}


@pytest.mark.parametrize("name", BAD_STARTS)
async def test_a_bad_start_is_a_typed_failure_that_can_be_watched(shell: Shell, name: str) -> None:
    workflow = await shell.start(*BAD_STARTS[name])
    with pytest.raises(WorkflowFailureError) as failed:
        await shell.result(workflow)
    kind = "UnknownAgent" if name == "an unknown agent" else "InvalidInput"
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == kind
    assert len(failed.value.cause.message.splitlines()) == 1
    assert await shell.failed_tasks(workflow) == 0
    run_id = workflow.removeprefix("run:")
    assert (await wait_for_run_end(shell.client, run_id)).kind == kind
    if kind == "InvalidInput":  # the other one is a run, and has a state
        seen = [event async for event in Watch(shell.client, run_id, follow=False).events()]
        assert [type(event) for event in seen] == [RunStarted, RunEnded]
        assert await query_run_state(shell.client, run_id) is None


async def test_a_start_that_is_not_even_json_is_a_typed_failure(shell: Shell) -> None:
    workflow = f"run:{uuid4().hex[:12]}"
    command = ("workflow", "start", "--type", "AgentRun", "--task-queue", shell.queue, "--workflow-id", workflow)
    code, out = await shell.temporal(*command, "--input", "{goal", "--input-meta", "encoding=json/plain")
    if code == 0:
        with pytest.raises(WorkflowFailureError):
            await shell.result(workflow)
    else:
        assert "JSON" in out


BAD_SIGNALS: list[tuple[str, Callable[[str], tuple[str, ...]]]] = [
    ("tool_result", lambda _: ()),
    ("tool_result", lambda _: ("7",)),
    ("tool_result", lambda _: ("{}",)),
    ("tool_result", lambda _: ("{}", "{}")),
    ("tool_result", lambda run: (f'{{"payload": {{"run_id": "{run}", "step": "one", "tool": "t", "status": "ok"}}}}',)),
    ("tool_result", lambda _: ('{"payload": {"run_id": "another", "step": 9, "tool": "t", "status": "ok"}}',)),
    ("human_input", lambda _: ()),
    ("human_input", lambda _: ("null",)),
    ("human_input", lambda _: ('{"decision": "maybe"}',)),
    ("human_input", lambda _: ('{"question_id": "q9", "text": "x"}',)),
    ("cancel", lambda _: ("7",)),
    ("cancel", lambda _: ('{"reason": "x"}', "{}")),
    ("no_such_signal", lambda _: ('{"a": 1}',)),
]


async def test_bad_signals_are_recorded_and_change_nothing(shell: Shell) -> None:
    workflow = await shell.goal("ask which")
    await shell.until_status(workflow, "waiting_on_human")
    for name, bodies in BAD_SIGNALS:
        await shell.signal(workflow, name, *bodies(workflow.removeprefix("run:")))
    state = await shell.until_status(workflow, "waiting_on_human")
    assert len(state["ignored"]) == len(BAD_SIGNALS)
    assert await shell.failed_tasks(workflow) == 0
    await shell.signal(workflow, "human_input", '{"text": "the left one"}')
    assert (await shell.result(workflow))["type"] == "agent.completed"

"""An agent elsewhere, as a process that can be killed: the SDK's server over tasks in a folder.

Run by `python -m tests.a2a.elsewhere FOLDER PORT`. What a task does is the first word of its message. Files of the
folder control it: `hold-METHOD` holds back replies to that method while it exists, `end` lets tasks come to their end.
"""

import json
import os
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import uvicorn
from a2a.server.request_handlers import RequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Artifact,
    ListTasksResponse,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import InvalidParamsError, TaskNotCancelableError, TaskNotFoundError, UnsupportedOperationError
from google.protobuf.json_format import MessageToDict, ParseDict
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.mcp.tasks import TaskServer
from tests.waiting import until

WORKING, ASKS, NEEDS_LOGIN = (
    TaskState.TASK_STATE_WORKING,
    TaskState.TASK_STATE_INPUT_REQUIRED,
    TaskState.TASK_STATE_AUTH_REQUIRED,
)
ENDED = (TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_FAILED, TaskState.TASK_STATE_CANCELED)


class Elsewhere(TaskServer):
    """The process."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.a2a.elsewhere", str(self.folder)]

    @property
    def task_files(self) -> list[Path]:
        return sorted(self.folder.glob("task-*.json"))

    def set(self, name: str, text: str = "") -> None:
        (self.folder / name).write_text(text)


@contextmanager
def elsewhere(folder: Path) -> Iterator[Elsewhere]:
    server = Elsewhere(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def agent_message(text: str, id: str = "", **metadata: Any) -> Message:  # noqa: A002
    part = Part(text=text, metadata=metadata or None)
    return Message(message_id=id or uuid4().hex, role=Role.ROLE_AGENT, parts=[part])


QUESTIONS = {
    "ask": (ASKS, agent_message("Which colour?", "q-1")),
    "choose": (ASKS, agent_message("Which colour?", "q-2", question_id="7", options=["red", "blue"])),
    "approve": (
        ASKS,
        agent_message("Pay 42? A person decides.", "q-3", question_id="8", link="https://desk.example/#run"),
    ),
    "login": (NEEDS_LOGIN, agent_message("Log in at https://bank.example/login.", "q-4")),
}


@dataclass
class Handler(RequestHandler):
    folder: Path

    async def on_message_send(self, params: Any, context: Any) -> Task | Message:
        asked = params.message
        text = asked.parts[0].text
        self.note("SendMessage", id=asked.message_id, context=asked.context_id, task=asked.task_id, text=text)
        if asked.task_id:
            return self.answer(asked, text)
        if text.startswith("chat"):
            return agent_message("Hello yourself.")
        if text.startswith("refuse"):
            raise InvalidParamsError("no such work here")
        if text.startswith("swap"):
            self.set_swap()
        task = Task(
            id=uuid4().hex,
            context_id=asked.context_id or uuid4().hex,
            status=TaskStatus(state=WORKING, message=agent_message("counting")),
            history=[asked],
        )
        self.save(task)
        await self.hold("SendMessage")
        return self.step(task) if text.startswith("fast") else task

    def answer(self, asked: Message, text: str) -> Task:
        task = self.load(asked.task_id)
        if task.status.state not in (ASKS, NEEDS_LOGIN):
            raise UnsupportedOperationError("it asks nothing")
        task.history.append(asked)
        task.status.CopyFrom(TaskStatus(state=WORKING))
        task.metadata["answer"] = text
        self.save(task)
        return task

    async def on_get_task(self, params: Any, context: Any) -> Task:
        self.note("GetTask", task=params.id)
        await self.hold("GetTask")
        task = self.step(self.load(params.id))
        if (self.folder / "swap").exists():
            task.id = "f" * 32
        return task

    def step(self, task: Task) -> Task:
        """Move a task on: it asks, waits for the file `end`, or ends."""
        text = task.history[0].parts[0].text
        word, answered = text.split()[0], "answer" in task.metadata.fields
        if task.status.state in ENDED:
            return task
        if word == "login" and (self.folder / "logged-in").exists():
            task.metadata["answer"] = "logged in"
            answered = True
        if word in QUESTIONS and not answered:
            state, message = QUESTIONS[word]
            task.status.CopyFrom(TaskStatus(state=state, message=message))
        elif word in QUESTIONS or word in ("fast", "data", "file") or (self.folder / "end").exists():
            self.complete(task, word, text)
        elif (self.folder / "fail").exists():
            state = TaskState.TASK_STATE_FAILED
            task.status.CopyFrom(TaskStatus(state=state, message=agent_message("no funds")))
        else:
            task.status.CopyFrom(TaskStatus(state=WORKING, message=agent_message("counting")))
        self.save(task)
        return task

    def complete(self, task: Task, word: str, text: str) -> None:
        part = Part(text=f"answered {task.metadata['answer']}" if "answer" in task.metadata.fields else f"done: {text}")
        if word == "data":
            part = Part()
            part.data.struct_value.update({"total": 3})
        if word == "file":
            part = Part(raw=b"a,b\n1,2\n", filename="sums.csv", media_type="text/csv")
        task.artifacts.append(Artifact(artifact_id="outcome", parts=[part]))
        task.status.CopyFrom(TaskStatus(state=TaskState.TASK_STATE_COMPLETED))

    async def on_list_tasks(self, params: Any, context: Any) -> ListTasksResponse:
        self.note("ListTasks", context=params.context_id)
        if (self.folder / "no-lists").exists():
            raise UnsupportedOperationError("no lists")
        tasks = [self.load(path.stem.removeprefix("task-")) for path in self.folder.glob("task-*.json")]
        return ListTasksResponse(tasks=[task for task in tasks if task.context_id == params.context_id])

    async def on_cancel_task(self, params: Any, context: Any) -> Task:
        self.note("CancelTask", task=params.id)
        task = self.load(params.id)
        if task.status.state in ENDED or (self.folder / "uncancellable").exists():
            raise TaskNotCancelableError
        task.status.CopyFrom(TaskStatus(state=TaskState.TASK_STATE_CANCELED))
        self.save(task)
        return task

    async def on_message_send_stream(self, params: Any, context: Any) -> AsyncGenerator[Any, None]:
        raise UnsupportedOperationError("no streams")
        yield

    async def on_subscribe_to_task(self, params: Any, context: Any) -> AsyncGenerator[Any, None]:
        raise UnsupportedOperationError("no streams")
        yield

    async def _none(self, params: Any, context: Any) -> Any:
        raise UnsupportedOperationError("not here")

    on_create_task_push_notification_config = _none
    on_get_task_push_notification_config = _none
    on_list_task_push_notification_configs = _none
    on_delete_task_push_notification_config = _none
    on_get_extended_agent_card = _none

    def load(self, task_id: str) -> Task:
        path = self.folder / f"task-{task_id}.json"
        if not path.exists():
            raise TaskNotFoundError
        return ParseDict(json.loads(path.read_text()), Task())

    def save(self, task: Task) -> None:
        path = self.folder / f"task-{task.id}.json"
        path.with_suffix(".new").write_text(json.dumps(MessageToDict(task)))
        path.with_suffix(".new").rename(path)

    def set_swap(self) -> None:
        (self.folder / "swap").write_text("")

    def note(self, method: str, **more: Any) -> None:
        with (self.folder / "log.jsonl").open("a") as log:
            log.write(json.dumps({"method": method, "pid": os.getpid(), **more}) + "\n")

    async def hold(self, method: str) -> None:
        await until(lambda: not (self.folder / f"hold-{method}").exists())


@dataclass
class Door:
    """Checks the token, if the folder has one, and fails requests with the status in `status`."""

    app: ASGIApp
    folder: Path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token, status = (self.folder / "token"), (self.folder / "status")
        code = int(status.read_text()) if status.exists() else 200
        if token.exists() and Request(scope).headers.get("authorization") != f"Bearer {token.read_text()}":
            code = 401
        if code != 200:
            await send({"type": "http.response.start", "status": code, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})
            return
        await self.app(scope, receive, send)


def build(folder: Path, port: int) -> ASGIApp:
    elsewhere_else = folder / "interface"
    url = elsewhere_else.read_text() if elsewhere_else.exists() else f"http://127.0.0.1:{port}/rpc"
    card = AgentCard(
        name="counter",
        description="Counts.",
        version="1",
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=version)
            for version in ((folder / "version").read_text() if (folder / "version").exists() else "1.0").split()
        ],
        capabilities=AgentCapabilities(),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="count", name="count", description="Counts.", tags=["count"])],
    )
    routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(Handler(folder), "/rpc", enable_v0_3_compat=True)]
    return Door(Starlette(routes=routes), folder)


if __name__ == "__main__":
    place, at = Path(sys.argv[1]), int(sys.argv[2])
    uvicorn.run(build(place, at), port=at, log_level="warning")

"""An MCP server whose calls become tasks, or ask people, as a process that can be killed. Its state is a folder.

Run by `python -m tests.mcp.tasks FOLDER PORT`, or with port 0 over stdio. Files of the folder control it: `hold-METHOD`
holds back replies to that method while it exists, and `end` lets tasks come to their end.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import mcp_types as t
import uvicorn
from mcp.server.context import CallNext, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import MCPServer, require_client_extension
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict

from tests.ports import free_port
from tests.waiting import until

TASKS = "io.modelcontextprotocol/tasks"
KEY = "perdure/idempotency-key"
ROOT = Path(__file__).parents[2]
FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
SIZES = [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]
FIELDS = {"size": {"type": "string", "oneOf": SIZES}, "count": {"type": "integer"}, "gift": {"type": "boolean"}}
WIDE_FORM = {"type": "object", "properties": FIELDS, "required": ["size", "gift"]}
READ = t.ToolAnnotations(read_only_hint=True)
KEYED = t.ToolAnnotations(idempotent_hint=True)


class TaskServer:
    """The process. `log` is what it was asked, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.mcp.tasks", str(self.folder)]

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen([*self.command, str(self.port)], cwd=ROOT, stdout=log, stderr=log)

    async def until_up(self) -> None:
        def answers() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        await until(answers)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    @property
    def log(self) -> list[dict[str, Any]]:
        path = self.folder / "log.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def count(self, method: str) -> int:
        return sum(entry["method"] == method for entry in self.log)

    def set(self, name: str) -> None:
        (self.folder / name).write_text("")

    def clear(self, name: str) -> None:
        (self.folder / name).unlink()

    def forget(self) -> None:
        """Drops all tasks, as a server does that keeps them in memory and starts again."""
        for path in self.folder.glob("task-*.json"):
            path.unlink()

    @property
    def tasks(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("task-*.json"))]


@contextmanager
def task_server(folder: Path) -> Iterator[TaskServer]:
    server = TaskServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


class TaskId(t.RequestParams):
    task_id: str


class Answers(TaskId):
    input_responses: dict[str, Any]


class TaskResult(t.Result):
    model_config = ConfigDict(extra="allow")
    result_type: Literal["task", "complete"]


INPUTS: dict[str, dict[str, Any]] = {
    "ask": {"q1": {"method": "elicitation/create", "params": {"message": "Publish?", "requestedSchema": FORM}}},
    "ask_once": {"q1": {"method": "elicitation/create", "params": {"message": "Publish?", "requestedSchema": FORM}}},
    "visit": {
        "v1": {
            "method": "elicitation/create",
            "params": {"mode": "url", "message": "Link", "url": "https://e.example/1"},
        }
    },
    "fill": {"q1": {"method": "elicitation/create", "params": {"message": "How?", "requestedSchema": WIDE_FORM}}},
    "sample": {"s1": {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 9}}},
}
BECOME_TASKS = {"pay", "pay_keyed", "watch", *INPUTS}


class Tasks(Extension):
    identifier = TASKS

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def methods(self) -> list[MethodBinding]:
        return [
            MethodBinding("tasks/get", TaskId, self.get),
            MethodBinding("tasks/update", Answers, self.update),
            MethodBinding("tasks/cancel", TaskId, self.cancel),
        ]

    async def intercept_tool_call(
        self, params: t.CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> Any:
        meta = dict(params.meta or {})
        asks = ctx.session.client_params.capabilities if ctx.session.client_params else None
        capabilities = asks.model_dump(by_alias=True, mode="json", exclude_none=True) if asks else {}
        self.note("tools/call", tool=params.name, key=meta.get(KEY), capabilities=capabilities)
        if params.name in ("confirm", "link", "confirm_once"):
            return await self.ask_first(params, ctx, call_next)
        if params.name not in BECOME_TASKS:
            return await call_next(ctx)
        require_client_extension(ctx, TASKS)
        named = f"{params.name} {meta.get(KEY)}" if params.name == "pay_keyed" else f"{params.name} {len(self.tasks)}"
        task_id = sha256(named.encode()).hexdigest()[:24]
        if not self.path(task_id).exists():
            self.save(
                {
                    "taskId": task_id,
                    "status": "working",
                    "statusMessage": "paying",
                    "createdAt": datetime.now(UTC).isoformat(),
                    "ttlMs": 86_400_000,
                    "pollIntervalMs": 200,
                    "_tool": params.name,
                }
            )
        await self.hold("tools-call")
        return shown(self.load(task_id), "task")

    async def ask_first(self, params: t.CallToolRequestParams, ctx: Any, call_next: CallNext) -> Any:
        if params.name == "link":
            if (self.folder / "opened").exists():
                return await call_next(ctx)
            page = t.ElicitRequestURLParams(message="Link your account", url="https://bank.example/link/1")
            return t.InputRequiredResult(input_requests={"visit": t.ElicitRequest(params=page)}, request_state="s1")
        given = (params.input_responses or {}).get("sure")
        if isinstance(given, t.ElicitResult) and params.request_state == "s1":
            self.note("answer", action=given.action, content=given.content)
            return await call_next(ctx)
        form = t.ElicitRequestFormParams(message="Really?", requested_schema=FORM)
        return t.InputRequiredResult(input_requests={"sure": t.ElicitRequest(params=form)}, request_state="s1")

    async def get(self, _: Any, params: TaskId) -> TaskResult:
        self.note("tasks/get", task=params.task_id)
        await self.hold("tasks-get")
        task = self.load(params.task_id)
        self.step(task)
        if (self.folder / "swap").exists():
            task = {**task, "taskId": "f" * 24, "status": "completed", "result": {"content": [], "isError": False}}
        return shown(task, "complete")

    def step(self, task: dict[str, Any]) -> None:
        if task["status"] != "working":
            return
        inputs = INPUTS.get(task["_tool"])
        if inputs is not None and "_answer" not in task:
            task |= {"status": "input_required", "inputRequests": inputs}
        elif inputs is not None or (self.folder / "end").exists():
            text = f"answered {json.dumps(task['_answer'])}" if "_answer" in task else "paid"
            result = t.CallToolResult(content=[t.TextContent(text=text)])
            task |= {"status": "completed", "result": result.model_dump(by_alias=True, mode="json", exclude_none=True)}
        elif (self.folder / "fail").exists():
            task |= {"status": "failed", "error": {"code": -32000, "message": "no funds"}}
        self.save(task)

    async def update(self, _: Any, params: Answers) -> TaskResult:
        self.note("tasks/update", task=params.task_id, answers=params.input_responses)
        task = self.load(params.task_id)
        if task["status"] == "input_required" and params.input_responses.keys() & task["inputRequests"].keys():
            task |= {"_answer": params.input_responses, "status": "working"}
            del task["inputRequests"]
            self.save(task)
        await self.hold("tasks-update")
        return TaskResult(result_type="complete")

    async def cancel(self, _: Any, params: TaskId) -> TaskResult:
        self.note("tasks/cancel", task=params.task_id)
        task = self.load(params.task_id)
        if task["status"] in ("working", "input_required") and not (self.folder / "uncancellable").exists():
            task |= {"status": "cancelled"}
            task.pop("inputRequests", None)
            self.save(task)
        await self.hold("tasks-cancel")
        return TaskResult(result_type="complete")

    @property
    def tasks(self) -> list[Path]:
        return sorted(self.folder.glob("task-*.json"))

    def path(self, task_id: str) -> Path:
        return self.folder / f"task-{task_id}.json"

    def load(self, task_id: str) -> dict[str, Any]:
        path = self.path(task_id)
        if not task_id.isalnum() or not path.exists():
            raise MCPError(code=-32602, message="Task not found")
        loaded: dict[str, Any] = json.loads(path.read_text())
        return loaded

    def save(self, task: dict[str, Any]) -> None:
        path = self.path(task["taskId"])
        path.with_suffix(".new").write_text(json.dumps(task))
        path.with_suffix(".new").rename(path)

    def note(self, method: str, **more: Any) -> None:
        with (self.folder / "log.jsonl").open("a") as log:
            log.write(json.dumps({"method": method, "pid": os.getpid(), **more}) + "\n")

    async def hold(self, method: str) -> None:
        await until(lambda: not (self.folder / f"hold-{method}").exists())


def shown(task: dict[str, Any], result_type: str) -> TaskResult:
    public = {key: value for key, value in task.items() if not key.startswith("_")}
    return TaskResult.model_validate({"resultType": result_type, **public})


def build(folder: Path) -> MCPServer:
    key = folder / "key"
    security = RequestStateSecurity(keys=[key.read_text() if key.exists() else "k" * 32])
    server = MCPServer("bank", extensions=[Tasks(folder)], request_state_security=security)

    def act(what: str = "it") -> str:
        with (folder / "acts").open("a") as acts:
            acts.write("act\n")
        return f"done {what}"

    names = ("pay", "pay_keyed", "watch", "confirm", "confirm_once", "link", *INPUTS)
    hints = {"watch": READ, "link": READ, "confirm": READ, "pay_keyed": KEYED}
    for name in names:
        hint = hints.get(name, READ if name in INPUTS and name != "ask_once" else None)
        server.add_tool(act, name, None, f"The tool {name}.", hint, structured_output=False)
    return server


if __name__ == "__main__":
    place, port = Path(sys.argv[1]), int(sys.argv[2])
    if port:
        uvicorn.run(build(place).streamable_http_app(stateless_http=True), port=port, log_level="warning")
    else:
        build(place).run(transport="stdio")

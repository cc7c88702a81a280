"""MCP's tasks in the types of the SDK's extension interface.

The SDK's own `resolve` would wait within the call, and die with its worker; so a run follows tasks by these requests.
"""

from typing import Any, ClassVar, Literal, NoReturn

from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp_types import Request, RequestParams, Result
from pydantic import ConfigDict

from perdure.features.mcp.rules import TASKS


class TaskMade(Result):
    """The reply to `tools/call` of a server that makes the call a task."""

    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"]


class TaskShown(Result):
    """The reply to a request about a task."""

    model_config = ConfigDict(extra="allow")


class TaskParams(RequestParams):
    task_id: str


class TaskAnswers(TaskParams):
    input_responses: dict[str, Any]


class GetTask(Request[TaskParams, Literal["tasks/get"]]):
    name_param: ClassVar[str | None] = "taskId"  # the header Mcp-Name
    method: Literal["tasks/get"] = "tasks/get"
    params: TaskParams


class UpdateTask(Request[TaskAnswers, Literal["tasks/update"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/update"] = "tasks/update"
    params: TaskAnswers


class CancelTask(Request[TaskParams, Literal["tasks/cancel"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: TaskParams


TaskRequest = GetTask | UpdateTask | CancelTask


async def _never(_: TaskMade, __: ClaimContext) -> NoReturn:
    raise RuntimeError("a run follows the task")


class TasksExtension(ClientExtension):
    """Declares tasks to a server, which then decides for each call."""

    identifier = TASKS

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=TaskMade, resolve=_never)]

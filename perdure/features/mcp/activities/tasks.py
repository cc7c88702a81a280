"""Tasks of MCP servers, as a run follows them: a look, an answer and a cancel, each one request an attempt.

A look that finds nothing new fails with the pause before the next one, so it adds no event to the history.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from mcp import MCPError
from mcp_types import INVALID_PARAMS, CallToolResult
from pydantic import ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure.activities.effects.attempts import heartbeating, this_attempt
from perdure.activities.parts import WorkerParts
from perdure.activities.tools.call import ToolCalls
from perdure.contracts.failures import ToolFault
from perdure.contracts.tool import Effect, ServerTask, ToolCall, ToolOutcome, Unfinished, error_outcome
from perdure.decisions.text.formatting import format_task, truncate
from perdure.features.mcp.activities.connection import McpConnectionLostError, McpTimeoutError, McpUnreachableError
from perdure.features.mcp.activities.extension import (
    CancelTask,
    GetTask,
    TaskAnswers,
    TaskParams,
    TaskRequest,
    UpdateTask,
)
from perdure.features.mcp.activities.grants import NeedsLoginError
from perdure.features.mcp.activities.tool import McpTool
from perdure.features.mcp.rules import ENDED, SENDABLE, is_given_up, pause_before_check, read_task, to_input_requests

SEEN = "seen"  # heartbeat key: the task as it was last seen
REQUEST_TIMEOUT = 20.0  # seconds
MOST_SECONDS = 30  # before an answer is sent again
MAX_CANCELS = 8  # requests to cancel a task that does not end
LOST = (McpUnreachableError, McpConnectionLostError, McpTimeoutError)


@dataclass(frozen=True)
class TaskReply:
    """A server's reply to a request about a task, or the reason why there is none, for now or for good."""

    raw: Mapping[str, Any] | None = None
    why: str = ""
    lost: str = ""


class McpTasks:
    """Raises ApplicationError, whose message says what is known of the task, to be tried again."""

    def __init__(self, calls: ToolCalls) -> None:
        self._calls = calls

    @classmethod
    def of(cls, parts: WorkerParts) -> Self:
        return cls(parts.calls)

    @activity.defn
    async def check_task(self, call: ToolCall) -> ToolOutcome:
        """Return the outcome of a task that has ended, or `unfinished` with what it asks people.

        A task that is lost is in doubt, never failed.
        """
        task, left = _last_seen(call), _left_of(call)
        reply = await self._request(call, task, GetTask(params=TaskParams(task_id=task.id)))
        seen = await self._read(call, task, reply)
        if isinstance(seen, ToolOutcome):
            return seen
        asked = reply.raw.get("inputRequests") if reply.raw is not None and seen.status == "input_required" else None
        if inputs := to_input_requests(asked, left.answers):
            return await self._calls.settle(call, ToolOutcome(unfinished=left.evolve(task=seen, inputs=inputs)))
        if is_given_up(seen, datetime.now(UTC)):
            return await self._lose(call, seen, reply.why or "its time is over")
        raise _try_again(seen, reply.why, pause_before_check(seen, datetime.now(UTC)))

    @activity.defn
    async def update_task(self, call: ToolCall) -> None:
        """Send what people have answered. If the server refuses it, the next look shows what the task needs."""
        task, left = _last_seen(call), _left_of(call)
        answers = {key: answer for key, answer in left.answers.items() if answer["action"] in SENDABLE}
        if not answers:
            return
        request = UpdateTask(params=TaskAnswers(task_id=task.id, input_responses=answers))
        reply = await self._request(call, task, request)
        if reply.why and not is_given_up(task, datetime.now(UTC)):
            raise _try_again(task, reply.why, timedelta(seconds=min(activity.info().attempt, MOST_SECONDS)))

    @activity.defn
    async def cancel_task(self, call: ToolCall) -> ToolOutcome:
        """Cancel the task, and return how it ended: it may complete all the same."""
        task, attempt = _last_seen(call), activity.info().attempt
        await self._request(call, task, CancelTask(params=TaskParams(task_id=task.id)))
        reply = await self._request(call, task, GetTask(params=TaskParams(task_id=task.id)))
        seen = await self._read(call, task, reply)
        if isinstance(seen, ToolOutcome):
            return seen
        if attempt >= MAX_CANCELS or is_given_up(seen, datetime.now(UTC)):
            return await self._lose(call, seen, reply.why or "it does not end, although it was cancelled")
        raise _try_again(seen, reply.why or "cancelled", timedelta(seconds=attempt / 2))

    async def _read(self, call: ToolCall, task: ServerTask, reply: TaskReply) -> ServerTask | ToolOutcome:
        """Return the task as it is seen now, or the outcome of one that has ended or is lost."""
        if reply.lost:
            return await self._lose(call, task, reply.lost)
        if reply.raw is None:
            return task
        seen = read_task(task.server, reply.raw, datetime.now(UTC), task)
        if isinstance(seen, str):
            return await self._lose(call, task, seen)
        return await self._finish(call, seen, reply.raw) if seen.status in ENDED else seen

    def _tool_of(self, call: ToolCall, task: ServerTask) -> McpTool:
        tool = self._calls.tool_of(call)
        if isinstance(tool, McpTool):
            return tool
        raise _try_again(task, f"this worker's project has no MCP tool {call.tool!r}", timedelta(seconds=30))

    async def _request(self, call: ToolCall, task: ServerTask, request: TaskRequest) -> TaskReply:
        """Send one request. Raises HeldError while people are asked to log in."""
        tool = self._tool_of(call, task)
        beat = {**this_attempt().beat_details, SEEN: task.model_dump(mode="json")}
        try:
            async with heartbeating(lambda: beat):
                return TaskReply(await tool.connection.request(request, REQUEST_TIMEOUT))
        except NeedsLoginError as needs:
            await tool.wait_for_login(needs)  # returns once a person has refused to
            return TaskReply(lost=f"a login to {task.server} was refused")
        except LOST as error:
            return TaskReply(why=str(error))
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                return TaskReply(lost="its server does not know it any more")
            return TaskReply(why=truncate(f"{error.message} (code {error.code})"))
        except ValidationError:
            return TaskReply(why="its reply is none of MCP")

    async def _finish(self, call: ToolCall, task: ServerTask, raw: Mapping[str, Any]) -> ToolOutcome:
        """Return the outcome of a task that has ended."""
        tool = self._tool_of(call, task)
        if task.status == "completed":
            try:
                answer = CallToolResult.model_validate(raw.get("result"), by_name=False)
            except ValidationError:
                outcome = error_outcome(ToolFault.tool_error, "the call was made, but its result is none of MCP")
            else:
                outcome = await tool.to_outcome(answer, self._calls.context_of(call))
        elif task.status == "failed":
            fault = raw.get("error")
            known = fault if isinstance(fault, Mapping) else {}
            outcome = tool.to_fault(str(known.get("message", "it gave no reason")), known.get("code"))
        else:
            happened = "" if call.effect is Effect.read else "; what it had done by then may stay"
            outcome = error_outcome(ToolFault.tool_error, f"{format_task(task)}{happened}")
        return await self._calls.settle(call, outcome)

    async def _lose(self, call: ToolCall, task: ServerTask, why: str) -> ToolOutcome:
        """Return the outcome of a task of which nothing more can be known. Of a `once` call, a person decides."""
        said = "; ".join(filter(None, [task.message, why]))
        lost = task.evolve(message=truncate(said, 500))
        is_once = call.effect is Effect.once
        happened = "; it only reads" if call.effect is Effect.read else "; it may have happened"
        outcome = error_outcome(ToolFault.in_doubt, f"{format_task(lost)}{happened}", retryable=not is_once)
        left = _left_of(call).evolve(task=lost, inputs=()) if is_once else None
        return await self._calls.settle(call, outcome.evolve(unfinished=left))


def _left_of(call: ToolCall) -> Unfinished:
    if call.unfinished is None:
        raise AssertionError("only a call that goes on is followed")
    return call.unfinished


def _last_seen(call: ToolCall) -> ServerTask:
    """Return the task as the run knows it, or as an earlier attempt has seen it."""
    task = _left_of(call).task
    if task is None:
        raise AssertionError("only a call that became a task is followed")
    beat = activity.info().heartbeat_details
    seen = beat[0].get(SEEN) if beat and isinstance(beat[0], dict) else None
    return ServerTask.model_validate(seen) if seen else task


def _try_again(task: ServerTask, why: str, pause: timedelta) -> ApplicationError:
    """Return the failure of an attempt. The next one knows when the task was last seen."""
    activity.heartbeat({**this_attempt().beat_details, SEEN: task.model_dump(mode="json")})
    return ApplicationError(
        "; ".join(filter(None, [format_task(task), why])),
        type="TaskNotEnded",
        next_retry_delay=pause,
        category=ApplicationErrorCategory.BENIGN,
    )

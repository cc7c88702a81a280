"""The kind `a2a`: an agent elsewhere, which makes a task of a call.

The ids of a call's message and of its context follow from the call, so they are in the history before it is sent. After
a reply that was lost, the task is looked for in the context before the message is sent again.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import httpx
from a2a.types import CancelTaskRequest, GetTaskRequest, ListTasksRequest, Message, Task
from a2a.utils.errors import A2AError, TaskNotFoundError
from temporalio import activity

from perdure.activities.media.store import ResultFiles
from perdure.activities.tools.interface import (
    CallContext,
    PreflightTool,
    TaskReply,
    TaskTool,
    TaskVerb,
    TransientToolError,
)
from perdure.contracts.agent import ToolSchema
from perdure.contracts.failures import ToolFault
from perdure.contracts.tool import Effect, ServerTask, ToolOutcome, ToolRoute, Unfinished, error_outcome
from perdure.decisions.ids import json_digest
from perdure.decisions.text.formatting import truncate
from perdure.features.a2a_client.connection import AgentConnection, AgentRefusedError, AgentUnreachableError
from perdure.features.a2a_client.tasks import (
    ENDS,
    end_message,
    end_task,
    find_questions,
    see_task,
    write_answer,
    write_message,
)
from perdure.settings.tools import A2aToolSettings

INPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "message": {
            "type": "string",
            "minLength": 1,
            "description": "What the agent is to do, with all that it must know.",
        },
        "data": {"type": "object", "description": "Values for the agent, if it asks for JSON."},
        "context_id": {
            "type": "string",
            "minLength": 1,
            "maxLength": 512,
            "description": "The context_id of an earlier result, to go on in the same conversation.",
        },
    },
    "required": ["message"],
    "additionalProperties": False,
}
FINDING = (1.0, 2.0, 4.0)  # seconds before each look for the task of a reply that was lost


def open_agent_tool(
    route: ToolRoute, described: A2aToolSettings, headers: Mapping[str, str], client: httpx.AsyncClient
) -> "AgentTool":
    request = route.timeout / 2  # the rest is for the look for a reply that was lost
    connection = AgentConnection(described.url, headers, client, request.total_seconds())
    return AgentTool(route, described.description, connection)


class AgentTool(PreflightTool, TaskTool):
    def __init__(self, route: ToolRoute, description: str, connection: AgentConnection) -> None:
        self.route = route
        self.schema = ToolSchema(name=route.name, description=description, input_schema=INPUT_SCHEMA)
        self._agent = connection

    async def check_preflight(self, effect: Effect, accepts: str | None, timeout: timedelta) -> ToolOutcome | None:  # noqa: ARG002 - a tool's
        """Return an error if the agent's card cannot be used. Raises TransientToolError if it cannot be read now."""
        try:
            await self._agent.open()
        except AgentUnreachableError as error:
            raise TransientToolError(ToolFault.unreachable, f"{self.route.name}: {error}") from None
        except (AgentRefusedError, A2AError) as error:
            return error_outcome(ToolFault.http_error, f"{self.route.name}: {error}; the call was not made")
        return None

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:
        """Begin the task, or find the one that an earlier attempt has begun."""
        digest = json_digest(context.idempotency_key).partition(":")[2]
        own = f"perdure-{digest}"
        asked = write_message(arguments, digest, str(arguments.get("context_id") or own))
        found = await self._find_task(asked, own) if activity.info().attempt > 1 else None
        try:
            reply = found or await self._send(asked, own)
        except AgentRefusedError as error:
            return error_outcome(ToolFault.http_error, f"{self.route.name}: {error}")
        except A2AError as error:
            return error_outcome(ToolFault.tool_error, f"{self.route.name}: {truncate(str(error), 2000)}")
        if isinstance(reply, Message):
            return await asyncio.to_thread(end_message, reply, self._files(context))
        return await self._take_task(reply, context)

    async def _send(self, asked: Message, own: str) -> Task | Message:
        """Send the message. Raises TransientToolError, AgentRefusedError, A2AError."""
        try:
            return await self._agent.send(asked)
        except AgentUnreachableError as error:
            reason = error
        if not reason.is_unsent:
            for pause in FINDING if self.route.effect is Effect.once else ():
                await asyncio.sleep(pause)
                if found := await self._find_task(asked, own):
                    return found
        raise TransientToolError(ToolFault.unreachable, f"{self.route.name}: {reason}")

    async def _find_task(self, asked: Message, own: str) -> Task | None:
        """Return the task that the message has begun, if the agent can tell: the context of a call has no other."""
        if asked.context_id != own:
            return None
        request = ListTasksRequest(context_id=own, page_size=2)
        try:
            listed = await self._agent.request(lambda client: client.list_tasks(request))
        except (AgentUnreachableError, AgentRefusedError, A2AError):
            return None
        return listed.tasks[0] if len(listed.tasks) == 1 and listed.tasks[0].context_id == own else None

    async def _take_task(self, task: Task, context: CallContext) -> ToolOutcome:
        seen = see_task(self.route.name, task)
        if isinstance(seen, str):
            kind = ToolFault.in_doubt if self.route.effect is Effect.once else ToolFault.tool_error
            return error_outcome(kind, f"the call was made, and became a task that cannot be followed: {seen}")
        if task.status.state in ENDS:
            return await asyncio.to_thread(end_task, task, self._files(context))
        return ToolOutcome(unfinished=Unfinished(way="task", server=seen.server, task=seen))

    async def request_task(self, verb: TaskVerb, task: ServerTask, context: CallContext) -> TaskReply:
        """Send one request about a task; of answers, one for each."""
        try:
            match verb:
                case TaskVerb.check:
                    request = GetTaskRequest(id=task.id, history_length=0)
                    shown = await self._agent.request(lambda client: client.get_task(request))
                    return await self._show(shown, task, context)
                case TaskVerb.answer:
                    return await self._answer(task, context)
                case TaskVerb.cancel:
                    await self._cancel(task)
                    return TaskReply()
        except TaskNotFoundError:
            return TaskReply(lost="its server does not know it any more")
        except (AgentUnreachableError, AgentRefusedError, A2AError) as error:
            return TaskReply(why=truncate(str(error), 300))

    async def _show(self, shown: Task, task: ServerTask, context: CallContext) -> TaskReply:
        seen = see_task(task.server, shown, task)
        if isinstance(seen, str):
            return TaskReply(lost=seen)
        if shown.status.state in ENDS:
            return TaskReply(seen, outcome=await asyncio.to_thread(end_task, shown, self._files(context)))
        return TaskReply(seen, find_questions(shown, context.unfinished.answers if context.unfinished else ()))

    async def _answer(self, task: ServerTask, context: CallContext) -> TaskReply:
        """Send each answer. One that the agent does not take any more was given elsewhere: the next look shows it."""
        for key, answer in context.unfinished.answers.items() if context.unfinished else ():
            if answer["action"] == "decline":
                await self._cancel(task)
                return TaskReply()
            said = write_answer(task, key, answer.get("content", {})) if answer["action"] == "accept" else None
            if said is not None:
                try:
                    await self._agent.send(said)
                except TaskNotFoundError:
                    raise
                except A2AError:
                    continue
        return TaskReply()

    async def _cancel(self, task: ServerTask) -> None:
        await self._agent.request(lambda client: client.cancel_task(CancelTaskRequest(id=task.id)))

    def _files(self, context: CallContext) -> ResultFiles:
        return ResultFiles(f"{self.route.name}-{context.step:02}", context.workspace, context.store)

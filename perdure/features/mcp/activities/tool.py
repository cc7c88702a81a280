"""The kind `mcp`: a tool of an MCP server as it was accepted, even if its server has changed the definition."""

import asyncio
import base64
import binascii
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from mcp import MCPError
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    URL_ELICITATION_REQUIRED,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    ResourceLink,
    Result,
    TextContent,
    TextResourceContents,
)
from pydantic import ValidationError
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
from perdure.activities.tools.json_schema import SchemaNotApplicableError, SchemaValidator
from perdure.contracts.agent import ToolSchema
from perdure.contracts.failures import ToolFault
from perdure.contracts.tool import (
    Effect,
    InputRequest,
    Pin,
    ServerTask,
    ToolOutcome,
    ToolRoute,
    Unfinished,
    error_outcome,
)
from perdure.decisions.text.formatting import format_task, truncate
from perdure.decisions.unfinished import SENDABLE
from perdure.features.mcp.activities.connection import (
    McpConnectionLostError,
    McpTimeoutError,
    McpUnreachableError,
    OpenCall,
)
from perdure.features.mcp.activities.connections import ServerConnection, UnknownRequesterError
from perdure.features.mcp.activities.extension import (
    CancelTask,
    GetTask,
    TaskAnswers,
    TaskParams,
    TaskRequest,
    UpdateTask,
)
from perdure.features.mcp.activities.grants import GrantError, GrantKeeper, NeedsLoginError
from perdure.features.mcp.questions import LOGGED_IN, login_question
from perdure.features.mcp.rules import (
    ENDED,
    diff_pins,
    effect_of,
    is_looser,
    read_elicitations,
    read_task,
    strictest_effect,
    to_input_requests,
)
from perdure.features.project_questions.client import ask_project, wait_for_answer

MAX_ANSWER_FILES = 50  # in one answer
TEXT_ONLY = "the tool declares structured output and sent text only"


def flaw_of(answer: CallToolResult, declared: SchemaValidator | None) -> str:
    """Return the note for the model on an answer that does not match the `outputSchema` of its tool."""
    if declared is None or answer.is_error:
        return ""
    if answer.structured_content is None:
        is_text = any(isinstance(block, TextContent) for block in answer.content)
        return TEXT_ONLY if is_text else "the tool declares structured output and sent none"
    try:
        error = declared.find_error(answer.structured_content)
    except SchemaNotApplicableError as reason:
        error = f"its schema cannot be applied: {reason}"
    return f"the structured output does not fit what the tool declares: {error}" if error else ""


def to_mcp_outcome(answer: CallToolResult, kept: ResultFiles, declared: SchemaValidator | None = None) -> ToolOutcome:
    """Return structured content if there is any, else the text. With files: `{"content", "files": [...]}`.

    Content that does not match the tool's `outputSchema` is returned with a note: `{"content", "note"}`.

    A file is described by path, content type and bytes, so that no base64 gets into history. The model sees images and
    PDF.
    """
    text = "\n".join(block.text for block in answer.content if isinstance(block, TextContent))
    if answer.is_error:
        return error_outcome(ToolFault.tool_error, text or "the tool failed, and did not say why")
    flaw = flaw_of(answer, declared)
    content = text if answer.structured_content is None else answer.structured_content
    others = [block for block in answer.content if not isinstance(block, TextContent)]
    files = [_store_block(block, number, kept) for number, block in enumerate(others, start=1)]
    if flaw and not content and not files:
        return error_outcome(ToolFault.tool_error, f"the call was made, but its answer is empty: {flaw}")
    if not files and not flaw:
        return ToolOutcome(result=content)
    extras = ({"files": files} if files else {}) | ({"note": flaw} if flaw else {})
    media, paths = tuple(kept.media), tuple(kept.paths)
    return ToolOutcome(result={"content": content, **extras}, media=media, artifacts=paths)


def _store_block(block: ContentBlock, number: int, kept: ResultFiles) -> dict[str, Any]:
    if isinstance(block, ResourceLink):
        return {"uri": block.uri, "name": block.name, "content_type": block.mime_type}
    content_type, data, uri = _block_data(block)
    entry: dict[str, Any] = {"uri": uri} if uri else {}
    if data is not None and number <= MAX_ANSWER_FILES:
        return entry | kept.add_file(content_type, data)
    lost = "what came was no base64" if data is None else f"one answer may bring {MAX_ANSWER_FILES} files"
    return entry | {"path": None, "content_type": content_type, "lost": lost}


def _block_data(block: ContentBlock) -> tuple[str, bytes | None, str | None]:
    """Return content type, bytes if they can be decoded, and the URI of a resource."""
    match block:
        case ImageContent() | AudioContent():
            return block.mime_type, _decode_base64(block.data), None
        case EmbeddedResource(resource=BlobResourceContents() as resource):
            return resource.mime_type or "application/octet-stream", _decode_base64(resource.blob), resource.uri
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return resource.mime_type or "text/plain", resource.text.encode(errors="replace"), resource.uri
        case _:
            return "application/octet-stream", None, None


def _decode_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


NO_ANSWER = "Server returned an error response"  # the SDK's message for a 4xx or 5xx without an MCP message
# Codes that prove that nothing was called. Others may be the SDK's, for an answer that it cannot read.
UNMADE_CODES = (METHOD_NOT_FOUND, INVALID_PARAMS)
MAX_STATE = 64 * 1024  # characters of a server's state, which goes through history
_UNSENT = "the call was not made"
ASKED_ONCE = (
    "the server asked a question within the call, and was answered `cancel`: a call that may not be repeated cannot "
    "wait for a person"
)
ASKED_SHARED = "the server asked a question while several calls were open, and was answered `cancel`: call it alone"


REQUEST_TIMEOUT = 20.0  # seconds, of a request about a task
LOST = (McpUnreachableError, McpConnectionLostError, McpTimeoutError)


class McpTool(PreflightTool, TaskTool):
    """A tool of a server. `name` is the server's; `accepted` is the definition that models see."""

    def __init__(self, route: ToolRoute, name: str, accepted: Pin, connection: ServerConnection) -> None:
        self.route = route
        self.schema = ToolSchema(name=route.name, description=accepted.description, input_schema=accepted.input_schema)
        self._name = name
        self._accepted = accepted
        self.connection = connection

    async def check_preflight(self, effect: Effect, accepts: str | None, timeout: timedelta) -> ToolOutcome | None:
        """Return an error if the tool is missing, its definition was not accepted, or its effect is now stricter.

        `effect` is the tool's effect when the run began, by which the run retries it. `accepts` is the digest of
        another definition that a person has accepted. The tools of a server at a URL are listed each time, since its
        notifications may be lost. Raises TransientToolError.
        """
        seconds = timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                connection = await self.connection.for_run()
                tools = await connection.tools(refresh=connection.is_remote)
        except NeedsLoginError as needs:
            return await self.wait_for_login(needs)
        except UnknownRequesterError as error:
            return error_outcome(ToolFault.denied, f"{error}; {_UNSENT}")
        except McpUnreachableError as error:
            raise TransientToolError(ToolFault.unreachable, str(error)) from None
        except TimeoutError:
            message = f"MCP server {self.connection.server.name} did not get ready within {seconds:g} s"
            raise TransientToolError(ToolFault.unreachable, message) from None
        now = tools.get(self._name)
        if now is not None and is_looser(
            effect, needed := strictest_effect(self.route.effect, effect_of(now.annotations))
        ):
            message = f"{self.route.name} is {needed} now, and this run would repeat it as {effect}"
            return error_outcome(
                ToolFault.changed, f"{message}; {_UNSENT}. A new run can, once the tool is accepted as it is"
            )
        return self._reject_changed(now, accepts, connection.rejected_tools.get(self._name))

    async def wait_for_login(self, needs: NeedsLoginError) -> ToolOutcome:
        """Have the run wait until a person has logged in, or refused to. Raises HeldError, TransientToolError."""
        server = self.connection.server
        answer = await wait_for_answer(activity.client(), login_question(server, needs))
        if answer.option == LOGGED_IN:
            raise TransientToolError(ToolFault.unreachable, str(needs))
        by = f"{answer.by} refused" if answer.by else "a person refused"
        return error_outcome(ToolFault.denied, f"{by} to log in to {server.name}; {_UNSENT}")

    async def _ask_for_rights(self, keeper: GrantKeeper, scope: str) -> ToolOutcome:
        """Ask people for more rights. A call that may not be repeated is over; another one waits.

        Raises HeldError, TransientToolError.
        """
        try:
            needs = await keeper.want(scope)
        except (GrantError, OSError) as error:
            return self._fail_unsent(str(error))
        if self.route.effect is not Effect.once:
            return await self.wait_for_login(needs)
        question = login_question(self.connection.server, needs)
        await ask_project(activity.client(), activity.info().task_queue, question)
        return error_outcome(
            ToolFault.denied, f"{self.route.name} needs more rights ({scope}), and people are asked for them; {_UNSENT}"
        )

    def _reject_changed(self, now: Pin | None, accepts: str | None, reason: str | None) -> ToolOutcome | None:
        if now is None:
            message = reason or f"MCP server {self.connection.server.name} has no tool {self._name!r} any more"
            return error_outcome(ToolFault.not_found, f"{message}; {_UNSENT}")
        if now.sha256 in (self._accepted.sha256, accepts):
            return None
        message = f"{self.route.name} is defined otherwise now than it was accepted; {_UNSENT}"
        outcome = error_outcome(ToolFault.changed, f"{message}\n\n{diff_pins(self._accepted, now)}")
        error = outcome.error and outcome.error.evolve(definition=now.sha256)
        return outcome.evolve(error=error)

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:
        """Call the tool. A call that was not sent may be retried; a sent call of a `once` tool may have happened.

        What a server asks within a call that may be repeated ends that call: it is made again with the answer.
        """
        sent, is_once = OpenCall(context.idempotency_key, context.unfinished), self.route.effect is Effect.once
        try:
            outcome = await self._send(arguments, context, sent)
        except TransientToolError:
            if not sent.asked or is_once:
                raise
            outcome = ToolOutcome()
        if sent.asked and not is_once:
            return self._leave("open", sent.asked, sent.left)
        if sent.asked:
            return _with_note(outcome, f"{ASKED_ONCE}: {truncate(sent.asked[0].message, 300)}")
        return _with_note(outcome, ASKED_SHARED) if sent.was_shared else outcome

    async def _send(self, arguments: dict[str, Any], context: CallContext, sent: OpenCall) -> ToolOutcome:
        timeout = self.route.timeout.total_seconds()
        try:
            accepted = (self._accepted.sha256, context.accepts)
            connection = await self.connection.for_run()
            answer = await connection.call(self._name, arguments, timeout, accepted, sent)
        except (McpUnreachableError, NeedsLoginError) as error:
            return self._fail_unsent(str(error))
        except McpConnectionLostError as error:
            if self.route.effect is Effect.once:
                return error_outcome(ToolFault.in_doubt, f"{error}; the call was sent, and may have happened")
            raise TransientToolError(ToolFault.unreachable, str(error)) from None
        except McpTimeoutError as error:
            raise TransientToolError(ToolFault.timeout, str(error)) from None
        except MCPError as error:
            return await self._take_fault(error, sent, connection.keeper)
        except RuntimeError as error:  # the SDK's, for an invalid answer
            return error_outcome(ToolFault.tool_error, f"the call was made, but {str(error)[:2000]}")
        if isinstance(answer, CallToolResult):
            return await self.to_outcome(answer, context)
        return self._take_unfinished(answer, sent)

    def _take_unfinished(self, answer: Result, sent: OpenCall) -> ToolOutcome:
        """Return a call whose server asks first, or has made it a task."""
        raw = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        if isinstance(answer, InputRequiredResult):
            return self._leave("retry", to_input_requests(raw.get("inputRequests")), sent.left, answer.request_state)
        return self._take_task(raw)

    async def _take_fault(self, error: MCPError, sent: OpenCall, keeper: GrantKeeper | None) -> ToolOutcome:
        """Return what the error of a server means. Raises TransientToolError, HeldError."""
        if error.message == NO_ANSWER:
            if keeper and (scope := keeper.take_lack(self._name)):
                return await self._ask_for_rights(keeper, scope)
            raise TransientToolError(ToolFault.unreachable, f"{self.route.name}: {error.message}") from None
        if error.code == URL_ELICITATION_REQUIRED and isinstance(error.data, dict):
            return self._leave("elsewhere", read_elicitations(error.data.get("elicitations")), sent.left)
        return self.to_fault(error.message, error.code)

    def to_fault(self, message: str, code: Any) -> ToolOutcome:
        """Return the outcome of a call that its server has answered with an error."""
        message = f"{self.route.name}: {message[:2000]} (code {code})"
        if self.route.effect is Effect.once and code not in UNMADE_CODES:
            message += "; the call was sent, and may have happened"
        return error_outcome(ToolFault.tool_error, message)

    async def to_outcome(self, answer: CallToolResult, context: CallContext) -> ToolOutcome:
        kept = ResultFiles(f"{self.route.name}-{context.step:02}", context.workspace, context.store)
        declared = (await self.connection.for_run()).declared_output(self._name)
        return await asyncio.to_thread(to_mcp_outcome, answer, kept, declared)

    def _take_task(self, raw: dict[str, Any]) -> ToolOutcome:
        """Return a call that its server has made a task."""
        server = self.connection.server.name
        task = read_task(server, raw, datetime.now(UTC))
        if isinstance(task, str):
            kind = ToolFault.in_doubt if self.route.effect is Effect.once else ToolFault.tool_error
            return error_outcome(kind, f"the call was made, and became a task that cannot be followed: {task}")
        return ToolOutcome(unfinished=Unfinished(way="task", server=server, task=task))

    async def request_task(self, verb: TaskVerb, task: ServerTask, context: CallContext) -> TaskReply:
        """Send one request about a task. Raises HeldError while people are asked to log in."""
        try:
            raw = await self.connection.request(_task_request(verb, task, context.unfinished), REQUEST_TIMEOUT)
        except NeedsLoginError as needs:
            await self.wait_for_login(needs)  # returns once a person has refused to
            return TaskReply(lost=f"a login to {task.server} was refused")
        except LOST as error:
            return TaskReply(why=str(error))
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                return TaskReply(lost="its server does not know it any more")
            return TaskReply(why=truncate(f"{error.message} (code {error.code})"))
        except ValidationError:
            return TaskReply(why="its reply is none of MCP")
        return await self._view_task(raw, task, context) if verb is TaskVerb.check else TaskReply()

    async def _view_task(self, raw: Mapping[str, Any], task: ServerTask, context: CallContext) -> TaskReply:
        """Return a task as the server's reply shows it."""
        seen = read_task(task.server, raw, datetime.now(UTC), task)
        if isinstance(seen, str):
            return TaskReply(lost=seen)
        if seen.status in ENDED:
            return TaskReply(task=seen, outcome=await self._end_task(seen, raw, context))
        asked = raw.get("inputRequests") if seen.status == "input_required" else None
        answered = context.unfinished.answers if context.unfinished else ()
        return TaskReply(task=seen, inputs=to_input_requests(asked, answered))

    async def _end_task(self, task: ServerTask, raw: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Return the outcome of a task that has ended."""
        if task.status == "completed":
            try:
                answer = CallToolResult.model_validate(raw.get("result"), by_name=False)
            except ValidationError:
                return error_outcome(ToolFault.tool_error, "the call was made, but its result is none of MCP")
            return await self.to_outcome(answer, context)
        if task.status == "failed":
            fault = raw.get("error")
            known = fault if isinstance(fault, Mapping) else {}
            return self.to_fault(str(known.get("message", "it gave no reason")), known.get("code"))
        happened = "" if self.route.effect is Effect.read else "; what it had done by then may stay"
        return error_outcome(ToolFault.tool_error, f"{format_task(task)}{happened}")

    def _leave(
        self,
        way: Literal["retry", "open", "elsewhere"],
        asked: Sequence[InputRequest],
        before: Unfinished | None,
        state: str | None = None,
    ) -> ToolOutcome:
        """Return a call that its server completes only after an answer of a person."""
        server = self.connection.server.name
        refused = next((one.refused for one in asked if one.refused), "" if asked else "it asks nothing")
        if refused or len(state or "") > MAX_STATE:
            refused = refused or f"its state has more than {MAX_STATE:,} characters"
            message = f"{server} asks first, and is not answered: {refused}; the call was not completed"
            return error_outcome(ToolFault.tool_error, message)
        left = before or Unfinished(way=way, server=server)
        return ToolOutcome(unfinished=left.evolve(way=way, inputs=tuple(asked), state=state))

    def _fail_unsent(self, reason: str) -> ToolOutcome:
        if self.route.effect is Effect.once:
            return error_outcome(ToolFault.unreachable, f"{reason}; {_UNSENT}", retryable=True)
        raise TransientToolError(ToolFault.unreachable, reason)


def _task_request(verb: TaskVerb, task: ServerTask, left: Unfinished | None) -> TaskRequest:
    if verb is TaskVerb.answer and left is not None:
        answers = {key: answer for key, answer in left.answers.items() if answer["action"] in SENDABLE}
        return UpdateTask(params=TaskAnswers(task_id=task.id, input_responses=answers))
    named = TaskParams(task_id=task.id)
    return CancelTask(params=named) if verb is TaskVerb.cancel else GetTask(params=named)


def _with_note(outcome: ToolOutcome, note: str) -> ToolOutcome:
    """Return the outcome with a note for the model on a question that was not put to a person."""
    if outcome.error is not None:
        return outcome.evolve(error=outcome.error.evolve(message=f"{outcome.error.message}; {note}"))
    return outcome.evolve(result={"content": outcome.result, "note": note})

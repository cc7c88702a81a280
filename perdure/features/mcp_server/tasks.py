"""Runs as tasks (`io.modelcontextprotocol/tasks`): for a client that knows them, start_run answers with one.

The task's id is the run's, and nothing is kept here: any process answers for it. Each method looks for the caller's
own runs alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, CallToolRequestParams, CallToolResult, RequestParams, TextContent
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import Field, ValidationError
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.service import RPCError

from perdure.client.errors import AnswerRejectedError, RejectedError, RunNotFoundError, TemporalUnavailableError
from perdure.client.run_list import RunInfo
from perdure.client.runs import MAX_RUN_ID_BYTES, find_resumed, query_run_state
from perdure.contracts.run.signals import QuestionKind
from perdure.contracts.run.state import QuestionView, RunStatus, RunView
from perdure.decisions.errors import ReportedError, format_validation_error
from perdure.decisions.ids import QUESTION_PREFIX
from perdure.decisions.run.question import QUESTIONS
from perdure.decisions.text.formatting import truncate
from perdure.decisions.text.visible_text import render_values, render_visible
from perdure.features.mcp_server.callers import McpCaller, OwnRun, find_own_run
from perdure.features.mcp_server.forms import is_in_words, request_key_of, to_answer, to_link, to_request
from perdure.features.mcp_server.tools import RunStateResult, RunTools

TASKS = "io.modelcontextprotocol/tasks"
POLL_MS = 2000  # milliseconds between two requests for a task, as we ask for
PATIENCE = timedelta(seconds=1.5)  # of a request for a task, if no worker answers
MAX_STATUS = 500  # characters
UNKNOWN = "unknown task"  # also one of another caller

Asked = ServerRequestContext[Any, Any]


class OwnTaskParams(RequestParams):
    task_id: str = Field(max_length=MAX_RUN_ID_BYTES)


class TaskUpdateParams(OwnTaskParams):
    input_responses: dict[str, Any] = Field(max_length=200)


class RunTasks(Extension):
    identifier = TASKS

    def __init__(self, tools: RunTools) -> None:
        self._tools = tools
        self._client = tools.session.client
        self._retention: timedelta | None = None

    def methods(self) -> Sequence[MethodBinding]:
        return (
            MethodBinding("tasks/get", OwnTaskParams, self.get),
            MethodBinding("tasks/update", TaskUpdateParams, self.update),
            MethodBinding("tasks/cancel", OwnTaskParams, self.cancel),
        )

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Asked, call_next: CallNext
    ) -> HandlerResult:
        """Answer a start with a task. Whatever goes wrong after the start, its result has the run's id."""
        result = await call_next(ctx)
        started = result.structured_content if isinstance(result, CallToolResult) else None
        if params.name != "start_run" or not started or "run_id" not in started or not _knows_tasks(ctx):
            return result
        try:
            own = await find_own_run(self._client, self._tools.caller_of(ctx.request), started["run_id"])
        except (ReportedError, RPCError):  # another caller's run, by a dedupe_key that all share; or Temporal is down
            return result
        return {"resultType": "task", **_describe(own.run, "working", started.get("note") or "started")}

    async def get(self, ctx: Asked, params: OwnTaskParams) -> HandlerResult:
        with self._one_line(ctx):
            return await self._show(ctx, await self._find(self._tools.caller_of(ctx.request), params))

    async def update(self, ctx: Asked, params: TaskUpdateParams) -> HandlerResult:
        """Answer open questions in words. Other responses, and those to other questions, have no effect."""
        with self._one_line(ctx):
            caller = self._tools.caller_of(ctx.request)
            own = await self._find(caller, params)
            _require_acting(caller)
            if own.run.is_open:
                questions = {
                    request_key_of(question): question for question in await self._open_questions(params.task_id)
                }
                for key, response in params.input_responses.items():
                    if (question := questions.get(key)) is not None and is_in_words(question):
                        await self._answer(params.task_id, question, response, caller)
        return {}

    async def cancel(self, ctx: Asked, params: OwnTaskParams) -> HandlerResult:
        with self._one_line(ctx):
            caller = self._tools.caller_of(ctx.request)
            own = await self._find(caller, params)
            _require_acting(caller)
            if own.run.is_open:
                with suppress(RunNotFoundError, RejectedError):  # it has just ended
                    await self._tools.perdure.get_run(params.task_id).cancel("cancelled as a task", by=caller.name)
        return {}

    @contextmanager
    def _one_line(self, ctx: Asked) -> Iterator[None]:
        """Check that the client knows tasks, and convert expected errors. Raises MCPError."""
        require_client_extension(ctx, TASKS)
        try:
            yield
        except RunNotFoundError:
            raise MCPError(code=INVALID_PARAMS, message=UNKNOWN) from None
        except ValidationError as error:
            raise self._error(INVALID_PARAMS, format_validation_error(error, without="payload")) from None
        except RejectedError as error:
            raise self._error(INVALID_PARAMS, str(error)) from None
        except RPCError as error:
            raise self._error(INTERNAL_ERROR, f"Temporal does not do it: {error.message}") from None
        except ReportedError as error:
            raise self._error(INTERNAL_ERROR, str(error)) from None

    def _error(self, code: int, reason: str) -> MCPError:
        return MCPError(code=code, message=self._tools.session.settings.secrets.redact(truncate(reason, MAX_STATUS)))

    async def _find(self, caller: McpCaller, params: OwnTaskParams) -> OwnRun:
        """Return the caller's run with this id. Raises RunNotFoundError."""
        return await find_own_run(self._client, caller, params.task_id)

    async def _open_questions(self, run_id: str) -> tuple[QuestionView, ...]:
        view = await query_run_state(self._client, run_id, PATIENCE)
        if view is None:
            raise TemporalUnavailableError("no worker answers for this run now: send it again")
        return view.questions

    async def _answer(self, run_id: str, question: QuestionView, response: Any, caller: McpCaller) -> None:
        answer = to_answer(question, response, caller.name)
        if answer is None:
            return
        try:
            await self._tools.perdure.get_run(run_id).send_answer(answer)
        except AnswerRejectedError:  # also if another one was quicker, which is no fault
            if question.id in (still.id for still in await self._open_questions(run_id)):
                raise

    async def _show(self, ctx: Asked, own: OwnRun) -> dict[str, Any]:
        if not own.run.is_open:
            return await self._show_end(own)
        run, view = own.run, await query_run_state(self._client, own.run.run_id, PATIENCE)
        questions = view.questions if view else ()
        held, client = run.held, ctx.session.client_capabilities
        asks = held.by if held and held.by.startswith(QUESTION_PREFIX) else ""  # of the project, such as a login
        page = self._tools.page_for_people(asks or run.run_id)
        asked = {request_key_of(question): to_request(question, page, client) for question in questions}
        if held and asks:
            asked[asks] = to_link(QuestionKind.project, held.why, page, client)
        requests = {key: request for key, request in asked.items() if request is not None}
        where = page or f"perdure show {asks or run.run_id} tells how to answer it"
        task = _describe(run, "input_required" if requests else "working", _progress(run, view, where), view)
        return {**task, "inputRequests": requests} if requests else task

    async def _show_end(self, own: OwnRun) -> dict[str, Any]:
        state = await self._tools.run_state(own.run.run_id)
        is_cancelled = state.status == RunStatus.cancelled
        task = _describe(own.run, "cancelled" if is_cancelled else "completed", state.status)
        task["ttlMs"] = await self._find_ttl(own.run)
        if is_cancelled:
            return task
        next_run = await find_resumed(self._client, own.run.run_id) if state.status in _RESUMABLE else None
        return {**task, "result": self._result(state, own.origin, next_run)}

    def _result(self, state: RunStateResult, origin: str | None, next_run: str | None) -> dict[str, Any]:
        """Return the result of the call: a run that came to no outcome is an error of the tool, not of the protocol."""
        shown = render_values(state.model_dump(mode="json"))
        lineage = {"resumes": origin, "resumed_as": next_run}
        content = {**shown, "page": self._tools.page(state.run_id), **{k: v for k, v in lineage.items() if v}}
        text = shown["outcome"] or shown["failure"] or state.status
        result = CallToolResult(
            content=[TextContent(type="text", text=text)],
            structured_content=content,
            is_error=state.status != RunStatus.completed,
        )
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def _find_ttl(self, run: RunInfo) -> int | None:
        """Return how long after its start the server forgets an ended run, in milliseconds, if that is known."""
        if self._retention is None:
            with suppress(RPCError):
                request = DescribeNamespaceRequest(namespace=self._client.namespace)
                found = await self._client.workflow_service.describe_namespace(request, retry=True)
                self._retention = found.config.workflow_execution_retention_ttl.ToTimedelta()
        closed = run.execution.close_time
        if self._retention is None or closed is None:
            return None
        return int((closed - run.execution.start_time + self._retention).total_seconds() * 1000)


_RESUMABLE = (RunStatus.failed, RunStatus.timed_out)


def _knows_tasks(ctx: Asked) -> bool:
    """Return whether the client declares tasks with this request. Those of 2025 have others, of the same name."""
    capabilities = ctx.session.client_capabilities
    declared = (capabilities.extensions if capabilities else None) or {}
    return TASKS in declared and ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS


def _require_acting(caller: McpCaller) -> None:
    """Raises RejectedError."""
    if not caller.may_answer:
        caller.require_start()


def _describe(run: RunInfo, status: str, message: str, view: RunView | None = None) -> dict[str, Any]:
    """Return a task. An open run has no limit: its retention begins at its end."""
    created = view.created_at if view and run.first_execution != run.execution.run_id else run.execution.start_time
    updated: datetime = run.execution.close_time or (view.updated_at if view else created)
    return {
        "taskId": run.run_id,
        "status": status,
        "statusMessage": truncate(render_visible(message), MAX_STATUS),
        "createdAt": created.isoformat(),
        "lastUpdatedAt": max(created, updated).isoformat(),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }


def _progress(run: RunInfo, view: RunView | None, where: str) -> str:
    """Return what an open run does, or waits for, and where people see to that."""
    if run.is_wedged:
        return f"wedged, it needs its operator: {run.wedged_by}"
    if (held := run.held) is not None:
        return f"held before its next call: {truncate(held.why, MAX_STATUS // 2)} ({where})"
    if view is None:
        return f"{run.status}; no worker answers now"
    for question in view.questions:
        return f"{QUESTIONS[question.kind].title}: {truncate(question.text, MAX_STATUS // 2)} ({where})"
    waits = f", waits for {', '.join(call.tool for call in view.pending)}" if view.pending else ""
    found = f": {view.last_finding}" if view.last_finding else ""
    return f"{view.status}, step {view.step} of {view.max_steps}{waits}{found}"

"""The activity `call_tool`: one call of one tool, and what becomes of a large result."""

import asyncio
from datetime import timedelta
from time import perf_counter
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from pydantic_core import from_json, to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.heartbeat import beating
from activities.project import Project
from activities.redaction import redacted
from activities.toolkit import CallContext, TransientFailure
from activities.trace import record
from activities.transcript import Transcripts, Wanted
from activities.workspace import Workspace
from contracts.failures import ToolFault
from contracts.tool import ToolCall, ToolKind, ToolOutcome, failed
from decisions.ids import request_key, result_key, run_id_of
from decisions.narrate import call_line
from decisions.transcript import result_part

INLINE_BYTES = 64 * 1024  # of a result's JSON; more becomes an artifact
EXCERPT_BYTES = 4 * 1024
ERROR_BYTES = 8 * 1024
MOST_WAIT = 60.0  # seconds that a server's `retry-after` may ask for


class ToolCalls:
    def __init__(self, transcripts: Transcripts, project: Project) -> None:
        self._transcripts = transcripts
        self._project = project
        self._validators = {n: Draft202012Validator(t.schema.input_schema) for n, t in project.tools.items()}

    @activity.defn
    async def call_tool(self, call: ToolCall) -> ToolOutcome:
        """Runs one tool once.

        A failure that may pass is raised, so that Temporal retries it where the tool's effect allows; every other
        one is an outcome that the model sees.
        """
        workspace = self._project.workspace(run_id_of(activity.info().workflow_id or ""))
        started = perf_counter()
        async with beating(lambda: {"step": call.step, "call": call_line(call.tool, call.arguments or {})}):
            outcome = redacted(sound(await self._run(call, workspace)), self._project.secrets)
            if is_large(outcome):
                outcome = await asyncio.to_thread(fitted, outcome, call, workspace)
        outcome = outcome.model_copy(update={"duration_ms": round((perf_counter() - started) * 1000)})
        self._remember(call, outcome, workspace)
        return outcome

    async def _run(self, call: ToolCall, workspace: Workspace) -> ToolOutcome:
        tool = self._project.tools.get(call.tool)
        if tool is None:
            return failed(ToolFault.unknown_tool, f"this worker's project has no tool {call.tool!r}")
        arguments = await self._arguments(call, workspace)
        if wrong := best_match(self._validators[call.tool].iter_errors(arguments)):
            where = "/".join(str(p) for p in wrong.absolute_path) or "arguments"
            return failed(ToolFault.invalid_arguments, f"{where}: {wrong.message[:500]}")
        try:
            return await tool.run(arguments, _context(call, workspace))
        except TransientFailure as passing:
            raise _retryable(passing) from None

    async def _arguments(self, call: ToolCall, workspace: Workspace) -> dict[str, Any]:
        """Large arguments are in the conversation already, as the model wrote them."""
        if call.arguments is not None:
            return call.arguments
        conversation = await self._transcripts.at(Wanted.here(call.length, call.head, workspace))
        blocks = (block for part in reversed(conversation.transcript.parts) for block in part.content)
        arguments: dict[str, Any] = next(block["input"] for block in blocks if block.get("id") == call.tool_use_id)
        return arguments

    def _remember(self, call: ToolCall, outcome: ToolOutcome, workspace: Workspace) -> None:
        tool = self._project.tools.get(call.tool)
        if tool is None or tool.route.kind is not ToolKind.signal:
            part = result_part(call.tool_use_id, call.tool, call.step, outcome)
            self._transcripts.feed_result(activity.info().workflow_id or "", call.tool_use_id, part)
        line = {
            "key": result_key(run_id_of(activity.info().workflow_id or ""), call.step, call.attempt),
            "event": "tool",
            "step": call.step,
            "call": call_line(call.tool, call.arguments or {}),
            "status": outcome.status,
            "error": outcome.error.message[:500] if outcome.error else None,
            "ms": outcome.duration_ms,
        }
        record(workspace, line)


def _context(call: ToolCall, workspace: Workspace) -> CallContext:
    info = activity.info()
    run_id = run_id_of(info.workflow_id or "")
    return CallContext(
        run_id=run_id,
        step=call.step,
        idempotency_key=request_key(run_id, call.step, call.attempt),
        requested_at=info.scheduled_time,
        workspace=workspace,
    )


def _retryable(passing: TransientFailure) -> ApplicationError:
    delay = None
    if passing.retry_after is not None:
        delay = timedelta(seconds=min(max(passing.retry_after, 0.0), MOST_WAIT))
    return ApplicationError(passing.message[:ERROR_BYTES], type=passing.kind, next_retry_delay=delay)


def sound(outcome: ToolOutcome) -> ToolOutcome:
    """What the run could not read back (lone surrogates, very deep nesting) would stop it for good."""
    try:
        from_json(to_json([outcome]))  # a level deeper than it will lie
    except ValueError as error:
        return failed(ToolFault.tool_error, f"the call was made, but what it returned is no usable JSON: {error}")
    return outcome


def is_large(outcome: ToolOutcome) -> bool:
    return len(to_json(outcome.result)) > INLINE_BYTES or (
        outcome.error is not None and len(outcome.error.message) > ERROR_BYTES
    )


def fitted(outcome: ToolOutcome, call: ToolCall, workspace: Workspace) -> ToolOutcome:
    """A large result becomes an artifact and an excerpt of it; a large error is cut (A9).

    The call has been made: a disk that takes no artifact costs the rest of the result, not the whole of it.
    """
    if outcome.error is not None:
        error = outcome.error.model_copy(update={"message": outcome.error.message[:ERROR_BYTES]})
        return outcome.model_copy(update={"error": error, "result": None})
    is_text = isinstance(outcome.result, str)
    data = outcome.result.encode() if isinstance(outcome.result, str) else to_json(outcome.result, indent=2)
    content_type = "text/plain" if is_text else "application/json"
    path = workspace.artifact_path(f"{call.tool}-{call.step:02}", content_type)
    result: dict[str, Any] = {
        "artifact_path": path,
        "content_type": content_type,
        "bytes": len(data),
        "excerpt": data[:EXCERPT_BYTES].decode(errors="ignore"),
    }
    try:
        workspace.write(path, data)
    except OSError as error:
        result |= {
            "artifact_path": None,
            "lost": f"only the excerpt is left, the disk refused the rest: {error.strerror}",
        }
    return outcome.model_copy(update={"result": result})

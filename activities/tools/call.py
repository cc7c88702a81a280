"""The activity `call_tool`: run one tool call, and store a large result as an artifact."""

import asyncio
import json
from collections.abc import Coroutine, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from time import monotonic, perf_counter
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.activities.effects.attempts import heartbeating, this_attempt, was_lost
from perdure.activities.effects.ledger import (
    Effects,
    InDoubt,
    LedgerEntry,
    LedgerUnavailableError,
    run_to_completion,
    with_timeout,
)
from perdure.activities.effects.places import LimitedPlaces
from perdure.activities.model.transcript_cache import TranscriptCache, TranscriptMismatchError
from perdure.activities.project import Project
from perdure.activities.run.definition import SearchTools
from perdure.activities.security import redact_model
from perdure.activities.storage.store import Store, StoredFileChangedError
from perdure.activities.storage.workspace import Workspace
from perdure.activities.telemetry.trace import report_event, write_trace
from perdure.activities.tools.interface import CallContext, PreflightTool, Tool, TransientToolError
from perdure.activities.tools.json_schema import SchemaNotApplicableError, SchemaValidator, check_in_loop
from perdure.activities.tools.outcome import (
    ResultBudget,
    bound_result,
    cut_error,
    drop_cut_end,
    fit_result,
    is_large,
    is_small,
    take_share,
)
from perdure.contracts.failures import Stop, ToolFault
from perdure.contracts.tool import (
    CALL_MARGIN,
    RETRIES_USED_UP,
    RETRY_DELAYS,
    ChangeCheck,
    ChangedCall,
    Effect,
    ToolCall,
    ToolKind,
    ToolOutcome,
    error_outcome,
)
from perdure.decisions.ids import call_digest, request_key, result_key, run_id_of_workflow
from perdure.decisions.run.transcript import result_part
from perdure.decisions.text.formatting import call_line, call_trace
from perdure.decisions.tool_results import reject_unreadable
from perdure.decisions.tools import SEARCH_TOOLS, unwrap_use

IN_LOOP_BYTES = 10 * 1024  # of a result that needs no thread; its escaped JSON is below INLINE_BYTES in any case
MAX_SHARE_WAIT = 3.0  # seconds that a finished result waits for a share; less than `CALL_MARGIN`
PREFLIGHT_SHARE = 2 / 3  # maximum part of a tool's timeout that the preflight may use


class ToolCalls:
    def __init__(
        self,
        client: Client,
        transcripts: TranscriptCache,
        project: Project,
        drain: timedelta,
        places: LimitedPlaces | None = None,
    ) -> None:
        self._client = client
        self._transcripts = transcripts
        self._project = project
        self._drain = drain
        self._places = places
        self._tools: Mapping[str, Tool] = {**project.tools, SEARCH_TOOLS: SearchTools(project.stores)}
        self._validators = {name: SchemaValidator(tool.schema.input_schema) for name, tool in self._tools.items()}
        self._effects = Effects()
        self._budget = ResultBudget()

    @activity.defn
    async def call_tool(self, call: ToolCall) -> ToolOutcome:
        """Run one tool call.

        Transient failures are raised, so that Temporal retries them if the tool's effect allows it; all others are
        outcomes that the model sees. Raises ApplicationError with a type of `perdure.contracts.failures.Stop` if the
        effect may have happened before, or must not happen now.
        """
        this = this_attempt()
        details = {"step": call.step, "call": call_line(call.tool, call.arguments or {}), **this.beat_details}
        async with heartbeating(lambda: details):
            was_interrupted = await was_lost(self._client)
            return await self.run_attempt(call, this.number, interrupted=was_interrupted)

    @activity.defn
    async def check_change(self, call: ChangedCall) -> ChangeCheck:
        """Check a call that a person changes while approving it, as a call of the model is checked."""
        validator = self._validators.get(call.tool)
        try:
            find = partial(validator.find_error, call.arguments) if validator else None
            error = await check_in_loop(find, call.arguments) if find else None
        except SchemaNotApplicableError as reason:
            error = f"the schema of {call.tool} cannot be applied: {reason}"
        return ChangeCheck(error=error)

    async def run_attempt(
        self, call: ToolCall, attempt: int, limit: timedelta | None = None, *, interrupted: bool = False
    ) -> ToolOutcome:
        """Run one attempt. `limit` is its timeout if the activity is not the call's own. Raises as `call_tool`."""
        workspace = self._project.workspace(_run_id())
        started = perf_counter()
        if interrupted:
            _report_retry(call, workspace, attempt, "its worker was lost", None)
        place = self._places.place_for_call(call.tool, call.step) if self._places else nullcontext()
        async with place, self._budget.call():
            outcome = await self._run_call(call, workspace, attempt, limit)
        took = round((perf_counter() - started) * 1000)
        outcome = self._with_time(outcome.evolve(duration_ms=took, interrupted=interrupted))
        is_open = outcome.unfinished is not None or (outcome.error is not None and outcome.error.definition is not None)
        if not is_open:
            self._record_outcome(call, outcome, workspace)
        return outcome

    async def settle(self, call: ToolCall, outcome: ToolOutcome) -> ToolOutcome:
        """Return the outcome of a call that was followed as the run stores it, and record it unless it goes on."""
        workspace = self._project.workspace(_run_id())
        async with self._budget.call():
            outcome = self._with_time(await self._finish_outcome(outcome, call, workspace))
        if outcome.unfinished is None:
            self._record_outcome(call, outcome, workspace)
        return outcome

    def context_of(self, call: ToolCall) -> CallContext:
        """Return the context that the tool of the current activity's call gets."""
        return _call_context(call, self._project.workspace(_run_id()), self._project.stores.of(_run_id()))

    def tool_of(self, call: ToolCall) -> Tool | None:
        return self._tools.get(call.tool)

    async def settle_failure(self, call: ToolCall, failure: ApplicationError) -> ToolOutcome:
        """Return and record the outcome of a read that is not tried again."""
        workspace, note = self._project.workspace(_run_id()), "" if failure.non_retryable else RETRIES_USED_UP
        kind, message = failure.type or ToolFault.tool_error, f"{failure.message}{note}"
        error = error_outcome(kind, message, retryable=not failure.non_retryable)
        outcome = self._with_time(await self._finish_outcome(error, call, workspace))
        self._record_outcome(call, outcome, workspace)
        return outcome

    def _with_time(self, outcome: ToolOutcome) -> ToolOutcome:
        return outcome if self._project.policy is None else outcome.evolve(at=datetime.now(UTC))

    async def _run_call(
        self, call: ToolCall, workspace: Workspace, attempt: int, limit: timedelta | None
    ) -> ToolOutcome:
        tool: object = self._tools.get(call.tool)
        guard, timeout = tool if isinstance(tool, PreflightTool) else None, limit or _tool_timeout()
        try:
            if guard is not None:
                rejection, timeout = await self._run_preflight(guard, call, timeout)
                if rejection is not None:
                    return await self._finish_outcome(rejection, call, workspace)
            if call.effect is Effect.once:
                return await run_to_completion(self._run_once(call, workspace, timeout), self._drain)
            calling = self._make_call(call, await self._load_arguments(call), workspace)
            if call.effect is Effect.read:
                is_unbounded = guard is None and limit is None  # Temporal bounds it
                outcome = await (calling if is_unbounded else with_timeout(timeout, calling))
                return await self._finish_outcome(outcome, call, workspace)
            return await run_to_completion(self._finish_within(timeout, calling, call, workspace), self._drain)
        except TransientToolError as failure:
            if call.effect is Effect.once:  # raised by the preflight: no effect has begun
                unmade = error_outcome(failure.kind, f"{failure.message}; the call was not made", retryable=True)
                return await self._finish_outcome(unmade, call, workspace)
            requested = failure.retry_after
            if attempt <= RETRY_DELAYS.retries:
                delay = RETRY_DELAYS.seconds(attempt) if requested is None else requested
                _report_retry(call, workspace, attempt + 1, failure.message, delay)
            raise ApplicationError(
                cut_error(failure.message),
                type=failure.kind,
                next_retry_delay=None if requested is None else timedelta(seconds=requested),
            ) from None

    async def _run_preflight(
        self, guard: PreflightTool, call: ToolCall, timeout: timedelta
    ) -> tuple[ToolOutcome | None, timedelta]:
        """Return the reason not to make the call, if any, and the remaining time.

        A `once` call that the ledger has claimed needs no preflight: it is looked up, however its tool is defined now.
        Raises TransientToolError, and ApplicationError of type Stop.not_begun.
        """
        started = monotonic()
        if call.effect is Effect.once:
            entry = self._ledger_entry(call, await self._load_arguments_of_once(call))
            try:
                if await asyncio.to_thread(entry.is_claimed):
                    return None, timeout
            except LedgerUnavailableError as unavailable:
                raise _not_begun_error(str(unavailable)) from None
        rejection = await guard.check_preflight(call.effect, call.accepts, timeout * PREFLIGHT_SHARE)
        return rejection, timeout - timedelta(seconds=monotonic() - started)

    async def _make_call(self, call: ToolCall, arguments: dict[str, Any], workspace: Workspace) -> ToolOutcome:
        """Call the tool, or return an error outcome if it cannot be called. Raises TransientToolError."""
        if call.approval not in (None, call_digest(call.tool, arguments)):
            return error_outcome(ToolFault.denied, "not made: a person approved this tool with other arguments")
        tool = self._tools.get(call.tool)
        if tool is None:
            return error_outcome(ToolFault.unknown_tool, f"this worker's project has no tool {call.tool!r}")
        try:
            error = await check_in_loop(partial(self._validators[call.tool].find_error, arguments), arguments)
        except SchemaNotApplicableError as reason:
            return error_outcome(
                ToolFault.tool_error, f"not made: the schema of {call.tool} cannot be applied: {reason}"
            )
        if error is not None:
            return error_outcome(ToolFault.invalid_arguments, f"{error}{_format_schema(call, tool)}")
        return await tool.run(arguments, _call_context(call, workspace, self._project.stores.of(_run_id())))

    async def _load_arguments_of_once(self, call: ToolCall) -> dict[str, Any]:
        try:
            return await self._load_arguments(call)
        except (RPCError, OSError, TranscriptMismatchError) as error:
            raise _not_begun_error(f"the arguments cannot be had: {error}") from None

    async def _run_once(self, call: ToolCall, workspace: Workspace, timeout: timedelta) -> ToolOutcome:
        """Make a `once` call, or return the recorded outcome of a call that was claimed before."""
        arguments = await self._load_arguments_of_once(call)
        entry = self._ledger_entry(call, arguments)
        try:
            if entry.generation > 1:
                # A person chose "run again", but the earlier call may still be running.
                before = replace(entry, generation=entry.generation - 1, key=_idempotency_key(call, call.attempt - 1))
                await self._effects.must_be_over(before)
            outcome = await self._effects.run_once(
                entry,
                call.tool,
                timeout,
                lambda: self._make_call(call, arguments, workspace),
                lambda outcome: self._finish_outcome(outcome, call, workspace),
            )
        except LedgerUnavailableError as unavailable:
            raise _not_begun_error(str(unavailable)) from None
        if isinstance(outcome, InDoubt):
            raise ApplicationError(f"{call.tool} may have happened", type=Stop.in_doubt, non_retryable=True)
        return outcome

    def _ledger_entry(self, call: ToolCall, arguments: dict[str, Any]) -> LedgerEntry:
        return LedgerEntry(
            store=self._project.stores.of(call.owner or _run_id()),
            key=_idempotency_key(call),
            step=call.step,
            generation=call.attempt,
            execution=call.execution or "",
            call=call_digest(call.tool, arguments),
            rounds=call.unfinished.rounds if call.unfinished else 0,
        )

    async def _finish_within(
        self, timeout: timedelta, calling: Coroutine[Any, Any, ToolOutcome], call: ToolCall, workspace: Workspace
    ) -> ToolOutcome:
        return await self._finish_outcome(await with_timeout(timeout, calling), call, workspace)

    async def _finish_outcome(self, outcome: ToolOutcome, call: ToolCall, workspace: Workspace) -> ToolOutcome:
        """Return the outcome as it is recorded and shown. Large outcomes are processed in a thread, a few at a time."""
        if is_small(outcome.result, IN_LOOP_BYTES) and (outcome.error is None or is_small(outcome.error.message)):
            return self._prepare_outcome(outcome, call, workspace)
        if not is_small(outcome.result):
            with suppress(TimeoutError):  # waiting longer would only lose the result
                async with asyncio.timeout(MAX_SHARE_WAIT):
                    await take_share()
        return await asyncio.to_thread(self._prepare_outcome, outcome, call, workspace)

    def _prepare_outcome(self, outcome: ToolOutcome, call: ToolCall, workspace: Workspace) -> ToolOutcome:
        """Bound the outcome, make sure that the run can read it back, redact it, and store a large result."""
        bounded = bound_result(outcome)
        clean = redact_model(reject_unreadable(bounded), self._project.secrets)
        if bounded is not outcome and clean.error is None:
            return fit_result(drop_cut_end(clean), call, workspace, is_cut=True)
        return fit_result(clean, call, workspace) if is_large(clean) else clean

    async def _load_arguments(self, call: ToolCall) -> dict[str, Any]:
        """Return the arguments. Large ones are read from the conversation, as the model wrote them."""
        if call.arguments is not None:
            return call.arguments
        try:
            conversation = await self._transcripts.read_current(call.length, call.head)
        except StoredFileChangedError as error:
            raise _not_begun_error(str(error)) from None
        blocks = (block for part in reversed(conversation.transcript.parts) for block in part.content)
        arguments: dict[str, Any] = next(
            unwrap_use(block)["input"] for block in blocks if block.get("id") == call.tool_use_id
        )
        return arguments

    def _record_outcome(self, call: ToolCall, outcome: ToolOutcome, workspace: Workspace) -> None:
        tool = self._tools.get(call.tool)
        if tool is None or tool.route.kind is not ToolKind.signal:
            part = result_part(call.tool_use_id, call.tool, call.step, outcome, call.changed_by, call.arguments)
            self._transcripts.feed_result(activity.info().workflow_id or "", call.tool_use_id, part)
        own = call.key_id if call.owner is None and call.key_id else _run_id()
        key = result_key(own, call.step, call.attempt)
        write_trace(workspace, call_trace(key, call.step, call.tool, call.arguments or {}, outcome))


def _not_begun_error(reason: str) -> ApplicationError:
    return ApplicationError(cut_error(reason), type=Stop.not_begun, non_retryable=True)


def _run_id() -> str:
    return run_id_of_workflow(activity.info().workflow_id or "")


def _idempotency_key(call: ToolCall, generation: int | None = None) -> str:
    """Return the idempotency key: the same on every attempt, and in a run that resumes the one that made the call."""
    return request_key(call.key_id or call.owner or _run_id(), call.step, generation or call.attempt)


def _tool_timeout() -> timedelta:
    """Return the tool's timeout when the run began, which is the activity's without its margin."""
    limit = activity.info().start_to_close_timeout or timedelta()
    return limit - CALL_MARGIN if limit > CALL_MARGIN else limit  # Temporal shortens it near the end of the run's time


def _call_context(call: ToolCall, workspace: Workspace, store: Store) -> CallContext:
    return CallContext(
        run_id=_run_id(),
        step=call.step,
        idempotency_key=_idempotency_key(call),
        requested_at=activity.info().scheduled_time,
        workspace=workspace,
        store=store,
        accepts=call.accepts,
        nonce=call.nonce,
        definition=call.definition,
        unfinished=call.unfinished,
    )


def _format_schema(call: ToolCall, tool: Tool) -> str:
    """Return the schema for an error, if the model may not have it."""
    if call.definition is None:
        return ""
    return f"\nthe schema of {call.tool}: {json.dumps(tool.schema.input_schema, ensure_ascii=False)}"


def _report_retry(call: ToolCall, workspace: Workspace, attempt: int, reason: str, delay: float | None) -> None:
    """Write the retry event (B1), with the delay in seconds before the retry."""
    fields = {"step": call.step, "tool": call.tool, "tool_use_id": call.tool_use_id, "attempt": attempt}
    key = f"retry:{call.tool_use_id}:{attempt}"
    report_event(workspace, "agent.tool.retry", key, run_id=_run_id(), **fields, delay_seconds=delay, why=reason[:500])

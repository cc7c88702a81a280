"""Operations on a run: start, resume, fork, query, answer, cancel, deliver a result or an event, wait for its end.

Errors of Temporal's client become those of `errors`.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from temporalio.client import (
    Client,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities.followup import topic
from activities.run.outcome import RunEnd, read_run_end
from activities.telemetry.attributes import of_start
from activities.temporal import QueryCache, await_update
from contracts.followup import FollowUpState
from contracts.models import escape_unprintable
from contracts.run.events import ResumeEvent, ResumePayload, StartEvent, ToolResultEvent
from contracts.run.signals import CancelRequest, HumanInput
from contracts.run.state import RunStatus, RunView
from contracts.topic import Event
from decisions import ids
from decisions.followup.state import open_prompts
from decisions.run.resume import resume_rejection
from decisions.run.tool_results import ResultVerdict
from decisions.run.transcript import goal_part, start_rejection
from decisions.text.formatting import escape_markdown, truncate
from perdure.answer_keys import NO_KEYS, AnswerKeys, MissingKeyError
from perdure.client.door import stamp_sender
from perdure.client.errors import (
    AnswerRejectedError,
    RejectedError,
    ResultRejectedError,
    StartTooLargeError,
    TemporalUnavailableError,
    convert_rpc_error,
    convert_rpc_errors,
    to_unavailable_error,
)
from perdure.client.run_list import RunInfo, find_run, find_workflow, read_start

V = TypeVar("V")
STATE_QUERY_TIMEOUT = timedelta(seconds=3)  # a run without a worker answers no query
UPDATE_TIMEOUT = 20.0  # seconds
START_DIGEST = "StartDigest"  # the memo with the digest of the run's start
_SILENT = (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED, RPCStatusCode.FAILED_PRECONDITION)
MAX_RUN_ID_BYTES = 900  # the server takes 1,000 for the whole workflow id


def new_run_id() -> str:
    """Return a random run id that sorts by day and is short enough to type."""
    return f"{datetime.now(UTC):%y%m%d}-{secrets.token_hex(4)}"


def run_id_for_start(event: StartEvent) -> str:
    """Return the run id of a start: one per dedupe key (A10), or a new one."""
    return ids.run_id_for(event.dedupe_key) if event.dedupe_key else new_run_id()


async def start_or_get_run(
    client: Client, task_queue: str, event: StartEvent, run_id: str | None = None
) -> WorkflowHandle[Any, Any]:
    """Start a run, or return the one that this id or dedupe key started before.

    Only the handle of a new run has a `first_execution_run_id`. Raises RejectedError, TemporalUnavailableError.
    """
    check_start(event)
    return await _start_workflow(
        client, task_queue, event, run_id_for_start(event) if run_id is None else run_id, event.payload.goal
    )


def digest_of_start(event: StartEvent) -> str:
    """Return the digest of a start's content, which distinguishes starts under one key."""
    return ids.json_digest(event.payload.model_dump(mode="json", exclude_defaults=True))


async def read_start_digest(handle: WorkflowHandle[Any, Any]) -> str | None:
    """Return the digest recorded at the run's start, if Perdure started it. Raises RunNotFoundError."""
    with convert_rpc_errors(f"run {ids.run_id_of_workflow(handle.id)}"):
        digest = await (await handle.describe()).memo_value(START_DIGEST, None)
    return digest if isinstance(digest, str) else None


def check_start(event: StartEvent) -> None:
    """Raises StartTooLargeError if the server would reject the start for its size, RejectedError for a bad schema."""
    if event.payload.output_schema is not None:
        from activities.tools.json_schema import find_schema_error  # takes long to import

        if reason := find_schema_error(event.payload.output_schema):
            raise RejectedError(f"payload.output_schema: not a JSON Schema: {reason}")
    if reason := start_rejection([goal_part(event.payload.goal, event.payload.context)]):
        raise StartTooLargeError(reason)


async def resume_run(client: Client, task_queue: str, run_id: str) -> WorkflowHandle[Any, Any]:
    """Resume a failed or timed-out run as a new run, always the same one. Raises RunNotFoundError, RejectedError."""
    origin = await find_run(client, run_id)
    if reason := resume_rejection(origin.run_id, RunStatus(origin.status)):
        raise RejectedError(reason)
    event = ResumeEvent(type="agentic.resume", payload=ResumePayload(run_id=origin.run_id))
    successor = ids.resumed_id(origin.run_id)
    handle = await _start_workflow(client, task_queue, event, successor, f"go on with {origin.run_id}")
    if handle.first_execution_run_id is None and not await _is_resume_of(client, successor, origin.run_id):
        raise RejectedError(
            f"run {successor} exists and does not continue {origin.run_id}; to continue it use perdure fork"
        )
    return handle


async def _is_resume_of(client: Client, run_id: str, origin: str) -> bool:
    start, _ = await read_start(client, await find_run(client, run_id))
    return isinstance(start, dict) and start.get("payload", {}).get("run_id") == origin


async def fork_run(
    client: Client, task_queue: str, run_id: str, step: int, say: str | None
) -> WorkflowHandle[Any, Any]:
    """Start a new run that continues from another run's state after `step`. Raises RunNotFoundError, RejectedError."""
    origin = await find_run(client, run_id)
    last = await _find_last_step(client, origin)
    if last is not None and step > last:
        raise RejectedError(f"there is no step {step} in run {origin.run_id} to fork after; the steps are 0 to {last}")
    event = ResumeEvent(type="agentic.resume", payload=ResumePayload(run_id=origin.run_id, step=step, say=say))
    summary = f"fork of {origin.run_id} after step {step}{f': {say}' if say else ''}"
    return await _start_workflow(client, task_queue, event, new_run_id(), summary)


async def _find_last_step(client: Client, run: RunInfo) -> int | None:
    """Return the run's last step, if the server or a worker knows it."""
    if run.is_final:
        return run.steps
    view = await query_run_state(client, run.run_id)
    return view.step if view else None


async def _start_workflow(
    client: Client, task_queue: str, event: StartEvent | ResumeEvent, run_id: str, summary: str
) -> WorkflowHandle[Any, Any]:
    if reason := run_id_error(run_id):
        raise RejectedError(reason)
    workflow_id = ids.run_workflow_id(run_id)
    start = partial(
        client.start_workflow,
        "AgentRun",
        stamp_sender(event).model_dump(mode="json", exclude_defaults=True),
        id=workflow_id,
        task_queue=task_queue,
        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        static_summary=escape_markdown(truncate(summary, 200)),
        result_type=dict[str, Any],
        memo={START_DIGEST: digest_of_start(event)} if isinstance(event, StartEvent) else None,
    )
    attributes = of_start(event.payload) if isinstance(event, StartEvent) else TypedSearchAttributes.empty
    try:
        return await start_with_attributes(lambda known: start(search_attributes=known), attributes)
    except WorkflowAlreadyStartedError:
        return client.get_workflow_handle(workflow_id, result_type=dict[str, Any])
    except RPCError as error:
        if unreachable := to_unavailable_error(error):
            raise TemporalUnavailableError(
                f"{unreachable}; it may have started run {truncate(run_id, 200)} all the same"
            ) from None
        raise RejectedError(f"the server rejected the start: {truncate(error.message, 300)}") from None


async def start_with_attributes(
    start: Callable[[TypedSearchAttributes], Awaitable[V]], attributes: TypedSearchAttributes
) -> V:
    """Start with search attributes, or without in a namespace that does not have them."""
    try:
        return await start(attributes)
    except RPCError as error:
        if error.status is not RPCStatusCode.INVALID_ARGUMENT or "search attribute" not in error.message.lower():
            raise
    return await start(TypedSearchAttributes.empty)


def run_id_error(run_id: str) -> str | None:
    """Return the reason why a run cannot have this id, if there is one."""
    if not has_length_of_id(run_id):
        return f"a run id has 1 to {MAX_RUN_ID_BYTES} bytes"
    if escape_unprintable(run_id) != run_id:
        return f"a run id has printable characters only, unlike {truncate(escape_unprintable(run_id), 80)}"
    if ids.addressed_workflow_id(run_id) != ids.run_workflow_id(run_id):
        return f"a run id does not begin with {ids.RUN_PREFIX} or {ids.FOLLOW_UP_PREFIX}"
    return None


def has_length_of_id(name: str) -> bool:
    return bool(name.strip()) and len(name.encode("utf-8", "surrogatepass")) <= MAX_RUN_ID_BYTES


async def query_run_state(
    client: Client, run_id: str, patience: timedelta = STATE_QUERY_TIMEOUT, cache: QueryCache | None = None
) -> RunView | None:
    """Return the run's state. Raises RunNotFoundError.

    None if no worker answers, or if the run was rejected at its start and has no state.
    """
    handle = client.get_workflow_handle(ids.addressed_workflow_id(run_id))
    return await query_view(handle, "state", RunView, f"run {run_id}", patience, cache)


async def follow_up_state(
    client: Client, follow_up_id: str, patience: timedelta = STATE_QUERY_TIMEOUT, cache: QueryCache | None = None
) -> FollowUpState | None:
    """Return the state of the follow-up `wf:<workflowId>`, if a worker answers. Raises RunNotFoundError."""
    handle = client.get_workflow_handle(ids.addressed_workflow_id(follow_up_id))
    return await query_view(handle, "state", FollowUpState, f"run {follow_up_id}", patience, cache)


async def query_view(  # noqa: PLR0913 - what to ask, and how
    handle: WorkflowHandle[Any, Any],
    query: str,
    kind: type[V],
    subject: str,
    patience: timedelta = STATE_QUERY_TIMEOUT,
    cache: QueryCache | None = None,
) -> V | None:
    """Return the answer of a query, if a worker answers. Raises RunNotFoundError."""

    async def ask() -> V:
        answer: V = await handle.query(query, result_type=kind, rpc_timeout=patience)
        return answer

    try:
        view = await (ask() if cache is None else cache.read(handle, query, ask))
    except (WorkflowQueryFailedError, WorkflowQueryRejectedError):
        return None
    except RPCError as error:
        if error.status in _SILENT:
            return None
        raise convert_rpc_error(error, subject) from None
    return view


async def submit_answer(client: Client, run_id: str, body: HumanInput, keys: AnswerKeys = NO_KEYS) -> None:
    """Answer the run's question, signed with one of `keys` if the run requires that.

    An answer that names no question is for the one that is open now, and for no later one. Raises AnswerRejectedError
    with the run's reason, RunNotFoundError, TemporalUnavailableError without a worker.
    """
    signed = await sign_answer(client, run_id, stamp_sender(body), keys)
    try:
        await _execute_update(client, run_id, "answer", signed.model_dump(mode="json", exclude_none=True))
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        raise AnswerRejectedError(cause.message if isinstance(cause, ApplicationError) else str(cause)) from None


async def _execute_update(client: Client, run_id: str, name: str, body: Mapping[str, Any]) -> None:
    """Raises WorkflowUpdateFailedError, RejectedError if the run has ended, RunNotFoundError,
    TemporalUnavailableError.
    """
    handle = client.get_workflow_handle(ids.addressed_workflow_id(run_id))
    what = {"answer": "answer", "deliver_result": "result"}[name]
    try:
        await await_update(handle.execute_update(name, body, id=secrets.token_hex(8)), UPDATE_TIMEOUT)
    except TimeoutError:
        reason = f"no worker took the {what} within {UPDATE_TIMEOUT:g} s: is one running? (perdure worker)"
        raise TemporalUnavailableError(reason) from None
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise convert_rpc_error(error, f"run {run_id}") from None
        # The server also reports an update as not found if its run ends.
        if (await find_workflow(client, run_id)).is_open:
            raise TemporalUnavailableError(f"the {what} did not reach run {run_id}: send it again") from None
        raise RejectedError(f"run {run_id} has ended") from None


async def sign_answer(client: Client, run_id: str, body: HumanInput, keys: AnswerKeys) -> HumanInput:
    """Return the answer for the run's open question, signed if the run requires signatures.

    Without keys the answer stays unsigned, and the run decides. Raises RunNotFoundError, RejectedError,
    TemporalUnavailableError.
    """
    if not keys.public and body.question_id is not None:
        return body
    is_run = not run_id.startswith(ids.FOLLOW_UP_PREFIX)
    view = await (query_run_state if is_run else follow_up_state)(client, run_id)
    if view is None and keys.public:
        name = f"run {run_id}" if is_run else run_id
        raise TemporalUnavailableError(f"no worker answers for {name} now, so it cannot be answered: perdure worker")
    if view is None or (question := _open_question(view, body)) is None:
        return body
    named = body.model_copy(update=question)
    try:
        signer = view.run_id if isinstance(view, RunView) else run_id
        return keys.sign_for(signer, view.execution, view.answer_keys, named) if keys.public else named
    except MissingKeyError as missing:
        raise RejectedError(str(missing)) from None


def _open_question(view: RunView | FollowUpState, body: HumanInput) -> dict[str, str | None] | None:
    """Return the fields that name the open question of an answer, if it is for exactly one."""
    if isinstance(view, RunView):
        asked = [q for q in view.questions if body.question_id in (None, q.id) and body.call in (None, q.call)]
        return {"question_id": asked[0].id, "call": asked[0].call} if len(asked) == 1 else None
    tasks = open_prompts(view)
    if not tasks or (body.question_id is None and len(tasks) > 1):
        return None  # the follow-up rejects it
    return {"question_id": body.question_id or tasks[0].task_id}


async def request_cancel(client: Client, run_id: str, body: CancelRequest) -> None:
    """Ask the run to stop. Raises RunNotFoundError, and RejectedError if it has ended."""
    handle = client.get_workflow_handle(ids.addressed_workflow_id(run_id))
    with convert_rpc_errors(f"run {run_id}"):
        await handle.signal("cancel", stamp_sender(body).model_dump(mode="json", exclude_none=True))


async def deliver_result(client: Client, run_id: str, event: ToolResultEvent) -> bool:
    """Deliver the result of an external tool, with its request's nonce. Return False if the run has it already.

    Unlike the signal `tool_result`, a rejected result cannot end the run. Raises ResultRejectedError with the run's
    reason, RejectedError if the run has ended, RunNotFoundError, and TemporalUnavailableError without a worker.
    """
    body = stamp_sender(event).model_dump(mode="json", exclude_unset=True) | {"type": event.type}
    try:
        await _execute_update(client, run_id, "deliver_result", body)
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        if not isinstance(cause, ApplicationError):
            raise RejectedError(str(cause)) from None
        if cause.type == ResultVerdict.repeated:
            return False
        raise ResultRejectedError(cause.message, is_conflict=cause.type == ResultVerdict.conflict) from None
    return True


async def publish_external_event(client: Client, task_queue: str, event: Event) -> str:
    """Publish an event to its topic and return the topic's workflow id. Raises NotAwaitedError, RPCError."""
    return await topic.signal_event(client, task_queue, stamp_sender(event))


async def wait_for_run_end(client: Client, run_id: str) -> RunEnd:
    """Wait for the run's end, across continue-as-new. Raises RunNotFoundError, TemporalUnavailableError."""
    with convert_rpc_errors(f"run {run_id}"):
        return await read_run_end(client.get_workflow_handle(ids.addressed_workflow_id(run_id)))

"""Operations on a run: start, resume, fork, query, answer, cancel, deliver a result, wait for its end.

Errors of Temporal's client become those of `errors`.
"""

import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio.client import (
    Client,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import Priority, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.run.outcome import RunEnd, look_up_plan, read_run_end
from perdure.activities.telemetry.attributes import of_start
from perdure.activities.temporal import QueryCache, await_update, fair_priority, owner_of
from perdure.answer_keys import NO_KEYS, AnswerKeys, MissingKeyError
from perdure.client.door import check_start, stamp_sender, stamp_work
from perdure.client.errors import (
    AnswerRejectedError,
    BadStartError,
    RejectedError,
    ResultRejectedError,
    RunNotFoundError,
    TemporalUnavailableError,
    convert_rpc_error,
    convert_rpc_errors,
    to_unavailable_error,
)
from perdure.client.run_list import RunInfo, find_run, find_workflow, read_start
from perdure.contracts.models import escape_unprintable
from perdure.contracts.run.events import Plan, ResumeEvent, ResumePayload, StartEvent, StartPayload, ToolResultEvent
from perdure.contracts.run.signals import CancelRequest, HumanInput
from perdure.contracts.run.state import QuestionView, RunStatus, RunView
from perdure.decisions import ids
from perdure.decisions.people.plan import adopt_plan
from perdure.decisions.run.resume import resume_rejection
from perdure.decisions.text.formatting import escape_markdown, truncate
from perdure.decisions.tool_results import ResultVerdict
from perdure.registry import find_addressed, load
from perdure.settings import Settings

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
    client: Client, task_queue: str, event: StartEvent, run_id: str | None = None, *, project: Settings | None = None
) -> WorkflowHandle[Any, Any]:
    """Start a run, or return the one that this id or dedupe key started before.

    `project` is that of the queue's workers, None if it is not known. Only the handle of a new run has a
    `first_execution_run_id`. Raises RejectedError, TemporalUnavailableError.
    """
    await check_start(event.payload, project)
    if event.payload.plan is not None:
        await _check_plan(client, event.payload.plan)
    event = await stamp_work(client, event)
    return await _start_workflow(
        client, task_queue, event, run_id_for_start(event) if run_id is None else run_id, event.payload.goal
    )


async def _check_plan(client: Client, plan: Plan) -> None:
    """Raise BadStartError if the run would reject the plan as it begins."""
    try:
        with convert_rpc_errors(f"run {plan.run_id}"):
            await look_up_plan(client, adopt_plan(plan, None))
    except ApplicationError as error:
        raise BadStartError(error.message, "payload.plan") from None


def digest_of_start(event: StartEvent) -> str:
    """Return the digest of a start's content, which distinguishes starts under one key."""
    return ids.json_digest(event.payload.model_dump(mode="json", exclude_defaults=True))


async def read_start_digest(client: Client, run_id: str) -> str | None:
    """Return the digest recorded at the run's start, if Perdure started it. Raises RunNotFoundError."""
    handle = client.get_workflow_handle(ids.run_workflow_id(run_id))
    with convert_rpc_errors(f"run {run_id}"):
        digest = await (await handle.describe()).memo_value(START_DIGEST, None)
    return digest if isinstance(digest, str) else None


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


async def find_resumed(client: Client, run_id: str) -> str | None:
    """Return the run that resumes this one, if there is one."""
    successor = ids.resumed_id(run_id)
    with suppress(RunNotFoundError):
        return successor if await _is_resume_of(client, successor, run_id) else None
    return None


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


async def plan_from_dry_run(client: Client, run_id: str, left_out: Collection[int] = ()) -> StartPayload:
    """Return the payload of a dry run as that of a real one, whose planned calls need no approval.

    The steps that are `left_out` are not part of the plan. Raises RejectedError, RunNotFoundError.
    """
    run = await find_run(client, run_id)
    start, _ = await read_start(client, run)
    if not isinstance(start, dict) or not start.get("payload", {}).get("dry_run"):
        raise RejectedError(f"{run_id} is not a dry run; start one with: perdure run --dry-run GOAL")
    if run.is_open:
        raise RejectedError(f"{run_id} has not ended; to follow it: perdure watch {run_id}")
    event = (await wait_for_run_end(client, run.run_id)).event
    if event is None:
        raise RejectedError(f"{run_id} has no list of calls, as it did not complete; see perdure show {run_id}")
    calls = event["payload"].get("dry_calls", [])
    steps = [call["step"] for call in calls]
    if unknown := set(left_out).difference(steps):
        has = f"it has: {', '.join(map(str, steps))}" if steps else "it has none"
        raise RejectedError(f"without: the plan has no step {min(unknown)}; {has}")
    planned = [
        {name: call[name] for name in ("step", "tool", "call")} for call in calls if call["step"] not in left_out
    ]
    payload = {**start["payload"], "dry_run": False, "plan": {"run_id": run.run_id, "calls": planned}}
    return StartPayload.model_validate(payload)


async def _find_last_step(client: Client, run: RunInfo) -> int | None:
    """Return the run's last step, if the server or a worker knows it."""
    if run.is_final:
        return run.steps
    view = await query_run_state(client, run.run_id)
    return view.step if view else None


def _priority_of(event: StartEvent | ResumeEvent) -> Priority:
    if isinstance(event, StartEvent):
        return fair_priority(owner_of(event.sender, event.work), event.payload.priority)
    return fair_priority(owner_of(event.sender, None))


async def _start_workflow(
    client: Client, task_queue: str, event: StartEvent | ResumeEvent, run_id: str, summary: str
) -> WorkflowHandle[Any, Any]:
    if reason := run_id_error(run_id):
        raise RejectedError(reason)
    workflow_id, stamped = ids.run_workflow_id(run_id), stamp_sender(event)
    start = partial(
        client.start_workflow,
        "AgentRun",
        stamped.model_dump(mode="json", exclude_defaults=True),
        id=workflow_id,
        task_queue=task_queue,
        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        static_summary=escape_markdown(truncate(summary, 200)),
        result_type=dict[str, Any],
        memo={START_DIGEST: digest_of_start(event)} if isinstance(event, StartEvent) else None,
        priority=_priority_of(stamped),
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
        raise RejectedError(f"the server rejected the start: {truncate(error.message)}") from None


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
        return f"a run id does not begin with {ids.RUN_PREFIX}, {' or '.join(ids.ADDRESSED_PREFIXES)}"
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


@dataclass(frozen=True)
class AddressedView:
    """A workflow that is no run, as clients need it: its state, its goal, and its open questions, oldest first.

    `execution` and `answer_keys` are for signed answers, as in `RunView`.
    """

    state: BaseModel
    goal: str
    questions: tuple[QuestionView, ...]
    execution: str
    answer_keys: Mapping[str, str]
    runs: int | None = None
    """The number of runs that wait for the answer, if it is none of a run's own."""


async def query_addressed(
    client: Client, named: str, patience: timedelta = STATE_QUERY_TIMEOUT, cache: QueryCache | None = None
) -> RunView | AddressedView | None:
    """Return the view of a run, or of another workflow that a person addresses, if a worker answers.

    Raises RunNotFoundError.
    """
    if (addressed := find_addressed(named)) is None:
        return await query_run_state(client, named, patience, cache)
    view: AddressedView | None = await load(addressed.query)(client, named, patience, cache)
    return view


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
    view = await query_addressed(client, run_id)
    if view is None and keys.public:
        name = f"run {run_id}" if find_addressed(run_id) is None else run_id
        raise TemporalUnavailableError(f"no worker answers for {name} now, so it cannot be answered: perdure worker")
    if view is None or (named := _name_question(view, body)) is None:
        return body
    try:
        signer = view.run_id if isinstance(view, RunView) else run_id
        return keys.sign_for(signer, view.execution, view.answer_keys, named) if keys.public else named
    except MissingKeyError as missing:
        raise RejectedError(str(missing)) from None


def _name_question(view: RunView | AddressedView, body: HumanInput) -> HumanInput | None:
    """Return the answer with the name of its open question, if it is for exactly one."""
    if isinstance(view, RunView):
        asked = [q for q in view.questions if body.question_id in (None, q.id) and body.call in (None, q.call)]
        if len(asked) != 1:
            return None
        # The person may have seen the call before it was changed, so they must name it themselves.
        return body.evolve(question_id=asked[0].id, call=body.call if asked[0].revision else asked[0].call)
    if not view.questions or (body.question_id is None and len(view.questions) > 1):
        return None  # the workflow rejects it
    return body.evolve(question_id=body.question_id or view.questions[0].id)


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


async def wait_for_run_end(client: Client, run_id: str) -> RunEnd:
    """Wait for the run's end, across continue-as-new. Raises RunNotFoundError, TemporalUnavailableError."""
    with convert_rpc_errors(f"run {run_id}"):
        return await read_run_end(client.get_workflow_handle(ids.addressed_workflow_id(run_id)))

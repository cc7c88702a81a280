"""What is done with a run from outside: start it once, resume or fork it, ask it, speak to it, wait for its end.

Failures of Temporal's client become one of three (`refusals`), each with a message of one line.
"""

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from temporalio.client import (
    Client,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities.run.outcome import RunEnd, end_of
from activities.update_with_start import answered
from contracts.followup import FollowUpState
from contracts.models import printable
from contracts.run.events import ResumeEvent, ResumePayload, StartEvent, ToolResultEvent
from contracts.run.signals import CancelRequest, HumanInput
from contracts.run.state import RunStatus, RunView
from decisions import ids
from decisions.followup.state import questions
from decisions.run.resume import refusal
from decisions.run.tool_results import Verdict
from decisions.run.transcript import goal_part, too_large
from decisions.text.formatting import cut, markdown
from perdure.answer_keys import NO_KEYS, AnswerKeys, MissingKeyError
from perdure.client.door import stamp
from perdure.client.errors import AnswerRefused, NotReachable, Refused, ResultRefused, TooLarge, translated, unanswered
from perdure.client.run_list import Found, find, find_any

V = TypeVar("V")
QUERY_PATIENCE = timedelta(seconds=3)  # a run without a worker answers no query
ANSWERED_WITHIN = 20.0  # seconds
START_DIGEST = "StartDigest"  # the memo that says what a run was started with
MOST_ID_BYTES = 900  # the server takes 1,000 for the whole workflow id


def new_run_id() -> str:
    """Sorts by day, is short enough to type, and is not guessed twice."""
    return f"{datetime.now(UTC):%y%m%d}-{secrets.token_hex(4)}"


def run_id_of(event: StartEvent) -> str:
    """Two starts with one dedupe key are one run (A10); without a key each is a new one."""
    return ids.run_id_for(event.dedupe_key) if event.dedupe_key else new_run_id()


async def start(
    client: Client, task_queue: str, event: StartEvent, run_id: str | None = None
) -> WorkflowHandle[Any, Any]:
    """The run of this event: a new one, or the one that the same id or dedupe key has started before.

    Only the handle of a new one has a `first_execution_run_id`. Raises Refused, NotReachable.
    """
    must_fit(event)
    return await _start(client, task_queue, event, run_id_of(event) if run_id is None else run_id, event.payload.goal)


def digest_of(event: StartEvent) -> str:
    """Return the digest of what this start says, by which another start under its key is told from it."""
    return ids.start_digest(event.payload.model_dump(mode="json", exclude_defaults=True))


async def recorded_digest(handle: WorkflowHandle[Any, Any]) -> str | None:
    """Return the digest that the run was started with; None if no client of ours started it. Raises NoSuchRun."""
    try:
        digest = await (await handle.describe()).memo_value(START_DIGEST, None)
    except RPCError as error:
        raise translated(error, f"run {ids.run_id_of(handle.id)}") from None
    return digest if isinstance(digest, str) else None


def must_fit(event: StartEvent) -> None:
    """Raises TooLarge, before the server has to say so in its own words."""
    if why := too_large([goal_part(event.payload.goal, event.payload.context)]):
        raise TooLarge(why)


async def resume(client: Client, task_queue: str, run_id: str) -> WorkflowHandle[Any, Any]:
    """The run that goes on with a failed or timed-out one; asked twice, the same. Raises NoSuchRun, Refused."""
    origin = await find(client, run_id)
    if why := refusal(origin.run_id, RunStatus(origin.status)):
        raise Refused(why)
    event = ResumeEvent(type="agentic.resume", payload=ResumePayload(run_id=origin.run_id))
    heir = ids.resumed_id(origin.run_id)
    handle = await _start(client, task_queue, event, heir, f"go on with {origin.run_id}")
    if handle.first_execution_run_id is None and not await _goes_on_with(client, heir, origin.run_id):
        raise Refused(
            f"run {heir} is there already, and does not go on with {origin.run_id}: perdure fork goes on with it"
        )
    return handle


async def _goes_on_with(client: Client, run_id: str, origin: str) -> bool:
    first = (await find(client, run_id)).first_execution
    execution = client.get_workflow_handle(ids.run_workflow_id(run_id), run_id=first)
    begun = await anext(execution.fetch_history_events(page_size=1))
    given = await client.data_converter.decode(begun.workflow_execution_started_event_attributes.input.payloads)
    return len(given) == 1 and isinstance(given[0], dict) and given[0].get("payload", {}).get("run_id") == origin


async def fork(client: Client, task_queue: str, run_id: str, step: int, say: str | None) -> WorkflowHandle[Any, Any]:
    """A new run that goes on from what any run was after `step`. Raises NoSuchRun, Refused."""
    origin = await find(client, run_id)
    last = await _last_step(client, origin)
    if last is not None and step > last:
        raise Refused(f"there is no step {step} in run {origin.run_id} to fork after; the steps are 0 to {last}")
    event = ResumeEvent(type="agentic.resume", payload=ResumePayload(run_id=origin.run_id, step=step, say=say))
    told = f"fork of {origin.run_id} after step {step}{f': {say}' if say else ''}"
    return await _start(client, task_queue, event, new_run_id(), told)


async def _last_step(client: Client, found: Found) -> int | None:
    """None where only the run knows, and no worker is there to ask it."""
    if found.has_told:
        return found.steps
    view = await state(client, found.run_id)
    return view.step if view else None


async def _start(
    client: Client, task_queue: str, event: StartEvent | ResumeEvent, run_id: str, summary: str
) -> WorkflowHandle[Any, Any]:
    if why := unfit_id(run_id):
        raise Refused(why)
    workflow_id = ids.run_workflow_id(run_id)
    try:
        return await client.start_workflow(
            "AgentRun",
            stamp(event).model_dump(mode="json", exclude_defaults=True),
            id=workflow_id,
            task_queue=task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            static_summary=markdown(cut(summary, 200)),
            result_type=dict[str, Any],
            memo={START_DIGEST: digest_of(event)} if isinstance(event, StartEvent) else None,
        )
    except WorkflowAlreadyStartedError:
        return client.get_workflow_handle(workflow_id, result_type=dict[str, Any])
    except RPCError as error:
        if away := unanswered(error):
            raise NotReachable(f"{away}; it may have started run {cut(run_id, 200)} all the same") from None
        raise Refused(f"the server does not take the start: {cut(error.message, 300)}") from None


def unfit_id(run_id: str) -> str | None:
    """Why no run can be started under this id: the server could not keep it, or nobody could name the run by it."""
    if not has_length_of_id(run_id):
        return f"a run id has 1 to {MOST_ID_BYTES} bytes"
    if printable(run_id) != run_id:
        return f"a run id has characters that can be printed, unlike {cut(printable(run_id), 80)}"
    if ids.addressed(run_id) != ids.run_workflow_id(run_id):
        return f"a run id does not begin with {ids.RUN} or {ids.FOLLOW_UP}"
    return None


def has_length_of_id(name: str) -> bool:
    return bool(name.strip()) and len(name.encode("utf-8", "surrogatepass")) <= MOST_ID_BYTES


async def state(client: Client, run_id: str, patience: timedelta = QUERY_PATIENCE) -> RunView | None:
    """What the run says of itself. Raises NoSuchRun.

    None where no worker is there to answer, and of a run that was refused at its start: it has no state.
    """
    return await _asked(client, run_id, RunView, patience)


async def _asked(client: Client, run_id: str, answers: type[V], patience: timedelta) -> V | None:
    handle = client.get_workflow_handle(ids.addressed(run_id))
    try:
        view: V = await handle.query("state", result_type=answers, rpc_timeout=patience)
        return view
    except (WorkflowQueryFailedError, WorkflowQueryRejectedError):
        return None
    except RPCError as error:
        if error.status in (
            RPCStatusCode.DEADLINE_EXCEEDED,
            RPCStatusCode.CANCELLED,
            RPCStatusCode.FAILED_PRECONDITION,
        ):
            return None
        raise translated(error, f"run {run_id}") from None


async def follow_up_state(client: Client, named: str, patience: timedelta = QUERY_PATIENCE) -> FollowUpState | None:
    """What the follow-up `wf:<workflowId>` says of itself. Raises NoSuchRun; None where no worker answers."""
    return await _asked(client, named, FollowUpState, patience)


async def answer(client: Client, run_id: str, body: HumanInput, keys: AnswerKeys = NO_KEYS) -> None:
    """Accepted, or Refused with the run's own reason; signed by one of `keys`, where the run wants that.

    An answer that names no question is for the one that is open now, and for no later one. Raises NoSuchRun,
    NotReachable where no worker is there.
    """
    signed = await sign_answer(client, run_id, stamp(body), keys)
    said = signed.model_dump(mode="json", exclude_none=True)
    try:
        await _update(client, run_id, "answer", said)
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        raise AnswerRefused(cause.message if isinstance(cause, ApplicationError) else str(cause)) from None


async def _update(client: Client, run_id: str, name: str, body: Mapping[str, Any]) -> None:
    """Raises WorkflowUpdateFailedError, Refused if the run has ended, NoSuchRun, NotReachable."""
    handle = client.get_workflow_handle(ids.addressed(run_id))
    what = {"answer": "answer", "deliver_result": "result"}[name]
    try:
        await answered(handle.execute_update(name, body, id=secrets.token_hex(8)), ANSWERED_WITHIN)
    except TimeoutError:
        why = f"no worker took the {what} within {ANSWERED_WITHIN:g} s: is one running? (perdure worker)"
        raise NotReachable(why) from None
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise translated(error, f"run {run_id}") from None
        # An update that meets the end of its run is not found either.
        if (await find_any(client, run_id)).is_open:
            raise NotReachable(f"the {what} got lost on its way to run {run_id}: send it again") from None
        raise Refused(f"run {run_id} has ended") from None


async def sign_answer(client: Client, run_id: str, body: HumanInput, keys: AnswerKeys) -> HumanInput:
    """Return the answer as the run takes it: for its open question, and signed where the run takes no other answer.

    Without keys it goes unsigned, and the run judges it. Raises NoSuchRun, Refused, NotReachable.
    """
    if not keys.public and body.question_id is not None:
        return body
    try:
        if run_id.startswith(ids.FOLLOW_UP):
            return await _sign_for_follow_up(client, run_id, body, keys)
        return await _sign_for_run(client, run_id, body, keys)
    except MissingKeyError as missing:
        raise Refused(str(missing)) from None


async def _sign_for_run(client: Client, run_id: str, body: HumanInput, keys: AnswerKeys) -> HumanInput:
    view = await state(client, run_id)
    if view is None and keys.public:
        raise NotReachable(f"no worker answers for run {run_id} now, so it cannot be answered: perdure worker")
    if view is None or view.question is None:
        return body
    about = {"question_id": body.question_id or view.question.id, "call": body.call or view.question.call}
    named = body.model_copy(update=about)
    return keys.signed(view.run_id, view.execution, view.answer_keys, named) if keys.public else named


async def _sign_for_follow_up(client: Client, named: str, body: HumanInput, keys: AnswerKeys) -> HumanInput:
    view = await follow_up_state(client, named)
    if view is None and keys.public:
        raise NotReachable(f"no worker answers for {named} now, so it cannot be answered: perdure worker")
    if view is None:
        return body
    asked = questions(view)
    if not asked or (body.question_id is None and len(asked) > 1):
        return body  # which the follow-up refuses
    body = body.model_copy(update={"question_id": body.question_id or asked[0].task_id})
    return keys.signed(named, view.execution, view.answer_keys, body) if keys.public else body


async def cancel(client: Client, run_id: str, body: CancelRequest) -> None:
    """Asks the run to stop. Raises NoSuchRun, Refused where it has ended."""
    await _signal(client, run_id, "cancel", stamp(body).model_dump(mode="json", exclude_none=True))


async def deliver_result(client: Client, run_id: str, event: ToolResultEvent) -> bool:
    """Bring the result of a tool outside, with the nonce of its request. Return False if the run has taken it before.

    The run judges it and takes it in one step, so it never ends by it, as it may by the signal `tool_result`. Raises
    ResultRefused with the run's reason, Refused if the run has ended, NoSuchRun, and NotReachable without a worker.
    """
    body = stamp(event).model_dump(mode="json", exclude_unset=True) | {"type": event.type}
    try:
        await _update(client, run_id, "deliver_result", body)
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        if not isinstance(cause, ApplicationError):
            raise Refused(str(cause)) from None
        if cause.type == Verdict.repeated:
            return False
        raise ResultRefused(cause.message, is_conflict=cause.type == Verdict.conflict) from None
    return True


async def _signal(client: Client, run_id: str, name: str, body: Mapping[str, Any]) -> None:
    handle = client.get_workflow_handle(ids.addressed(run_id))
    try:
        await handle.signal(name, body)
    except RPCError as error:
        raise translated(error, f"run {run_id}") from None


async def ended(client: Client, run_id: str) -> RunEnd:
    """Waits for the end, across continue-as-new."""
    try:
        return await end_of(client.get_workflow_handle(ids.addressed(run_id)))
    except RPCError as error:
        raise translated(error, f"run {run_id}") from None

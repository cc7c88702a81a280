"""Runs from the outside: connect to Temporal, start a run once, find it, speak to it.

Failures of Temporal's client become one of three: not reachable, no such run, refused. Each message is one line.
"""

import asyncio
import ipaddress
import os
import secrets
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, TypeVar

from temporalio.api.common.v1 import WorkflowExecution as ExecutionId
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import SearchAttributeIndexedValueType, WorkflowIDReusePolicy
from temporalio.converter import StorageDriver
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError, WorkflowAlreadyStartedError
from temporalio.exceptions import TimeoutError as TimedOut
from temporalio.service import RPCError, RPCStatusCode

from activities import attributes
from codec import AesGcmCodec
from contracts.events import ResumeEvent, ResumePayload, StartEvent, ToolResultEvent
from contracts.failures import RunFailure
from contracts.followup import FollowUpState
from contracts.run import RunStatus, RunView
from contracts.signals import CancelRequest, HumanInput
from contracts.value import printable
from converter import data_converter, encrypting, offloading
from decisions import ids
from decisions.narrate import cut, markdown
from decisions.resume import refusal
from decisions.transcript import goal_part, too_large

V = TypeVar("V")

QUERY_PATIENCE = timedelta(seconds=3)  # a run without a worker answers no query
CAUSE = "cause=WorkflowTaskFailedCause"
# Ends of which a run itself has told, with its last step; one that is terminated says nothing more.
_TOLD_ENDS = (WorkflowExecutionStatus.COMPLETED, WorkflowExecutionStatus.FAILED, WorkflowExecutionStatus.CANCELED)
MOST_ID_BYTES = 900  # the server takes 1,000 for the whole workflow id


class NotReachable(Exception):
    """Temporal does not answer, or must not be spoken to as it is configured."""


class NoSuchRun(Exception):
    """There is no run of this id."""


class Refused(Exception):
    """The run, or the server, does not take what was sent."""


class TooLarge(Refused):
    """A run could not begin with as much as this start says."""


def configured_address() -> str | None:
    """The Temporal address from TEMPORAL_* or a profile; None where nothing is configured. Raises NotReachable."""
    try:
        return ClientConfig.load_client_connect_config().get("target_host")
    except (RuntimeError, OSError, ValueError) as error:
        raise NotReachable(f"Temporal's configuration does not load: {cut(str(error), 300)}") from None


async def connect(
    address: str | None = None, codec: AesGcmCodec | None = None, payloads: StorageDriver | None = None
) -> Client:
    """A client for the configured Temporal, or for `address`. Raises NotReachable.

    With a codec it encrypts, with `payloads` it keeps there what is large.
    """
    configured_address()
    config = ClientConfig.load_client_connect_config()
    if address:
        config["target_host"] = address
    target = config.setdefault("target_host", "localhost:7233")
    if not _is_loopback(target) and not config.get("tls") and not config.get("api_key"):
        raise NotReachable(
            f"{target} is not on this machine: set TEMPORAL_TLS or TEMPORAL_API_KEY before speaking to it"
        )
    converter = encrypting(codec) if codec else data_converter
    try:
        return await Client.connect(**config, data_converter=offloading(converter, payloads) if payloads else converter)
    except (RuntimeError, OSError, ValueError, RPCError) as error:
        why = "connection refused" if "ConnectionRefused" in str(error) else cut(str(error), 200)
        raise NotReachable(f"no Temporal server answers at {target}: {why}") from None


def _is_loopback(target: str) -> bool:
    host = target.rsplit(":", 1)[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def register_search_attributes(client: Client) -> None:
    """Makes sure that they exist with the right type: an upsert of an unknown one would leave the run stuck.

    Raises NotReachable where they are missing and this client may not add them.
    """
    wanted = {key.name: _indexed(key.indexed_value_type) for key in attributes.KEYS}
    known = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    wrong = [name for name, kind in wanted.items() if known.custom_attributes.get(name, kind) != kind]
    if wrong:
        raise NotReachable(f"search attribute {wrong[0]} exists with another type in namespace {client.namespace}")
    missing = {name: kind for name, kind in wanted.items() if name not in known.custom_attributes}
    if not missing:
        return
    try:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
        )
    except RPCError as error:
        names = ", ".join(missing)
        message = f"search attributes are missing in namespace {client.namespace} and cannot be added ({error.message})"
        raise NotReachable(f"{message}; add them: {names}") from None


def _indexed(kind: SearchAttributeIndexedValueType) -> IndexedValueType.ValueType:
    return IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.name}")


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
    return await _start(client, task_queue, event, ids.resumed_id(origin.run_id), f"go on with {origin.run_id}")


async def fork(client: Client, task_queue: str, run_id: str, step: int, say: str | None) -> WorkflowHandle[Any, Any]:
    """A new run that goes on from what any run was after `step`. Raises NoSuchRun, Refused."""
    origin = await find(client, run_id)
    last = await _last_step(client, origin)
    if last is not None and step > last:
        raise Refused(f"there is no step {step} in run {origin.run_id} to fork after; the steps are 0 to {last}")
    event = ResumeEvent(type="agentic.resume", payload=ResumePayload(run_id=origin.run_id, step=step, say=say))
    told = f"fork of {origin.run_id} after step {step}{f': {say}' if say else ''}"
    return await _start(client, task_queue, event, new_run_id(), told)


async def _last_step(client: Client, found: "Found") -> int | None:
    """None where only the run knows, and no worker is there to ask it."""
    if found.execution.status in _TOLD_ENDS:
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
            event.model_dump(mode="json", exclude_defaults=True),
            id=workflow_id,
            task_queue=task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            static_summary=markdown(cut(summary, 200)),
            result_type=dict[str, Any],
        )
    except WorkflowAlreadyStartedError:
        return client.get_workflow_handle(workflow_id, result_type=dict[str, Any])
    except RPCError as error:
        if error.status is RPCStatusCode.UNAVAILABLE:
            raise NotReachable(f"Temporal does not answer: {cut(error.message, 200)}") from None
        raise Refused(f"the server does not take the start: {cut(error.message, 300)}") from None


def unfit_id(run_id: str) -> str | None:
    """Why no run can be started under this id: the server could not keep it, or nobody could name the run by it."""
    if not run_id.strip() or len(run_id.encode("utf-8", "surrogatepass")) > MOST_ID_BYTES:
        return f"a run id has 1 to {MOST_ID_BYTES} bytes"
    if printable(run_id) != run_id:
        return f"a run id has characters that can be printed, unlike {cut(printable(run_id), 80)}"
    if ids.addressed(run_id) != ids.run_workflow_id(run_id):
        return f"a run id does not begin with {ids.RUN} or {ids.FOLLOW_UP}"
    return None


@dataclass(frozen=True)
class Found:
    """A run as the server knows it, without asking a worker."""

    run_id: str
    execution: WorkflowExecution

    @property
    def is_open(self) -> bool:
        return self.execution.status is WorkflowExecutionStatus.RUNNING

    @property
    def status(self) -> str:
        """The agent's status; where the run ended without saying so, Temporal's."""
        said = self.execution.typed_search_attributes.get(attributes.AGENT_STATUS)
        if self.is_open:
            return said or RunStatus.queued
        ends = {
            WorkflowExecutionStatus.COMPLETED: said or RunStatus.completed,
            WorkflowExecutionStatus.CANCELED: RunStatus.cancelled,
            WorkflowExecutionStatus.TERMINATED: RunStatus.cancelled,
            WorkflowExecutionStatus.TIMED_OUT: RunStatus.timed_out,
            WorkflowExecutionStatus.FAILED: RunStatus.timed_out if said == RunStatus.timed_out else RunStatus.failed,
        }
        status = self.execution.status
        return ends.get(status, RunStatus.failed) if status else RunStatus.failed

    @property
    def first_execution(self) -> str:
        """The Temporal run id that the run began with, before any continue-as-new."""
        info = getattr(self.execution, "raw_description", None)
        first = info.workflow_execution_info.first_run_id if info is not None else ""
        return first or self.execution.run_id

    @property
    def parent(self) -> str | None:
        """The run that delegated it."""
        return ids.delegating_run_id(self.execution.parent_id or "")

    @property
    def steps(self) -> int:
        """As of its last change of status."""
        return self.execution.typed_search_attributes.get(attributes.AGENT_STEP) or 0

    @property
    def cost_usd(self) -> float | None:
        """With all that it delegated; None where that is nothing, or not known."""
        return self.execution.typed_search_attributes.get(attributes.COST_USD)

    @property
    def waiting_for(self) -> str:
        return (self.execution.typed_search_attributes.get(attributes.WAITING_FOR) or "") if self.is_open else ""

    @property
    def agent(self) -> str:
        return self.execution.typed_search_attributes.get(attributes.AGENT_NAME) or ""

    @property
    def is_wedged(self) -> bool:
        """Open, and its workflow tasks fail: code that does not fit its history, or a bug.

        The server says so after some failures in a row, and takes it back at the first task that succeeds.
        """
        return self.is_open and bool(self._problems)

    @property
    def wedged_by(self) -> str:
        """In the server's words: "NonDeterministicError" is code that does not fit the run's history."""
        causes = [each.removeprefix(CAUSE) for each in self._problems if each.startswith(CAUSE)]
        return ", ".join(causes) or ", ".join(self._problems)

    @property
    def _problems(self) -> Sequence[str]:
        return self.execution.typed_search_attributes.get(attributes.PROBLEMS) or ()


async def find(client: Client, run_id: str) -> Found:
    """Raises NoSuchRun, Refused where a follow-up is named."""
    if run_id.startswith(ids.FOLLOW_UP):
        raise Refused(f"{run_id} is a follow-up, and no run; see it with: perdure show {run_id}")
    return await _found(client, run_id)


async def find_follow_up(client: Client, named: str) -> Found:
    """The follow-up `wf:<workflowId>`. Raises NoSuchRun."""
    return await _found(client, named)


async def _found(client: Client, run_id: str) -> Found:
    handle = client.get_workflow_handle(ids.addressed(run_id))
    try:
        execution = await handle.describe()
    except RPCError as error:
        raise _translated(error, run_id) from None
    return Found(ids.run_id_of(execution.id), execution)


async def grown_at(client: Client, found: Found) -> datetime:
    """When the run's history last grew."""
    if found.execution.close_time is not None:
        return found.execution.close_time
    answer = await client.workflow_service.get_workflow_execution_history_reverse(
        GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace,
            execution=ExecutionId(workflow_id=found.execution.id, run_id=found.execution.run_id),
            maximum_page_size=1,
        )
    )
    return answer.history.events[0].event_time.ToDatetime(UTC)


async def is_kept(client: Client, workflow_id: str, execution: str) -> bool:
    """Earlier executions of a run that continued as new may be past the namespace's retention."""
    try:
        await client.get_workflow_handle(workflow_id, run_id=execution).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return True


async def first_kept(client: Client, found: Found) -> str:
    """The execution with which the run's history begins, as far as it is kept."""
    there = await is_kept(client, found.execution.id, found.first_execution)
    return found.first_execution if there else found.execution.run_id


@dataclass(frozen=True)
class Page:
    """A part of the list, the latest first. `next` is where the list goes on; None at its end."""

    found: tuple[Found, ...]
    next: bytes | None


async def page(client: Client, *, waiting: bool, limit: int, after: bytes | None) -> Page:
    """At most `limit` runs of the list, and fewer where some of them were delegated. Raises Refused, NotReachable."""
    listed = client.list_workflows(_query(waiting=waiting), page_size=limit, next_page_token=after)
    try:
        await listed.fetch_next_page()
    except RPCError as error:
        # A server tells of a token that it cannot read in one way or another, by its store.
        if after and error.status not in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
            raise Refused("the cursor is not one of this list") from None
        raise NotReachable(f"the list cannot be read: {cut(error.message, 200)}") from None
    there = [Found(ids.run_id_of(each.id), each) for each in listed.current_page or () if _is_listed(each)]
    return Page(tuple(each for each in there if waiting or each.parent is None), listed.next_page_token or None)


async def listing(
    client: Client,
    *,
    waiting: bool = False,
    wedged: bool = False,
    follow_ups: bool = False,
    limit: int | None = 50,
) -> AsyncIterator[Found]:
    """Runs, or follow-ups, the latest first; what waits for a person are both.

    What a run delegated belongs to it, and is listed only where it needs somebody.
    """
    query = _query(waiting=waiting, follow_ups=follow_ups)
    if wedged:
        query += f" AND {attributes.PROBLEMS.name} IS NOT NULL AND ExecutionStatus = 'Running'"
    count = 0
    async for found in _listed(client, query):
        if waiting or wedged or found.parent is None:
            yield found
            count += 1
        if count == limit:
            return


def _query(*, waiting: bool, follow_ups: bool = False) -> str:
    if not waiting:
        return f"WorkflowType = '{'FollowUp' if follow_ups else 'AgentRun'}'"
    who = "WorkflowType IN ('AgentRun', 'FollowUp')"
    return f"{who} AND AgentStatus = 'waiting_on_human' AND ExecutionStatus = 'Running'"


def _is_listed(execution: WorkflowExecution) -> bool:
    return execution.status is not WorkflowExecutionStatus.CONTINUED_AS_NEW


async def below(client: Client, root: Found) -> list[tuple[int, Found]]:
    """The runs that it delegated, and those that they did, each with its depth below it and after its parent."""
    top = (root.execution.root_id or root.execution.id).replace("\\", "\\\\").replace("'", "''")
    children: dict[str, list[Found]] = {}
    # The root of a turn is its conversation, which may have thousands of others.
    query = f"RootWorkflowId = '{top}' AND ParentWorkflowId != '{top}' AND WorkflowType = 'AgentRun'"
    async for found in _listed(client, query):
        if found.parent is not None:
            children.setdefault(found.parent, []).insert(0, found)
    return list(_descent(children, root.run_id, 1))


def _descent(children: Mapping[str, Sequence[Found]], run_id: str, depth: int) -> Iterator[tuple[int, Found]]:
    for child in children.get(run_id, ()):
        yield depth, child
        yield from _descent(children, child.run_id, depth + 1)


async def _listed(client: Client, query: str) -> AsyncIterator[Found]:
    try:
        async for execution in client.list_workflows(query):
            if _is_listed(execution):
                yield Found(ids.run_id_of(execution.id), execution)
    except RPCError as error:
        raise NotReachable(f"the list cannot be read: {cut(error.message, 200)}") from None


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
        raise _translated(error, run_id) from None


async def follow_up_state(client: Client, named: str, patience: timedelta = QUERY_PATIENCE) -> FollowUpState | None:
    """What the follow-up `wf:<workflowId>` says of itself. Raises NoSuchRun; None where no worker answers."""
    return await _asked(client, named, FollowUpState, patience)


async def answer(client: Client, run_id: str, body: HumanInput) -> None:
    """Accepted, or Refused with the run's own reason. Raises NoSuchRun."""
    handle = client.get_workflow_handle(ids.addressed(run_id))
    said = body.model_dump(mode="json", exclude_none=True)
    try:
        await asyncio.wait_for(handle.execute_update("answer", said, id=secrets.token_hex(8)), timeout=20)
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        raise Refused(cause.message if isinstance(cause, ApplicationError) else str(cause)) from None
    except TimeoutError:
        raise NotReachable("no worker took the answer within 20 s: is one running? (perdure worker)") from None
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise _translated(error, run_id) from None
        # An update that meets the end of its run is not found either.
        if (await _found(client, run_id)).is_open:
            raise NotReachable(f"the answer got lost on its way to run {run_id}: send it again") from None
        raise Refused(f"run {run_id} has ended") from None


async def cancel(client: Client, run_id: str, body: CancelRequest) -> None:
    """Asks the run to stop. Raises NoSuchRun, Refused where it has ended."""
    await _signal(client, run_id, "cancel", body.model_dump(mode="json", exclude_none=True))


async def tool_result(client: Client, run_id: str, event: ToolResultEvent) -> None:
    """Brings the result of a tool outside. Raises NoSuchRun, Refused where the run has ended."""
    await _signal(
        client, run_id, "tool_result", event.model_dump(mode="json", exclude_unset=True) | {"type": event.type}
    )


async def _signal(client: Client, run_id: str, name: str, body: Mapping[str, Any]) -> None:
    handle = client.get_workflow_handle(ids.addressed(run_id))
    try:
        await handle.signal(name, body)
    except RPCError as error:
        raise _translated(error, run_id) from None


@dataclass(frozen=True)
class Ended:
    """How a run ended: its event, or the failure with the hand-off to a person."""

    status: str
    event: dict[str, Any] | None = None
    kind: str = ""
    message: str = ""
    handoff: str = ""


async def ended(client: Client, run_id: str) -> Ended:
    """Waits for the end, across continue-as-new."""
    handle = client.get_workflow_handle(ids.addressed(run_id), result_type=dict[str, Any])
    try:
        event = await handle.result()
    except WorkflowFailureError as error:
        cause = error.cause
        if isinstance(cause, CancelledError):
            return Ended(RunStatus.cancelled)
        if isinstance(cause, TerminatedError):
            return Ended(RunStatus.cancelled, None, "Terminated", f"terminated in Temporal: {cause.message}")
        if isinstance(cause, TimedOut):
            return Ended(RunStatus.timed_out, None, "TimedOut", "Temporal's timeout for the whole run has passed")
        if isinstance(cause, ApplicationError):
            details = cause.details[0] if cause.details and isinstance(cause.details[0], dict) else {}
            status = RunStatus.timed_out if cause.type == RunFailure.hard_limit else RunStatus.failed
            return Ended(status, None, cause.type or "", cause.message, str(details.get("handoff", "")))
        return Ended(RunStatus.failed, None, type(cause).__name__, str(cause))
    except RPCError as error:
        raise _translated(error, run_id) from None
    status = RunStatus.escalated if event["type"] == "agent.escalated" else RunStatus.completed
    return Ended(status, event, handoff=event.get("payload", {}).get("handoff", ""))


def _translated(error: RPCError, run_id: str) -> Exception:
    if error.status is RPCStatusCode.NOT_FOUND:
        closed = "already completed" in error.message
        return Refused(f"run {run_id} has ended") if closed else NoSuchRun(f"there is no run {run_id}")
    if error.status is RPCStatusCode.UNAVAILABLE:
        return NotReachable(f"Temporal does not answer: {cut(error.message, 200)}")
    return Refused(cut(error.message, 300))


def leave(code: int) -> NoReturn:
    """Ends the process at once. The SDK's threads can crash an interpreter that shuts down (sdk-python#300)."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # full or closed: there is nobody left to tell
            stream.flush()
    os._exit(code)

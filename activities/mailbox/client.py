"""A mailbox's requests to the server: deliveries and signals to mailboxes, the ends and results of runs, open work."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import ValidationError
from temporalio import activity
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from activities.run.outcome import SubtaskOutcome, read_run_end, wait_for_outcome
from activities.telemetry.attributes import AGENT_STATUS, AGENT_STEP
from activities.temporal import QueryCache, update_with_start
from contracts.conversation import TurnEnd
from contracts.delegation import SubtaskStatus
from contracts.mail.delivery import Ack, MessageResult, Stage, TaskState
from contracts.mail.mailbox import (
    AckView,
    Delivered,
    DeliverRequest,
    MailboxView,
    Redeliver,
    TurnLookup,
    TurnLookupRequest,
)
from contracts.mail.peers import Dispatch, MailDispatch
from contracts.run.state import RunStatus
from decisions import ids
from decisions.text.formatting import escape_markdown, truncate

AT_A_TIME = 10
LOOK_WITHIN = timedelta(seconds=5)
QUERY_TIMEOUT = timedelta(seconds=20)
GONE = "RunGone"  # the error type of a run that the server has forgotten
NOT_KEPT = "The task is done. Its result is not stored any more."

_OPEN = (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW)

T = TypeVar("T")
V = TypeVar("V")


class Mailboxes:
    def __init__(self, client: Client, task_queue: str) -> None:
        self._client = client
        self._task_queue = task_queue

    @activity.defn
    async def look_at_turns(self, request: TurnLookupRequest) -> TurnLookup:
        """Return the end of each run, over continue-as-new, unless it is open or may still begin."""
        pairs = zip(request.run_ids, request.lanes, strict=True)
        return TurnLookup(ends=tuple(await _gather_bounded(self._end_of, pairs)))

    async def _end_of(self, pair: tuple[str, str]) -> TurnEnd | None:
        """Return the end of a run. A run that the server does not know may still begin while its lane is open."""
        run_id, conversation_id = pair
        workflow_id = ids.run_workflow_id(run_id)
        run = await _describe(self._client, workflow_id)
        if run is None:
            lane = await _describe(self._client, ids.conversation_workflow_id(conversation_id))
            if lane is not None and lane.status is WorkflowExecutionStatus.RUNNING:
                return None
            run = await _describe(self._client, workflow_id)  # it may have begun and ended in between
        if run is None:
            return TurnEnd.dropped
        if run.status in _OPEN:
            return None
        return (await read_run_end(self._client.get_workflow_handle(workflow_id))).turn_end.end

    @activity.defn
    async def dispatch_mail(self, request: MailDispatch) -> None:
        """Signal the peer's mailbox, which is started if necessary. Repeating it changes nothing."""
        name = "withdraw" if request.withdraw else "dispatch"
        await signal_mailbox(self._client, self._task_queue, request.agent, name, request.dispatch)


async def _gather_bounded(act: Callable[[V], Awaitable[T]], items: Iterable[V]) -> list[T]:
    slots = asyncio.Semaphore(AT_A_TIME)

    async def act_in_slot(item: V) -> T:
        async with slots:
            return await act(item)

    return await asyncio.gather(*map(act_in_slot, items))


async def signal_mailbox(client: Client, task_queue: str, agent: str, name: str, body: Dispatch | Redeliver) -> None:
    """Signal the agent's mailbox, which is started if necessary. Raises RPCError."""
    await client.start_workflow(
        **_start_arguments(task_queue, agent),
        start_signal=name,
        start_signal_args=[body.model_dump(mode="json", exclude_none=True)],
    )


async def deliver_files(client: Client, task_queue: str, agent: str, request: DeliverRequest) -> Delivered:
    """Deliver files to the agent's mailbox, which is started if necessary.

    Raises WorkflowUpdateFailedError with the mailbox's reason, and RPCError. Delivering again after an error is safe.
    """
    body = request.model_dump(mode="json", by_alias=True, exclude_none=True)
    return await update_with_start(client, "deliver", body, _start_arguments(task_queue, agent), Delivered)


async def open_mailbox_run_id(client: Client, agent: str) -> str | None:
    """Return the first run id of the agent's mailbox, as in `Delivered`, if it is open. Raises RPCError."""
    box = await _describe(client, ids.mailbox_workflow_id(agent), LOOK_WITHIN)
    if box is None or box.status is not WorkflowExecutionStatus.RUNNING:
        return None
    return box.raw_description.workflow_execution_info.first_run_id


async def _describe(
    client: Client, workflow_id: str, within: timedelta | None = None
) -> WorkflowExecutionDescription | None:
    """Return the description of a workflow, if the server knows it."""
    try:
        return await client.get_workflow_handle(workflow_id).describe(rpc_timeout=within)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return None


def _start_arguments(task_queue: str, agent: str) -> dict[str, Any]:
    """Return the arguments that start the agent's mailbox, or use the existing one."""
    return {
        "workflow": "Mailbox",
        "args": [{"agent": agent}],
        "id": ids.mailbox_workflow_id(agent),
        "task_queue": task_queue,
        "id_conflict_policy": WorkflowIDConflictPolicy.USE_EXISTING,
        "static_summary": escape_markdown(truncate(f"mailbox of {agent}", 200)),
    }


async def query_if_possible(  # noqa: PLR0913 - what to ask, and how
    client: Client,
    workflow_id: str,
    query: str,
    kind: type[V],
    within: timedelta = QUERY_TIMEOUT,
    cache: QueryCache | None = None,
) -> V | None:
    """Query a workflow, if it answers."""
    handle = client.get_workflow_handle(workflow_id)

    async def ask() -> V:
        answer: V = await handle.query(query, result_type=kind, rpc_timeout=within)
        return answer

    try:
        return await (ask() if cache is None else cache.read(handle, query, ask))
    except (RPCError, WorkflowQueryFailedError, ValidationError):
        return None


@dataclass(frozen=True)
class OpenWork:
    """The numbers of open messages, of those that wait for inputs, people and outside peers, and of open orders."""

    open: int
    inputs: int = 0
    people: int = 0
    peers: int = 0
    orders: int = 0

    @property
    def is_idle(self) -> bool:
        """Return whether all open messages wait for something outside."""
        return self.open == self.inputs + self.people + self.peers and not self.orders


async def query_open_work(client: Client, agent: str) -> OpenWork | None:
    """Query the agent's mailbox, if it answers."""
    view = await query_if_possible(client, ids.mailbox_workflow_id(agent), "acks", MailboxView, LOOK_WITHIN)
    if view is None:
        return None
    blocked = [message for message in view.open if message.state is TaskState.blocked]
    asking = sum(bool(message.run_id) for message in blocked)
    at_work = [message for message in view.open if message not in blocked and message.stage is Stage.running]

    async def waits_for_a_person(message: AckView) -> bool:
        run = client.get_workflow_handle(ids.run_workflow_id(message.run_id or ""))
        try:
            attributes = (await run.describe(rpc_timeout=LOOK_WITHIN)).typed_search_attributes
        except RPCError:
            return False
        return attributes.get(AGENT_STATUS) == RunStatus.waiting_on_human

    return OpenWork(
        open=len(view.open),
        inputs=len(blocked) - asking,
        people=asking + sum(await _gather_bounded(waits_for_a_person, at_work)),
        peers=sum(message.stage is Stage.sent for message in view.open),
        orders=view.orders,
    )


async def result_of(client: Client, run_id: str, known: MessageResult) -> SubtaskOutcome:
    """Return the result of a run, once it has ended.

    If the server has forgotten the run, `fault` is `RunGone` and the result comes from its `known` ending.

    Raises RPCError.
    """
    run = client.get_workflow_handle(ids.run_workflow_id(run_id), result_type=dict[str, Any])
    text = NOT_KEPT if known.ack is Ack.succeeded else known.details
    return await wait_for_outcome(run) or replace(result_without_run(known), text=text, fault=GONE)


def result_without_run(ending: MessageResult) -> SubtaskOutcome:
    """Return the result of a task that has no known run."""
    status = SubtaskStatus.done if ending.ack is Ack.succeeded else SubtaskStatus.failed
    return SubtaskOutcome(status, ending.details, ending.fault)


async def count_steps(client: Client, run_id: str) -> int:
    """Return the number of steps of a run, from its search attributes."""
    described = await client.get_workflow_handle(ids.run_workflow_id(run_id)).describe(rpc_timeout=QUERY_TIMEOUT)
    return described.typed_search_attributes.get(AGENT_STEP) or 0

"""Requests to the server: the ends and results of runs, and what open messages wait for."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import ValidationError
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from perdure.activities.run.outcome import SubtaskOutcome, wait_for_outcome
from perdure.activities.telemetry.attributes import AGENT_STATUS, AGENT_STEP
from perdure.activities.temporal import IgnoreMissing, QueryCache
from perdure.contracts.conversation import LaneView, TurnEnd
from perdure.contracts.run.limits import SubtaskStatus
from perdure.contracts.run.state import RunStatus
from perdure.decisions import ids
from perdure.features.mailbox.contract import Ack, InboxMessage, MessageResult, Stage, TaskState
from perdure.features.mailbox.rules.admission import LOST, ending_of, request_of

AT_A_TIME = 10
CHECK_TIMEOUT = timedelta(seconds=5)
QUERY_TIMEOUT = timedelta(seconds=20)
FIRST_PAUSE, LONGEST_PAUSE = 0.3, 10.0  # seconds between checks of a lane that has not begun a run yet

T = TypeVar("T")
V = TypeVar("V")


async def gather_bounded(act: Callable[[V], Awaitable[T]], items: Iterable[V]) -> list[T]:
    slots = asyncio.Semaphore(AT_A_TIME)

    async def act_in_slot(item: V) -> T:
        async with slots:
            return await act(item)

    return await asyncio.gather(*map(act_in_slot, items))


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


async def wait_for_message_end(
    client: Client, agent: str, message: InboxMessage
) -> tuple[MessageResult, SubtaskOutcome]:
    """Wait for the end of a message that its lane has, and return it with the result of its run.

    Raises RPCError.
    """
    conversation_id, request_id, own = request_of(agent, message)
    pause, ending = FIRST_PAUSE, None
    while True:
        outcome = await run_outcome(client, message.run_id or own)
        if outcome is not None:
            is_done = outcome.status is SubtaskStatus.done
            known = MessageResult(ack=Ack.failed, details=outcome.text, fault=outcome.fault)
            return ending_of(TurnEnd.completed) if is_done else known, outcome
        if ending is not None:  # the run did not begin in the meantime either
            return ending, result_without_run(ending)
        ending = await _ending_without_run(client, conversation_id, request_id)
        if ending is None:
            await asyncio.sleep(pause)  # its lane has another turn before it
            pause = min(2 * pause, LONGEST_PAUSE)


async def run_outcome(client: Client, run_id: str) -> SubtaskOutcome | None:
    """Wait for the outcome of a run that the server knows. Raises RPCError."""
    return await wait_for_outcome(client.get_workflow_handle(ids.run_workflow_id(run_id), result_type=dict[str, Any]))


async def _ending_without_run(client: Client, conversation_id: str, request_id: str) -> MessageResult | None:
    """Return the end of a request whose run the server does not know, unless the run may still begin.

    A lane that the server has forgotten, too, ended long ago.
    """
    lane = client.get_workflow_handle(ids.conversation_workflow_id(conversation_id))
    view: LaneView | None = None
    with IgnoreMissing():
        described = await lane.describe()
        view = await query_if_possible(client, lane.id, "lane", LaneView, CHECK_TIMEOUT)
        if view is None:
            return None
        end = next((turn.end for turn in view.recent if turn.request_id == request_id), None)
        if end is not None:
            return ending_of(end)
        return None if described.close_time is None else LOST
    return LOST


def result_without_run(ending: MessageResult) -> SubtaskOutcome:
    """Return the result of a task that has no known run."""
    status = SubtaskStatus.done if ending.ack is Ack.succeeded else SubtaskStatus.failed
    return SubtaskOutcome(status, ending.details, ending.fault)


async def count_steps(client: Client, run_id: str) -> int:
    """Return the number of steps of a run, from its search attributes."""
    described = await client.get_workflow_handle(ids.run_workflow_id(run_id)).describe(rpc_timeout=QUERY_TIMEOUT)
    return described.typed_search_attributes.get(AGENT_STEP) or 0


@dataclass(frozen=True)
class OpenWork:
    """The numbers of open messages, and of those that wait for inputs, people and outside peers."""

    open: int
    inputs: int = 0
    people: int = 0
    peers: int = 0

    @property
    def is_idle(self) -> bool:
        """Return whether all open messages wait for something outside."""
        return self.open == self.inputs + self.people + self.peers


async def check_open_work(client: Client, messages: Collection[InboxMessage]) -> OpenWork:
    """Return what these open messages wait for."""
    running = [message for message in messages if message.stage is Stage.running]
    asking = [message for message in running if message.transitions[-1].state is TaskState.blocked]

    async def waits_for_a_person(message: InboxMessage) -> bool:
        run = client.get_workflow_handle(ids.run_workflow_id(message.run_id or ""))
        try:
            attributes = (await run.describe(rpc_timeout=CHECK_TIMEOUT)).typed_search_attributes
        except RPCError:
            return False
        return attributes.get(AGENT_STATUS) == RunStatus.waiting_on_human

    at_work = [message for message in running if message not in asking]
    return OpenWork(
        open=len(messages),
        inputs=sum(message.stage is Stage.blocked for message in messages),
        people=len(asking) + sum(await gather_bounded(waits_for_a_person, at_work)),
        peers=sum(message.stage is Stage.sent for message in messages),
    )

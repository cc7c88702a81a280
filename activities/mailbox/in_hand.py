"""The open messages of a mailbox, and what they wait for."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from activities.telemetry.attributes import AGENT_STATUS
from contracts.mail.delivery import Stage, TaskState
from contracts.mail.mailbox import AckView, MailboxView
from contracts.run.state import RunStatus
from decisions.ids import mailbox_workflow_id, run_workflow_id

LOOK_WITHIN = timedelta(seconds=5)
AT_ONCE = 10


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

    def summarize_open(self) -> str:
        waits = [(self.inputs, "inputs"), (self.people, "a person"), (self.peers, "a peer")]
        parts = [f"{count} {'waits' if count == 1 else 'wait'} for {what}" for count, what in waits if count]
        return f"bridge stopped; open messages: {self.open}" + (f" ({', '.join(parts)})" if parts else "")


async def query_open_work(client: Client, agent: str) -> OpenWork | None:
    """Query the agent's mailbox, if it answers."""
    handle = client.get_workflow_handle(mailbox_workflow_id(agent))
    try:
        view: MailboxView = await handle.query("acks", result_type=MailboxView, rpc_timeout=LOOK_WITHIN)
    except (RPCError, WorkflowQueryFailedError):
        return None
    blocked = [message for message in view.open if message.state is TaskState.blocked]
    asking = [message for message in blocked if message.run_id]
    at_work = [
        message for message in view.open if message not in blocked and message.stage is Stage.running and message.run_id
    ]
    slots = asyncio.Semaphore(AT_ONCE)

    async def waits_for_a_person(message: AckView) -> bool:
        async with slots:
            return await _waits_for_a_person(client, message.run_id or "")

    waiting = sum(await asyncio.gather(*map(waits_for_a_person, at_work)))
    return OpenWork(
        open=len(view.open),
        inputs=len(blocked) - len(asking),
        people=len(asking) + waiting,
        peers=sum(message.stage is Stage.sent for message in view.open),
        orders=view.orders,
    )


async def _waits_for_a_person(client: Client, run_id: str) -> bool:
    try:
        run = await client.get_workflow_handle(run_workflow_id(run_id)).describe(rpc_timeout=LOOK_WITHIN)
    except RPCError:
        return False
    return run.typed_search_attributes.get(AGENT_STATUS) == RunStatus.waiting_on_human

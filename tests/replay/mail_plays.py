"""Peers outside, as they act on delegations in the scenarios."""

from temporalio import activity
from temporalio.worker import Worker

from perdure.decisions import ids
from perdure.features.mailbox.contract import MailDispatch
from tests.workflows.conftest import Run, World


@activity.defn
async def dispatch_mail(_: MailDispatch) -> None:
    """As a bridge of the peer's folder does."""


@activity.defn
async def withdraw_mail(_: MailDispatch) -> None:
    """As a bridge of the peer's folder does."""


async def a_peer_outside_replies(it: World, delegation: Run) -> None:
    """To one subtask, in the folder of the agent that asked; the time of the other is used up before."""
    said = {"mailbox": "default", "sender": "outsider", "subtask_id": "a", "status": "done", "body": "written"}

    async def is_over() -> bool:
        state = await it.state(delegation)
        is_sent = not (await delegation.describe()).raw_description.pending_activities
        return is_sent and bool(state["subtasks"][1]["status"] == "timed_out")

    bridge = Worker(it.client, task_queue=ids.mail_queue("outsider"), activities=[dispatch_mail, withdraw_mail])
    async with bridge:
        await it.until(is_over)
        await delegation.execute_update("reply", {**said, "subtask_id": "b"})
        await delegation.execute_update("reply", said)
        await delegation.result()

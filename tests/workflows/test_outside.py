"""A subtask of a peer that lives outside: a message in its mailbox, and whatever comes back (D5, D6)."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError

from activities.mailbox.client import Mailboxes
from contracts.agent import Agent
from contracts.mail.mailbox import AckView, MailboxView
from contracts.mail.peers import MailDispatch
from decisions.ids import mailbox_workflow_id
from perdure.testkit.model_server import Reply, calls
from tests.workflows.conftest import Run, World

FINISH = calls(("finish", {"outcome": "all done"}))


def scribe() -> Agent:
    """Each test's mailbox is its own: they share a server."""
    return Agent(name=f"scribe-{uuid4().hex[:8]}", description="writes", tools=(), mailbox=True)


def asks(peer: Agent, *more: dict[str, Any], **fields: Any) -> Reply:
    part = {"id": "part", "agent": peer.name, "instructions": "Write it down.", **fields}
    return calls(("delegate", {"subtasks": [part, *more]}))


def reply(peer: Agent, **fields: Any) -> dict[str, Any]:
    said = {"mailbox": peer.name, "sender": peer.name, "subtask_id": "part", "status": "done", "body": "written"}
    return {**said, **fields}


async def led(it: World) -> tuple[Run, WorkflowHandle[Any, Any]]:
    """The run, and its delegation once that is there."""
    run = await it.start(agent="lead")
    delegation = it.client.get_workflow_handle(f"{run.id}/delegation:1")

    async def is_there() -> bool:
        try:
            state = await delegation.query("state")
        except RPCError:
            return False
        return bool(state["subtasks"][0]["status"] == "running")

    await it.until(is_there)
    it.started.append(delegation.id)
    return run, delegation


async def in_hand(it: World, peer: Agent, count: int) -> tuple[AckView, ...]:
    """What the peer's mailbox has in hand, once that are so many messages."""
    box = it.client.get_workflow_handle(mailbox_workflow_id(peer.name))

    async def look() -> MailboxView | None:
        try:
            view: MailboxView = await box.query("acks", result_type=MailboxView)
        except RPCError:
            return None
        return view

    async def are_there() -> bool:
        view = await look()
        return view is not None and len(view.open) == count

    await it.until(are_there)
    view = await look()
    assert view is not None
    return view.open


def lead(*peers: Agent) -> Agent:
    return Agent(name="lead", prompt="I am lead.", tools=(), peers=tuple(peer.name for peer in peers))


async def test_a_peer_outside_is_told_all_and_its_reply_is_the_result(world: Any) -> None:
    peer = scribe()
    async with world([asks(peer), FINISH], agents=[lead(peer), peer]) as it:
        run, delegation = await led(it)
        [letter] = await in_hand(it, peer, 1)
        text = await delegation.query("message", {"subtask_id": "part"})
        assert await delegation.execute_update("reply", reply(peer)) == "RESOLVED"
        event = await asyncio.wait_for(run.result(), 20)
        brought = (await it.results(run))[0][1]
        told = it.model.requests[0]
        await it.replay()
    run_id = run.id.removeprefix("run:")
    assert (letter.plan_id, letter.task_id, letter.subtask_id) == (run_id, f"{run_id}.1", "part")
    assert text.startswith(f'---\ntype: "task"\nmessage_id: "{run_id}.1-part"\nplan_id: "{run_id}"\n')
    assert text.endswith("\n\nWrite it down.")
    assert event["payload"]["outcome"] == "all done"
    assert '"status":"done","outcome":"written"' in brought
    assert "works outside" in str(told["system"])


async def test_a_second_reply_changes_nothing_and_a_strangers_is_an_orphan(world: Any) -> None:
    peer = scribe()
    more = {"id": "rest", "agent": peer.name, "instructions": "And the rest."}
    async with world([asks(peer, more), FINISH], agents=[lead(peer), peer]) as it:
        run, delegation = await led(it)
        said = [
            reply(peer, mailbox="stranger"),
            reply(peer, subtask_id="nothing"),
            reply(peer, body="first"),
            reply(peer, body="second"),
        ]
        verdicts = [await delegation.execute_update("reply", each) for each in said]
        with pytest.raises(WorkflowUpdateFailedError):
            await delegation.execute_update("reply", {"subtask_id": "rest"})
        await delegation.execute_update("reply", reply(peer, subtask_id="rest"))
        await asyncio.wait_for(run.result(), 20)
        brought = (await it.results(run))[0][1]
        with pytest.raises(RPCError, match="completed"):
            await delegation.execute_update("reply", reply(peer))
        await it.replay()
    assert verdicts == ["ORPHAN", "ORPHAN", "RESOLVED", "ALREADY_DONE"]
    assert '"outcome":"first"' in brought


async def test_a_reply_in_the_folder_of_the_one_that_asked_ends_the_subtask_in_the_peers_too(world: Any) -> None:
    peer = scribe()
    async with world([asks(peer), FINISH], agents=[lead(peer), peer]) as it:
        run, delegation = await led(it)
        await in_hand(it, peer, 1)
        assert await delegation.execute_update("reply", reply(peer, mailbox="lead")) == "RESOLVED"
        await asyncio.wait_for(run.result(), 20)
        await in_hand(it, peer, 0)
        await it.replay()


async def test_a_peer_outside_that_failed_fails_the_delegation(world: Any) -> None:
    peer = scribe()
    async with world([asks(peer), FINISH], agents=[lead(peer), peer]) as it:
        run, delegation = await led(it)
        await delegation.execute_update("reply", reply(peer, status="failed", body="no ink"))
        await asyncio.wait_for(run.result(), 20)
        brought = (await it.results(run))[0][1]
    assert f"subtask part ({peer.name}) failed: no ink" in brought


async def test_what_is_not_answered_in_time_is_taken_back(world: Any) -> None:
    peer = scribe()
    async with world([asks(peer, timeout="500ms"), FINISH], agents=[lead(peer), peer]) as it:
        run, _ = await led(it)
        await asyncio.wait_for(run.result(), 20)
        brought = (await it.results(run))[0][1]
        await in_hand(it, peer, 0)
    assert "timed out" in brought


async def test_a_mailbox_that_was_terminated_is_told_anew(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflows.delegation.REMINDER", timedelta(seconds=1))
    peer = scribe()
    async with world([asks(peer), FINISH], agents=[lead(peer), peer]) as it:
        run, delegation = await led(it)
        await in_hand(it, peer, 1)
        box = it.client.get_workflow_handle(mailbox_workflow_id(peer.name))
        await box.terminate()

        async def is_there_again() -> bool:
            return (await box.describe()).status is WorkflowExecutionStatus.RUNNING

        await it.until(is_there_again)
        [letter] = await in_hand(it, peer, 1)
        await delegation.execute_update("reply", reply(peer))
        await asyncio.wait_for(run.result(), 20)
        await it.replay()
    assert letter.subtask_id == "part"


async def test_a_reply_that_comes_while_its_subtask_is_taken_back_is_what_it_was_told_to_be(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, tell, verdicts = scribe(), Mailboxes.dispatch_mail, list[str]()

    class Slow(Mailboxes):
        @activity.defn
        async def dispatch_mail(self, request: MailDispatch) -> None:
            if request.withdraw:
                delegation = self._client.get_workflow_handle(request.dispatch.delegation)
                verdicts.append(await delegation.execute_update("reply", reply(peer)))
            await tell(self, request)

    monkeypatch.setattr(Mailboxes, "dispatch_mail", Slow.dispatch_mail)
    async with world([asks(peer, timeout="500ms"), FINISH], agents=[lead(peer), peer]) as it:
        run, _ = await led(it)
        await asyncio.wait_for(run.result(), 20)
        brought = (await it.results(run))[0][1]
        await it.replay()
    assert verdicts == ["RESOLVED"]
    assert '"status":"done","outcome":"written"' in brought


async def test_a_cancelled_run_takes_back_what_it_asked(world: Any) -> None:
    peer = scribe()
    async with world([asks(peer), FINISH], agents=[lead(peer), peer]) as it:
        run, _ = await led(it)
        await in_hand(it, peer, 1)
        await run.signal("cancel")
        with pytest.raises(WorkflowFailureError) as failure:
            await asyncio.wait_for(run.result(), 20)
        assert isinstance(failure.value.cause, CancelledError)
        await in_hand(it, peer, 0)


async def test_no_run_can_be_an_agent_that_lives_outside(world: Any) -> None:
    peer = scribe()
    async with world([FINISH], agents=[lead(peer), peer]) as it:
        run = await it.start(agent=peer.name)
        with pytest.raises(WorkflowFailureError) as failure:
            await asyncio.wait_for(run.result(), 20)
    assert isinstance(failure.value.cause, ApplicationError)
    assert (failure.value.cause.type, "lives outside" in failure.value.cause.message) == ("UnknownAgent", True)

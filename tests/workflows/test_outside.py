"""A subtask of a peer that lives outside: a message in its mailbox, and whatever comes back (D5, D6)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.service import RPCError

from activities.mailbox.client import Mailboxes
from contracts.agent import Agent
from contracts.mail.mailbox import AckView, MailboxView
from contracts.mail.peers import MailDispatch
from decisions.ids import mailbox_workflow_id
from perdure.testkit.model_server import Reply, calls
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.runs import expect_cancelled, failure_of, result_of
from tests.workflows.script import FINISH


def scribe() -> Agent:
    """Each test's mailbox is its own: they share a server."""
    return Agent(name=f"scribe-{uuid4().hex[:8]}", description="writes", tools=(), mailbox=True)


def asks(peer: Agent, *more: dict[str, Any], **fields: Any) -> Reply:
    part = {"id": "part", "agent": peer.name, "instructions": "Write it down.", **fields}
    return calls(("delegate", {"subtasks": [part, *more]}))


def reply(peer: Agent, **fields: Any) -> dict[str, Any]:
    said = {"mailbox": peer.name, "sender": peer.name, "subtask_id": "part", "status": "done", "body": "written"}
    return {**said, **fields}


async def start_delegation(it: World) -> tuple[Run, WorkflowHandle[Any, Any]]:
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


@asynccontextmanager
async def delegating(
    world: MakeWorld, **fields: Any
) -> AsyncIterator[tuple[World, Agent, Run, WorkflowHandle[Any, Any]]]:
    """A run that waits for one subtask of a peer outside, the peer, and the delegation."""
    peer = scribe()
    async with world([asks(peer, **fields), FINISH], agents=[lead(peer), peer]) as it:
        yield it, peer, *await start_delegation(it)


async def test_a_peer_outside_gets_the_whole_task_and_its_reply_is_the_result(world: MakeWorld) -> None:
    async with delegating(world) as (it, peer, run, delegation):
        [letter] = await in_hand(it, peer, 1)
        text = await delegation.query("message", {"subtask_id": "part"})
        assert await delegation.execute_update("reply", reply(peer)) == "RESOLVED"
        event = await result_of(run)
        brought = (await it.results(run))[0][1]
        first_request = it.model.requests[0]
        await it.replay()
    run_id = run.id.removeprefix("run:")
    assert (letter.plan_id, letter.task_id, letter.subtask_id) == (run_id, f"{run_id}.1", "part")
    assert text.startswith(f'---\ntype: "task"\nmessage_id: "{run_id}.1-part"\nplan_id: "{run_id}"\n')
    assert text.endswith("\n\nWrite it down.")
    assert event["payload"]["outcome"] == "done"
    assert '"status":"done","outcome":"written"' in brought
    assert "works outside" in str(first_request["system"])


async def test_a_second_reply_changes_nothing_and_a_foreign_one_is_an_orphan(world: MakeWorld) -> None:
    peer = scribe()
    more = {"id": "rest", "agent": peer.name, "instructions": "And the rest."}
    async with world([asks(peer, more), FINISH], agents=[lead(peer), peer]) as it:
        run, delegation = await start_delegation(it)
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
        await result_of(run)
        brought = (await it.results(run))[0][1]
        with pytest.raises(RPCError, match="completed"):
            await delegation.execute_update("reply", reply(peer))
        await it.replay()
    assert verdicts == ["ORPHAN", "ORPHAN", "RESOLVED", "ALREADY_DONE"]
    assert '"outcome":"first"' in brought


async def test_a_reply_in_the_folder_of_the_one_that_asked_ends_the_subtask_in_the_peers_too(world: MakeWorld) -> None:
    async with delegating(world) as (it, peer, run, delegation):
        await in_hand(it, peer, 1)
        assert await delegation.execute_update("reply", reply(peer, mailbox="lead")) == "RESOLVED"
        await result_of(run)
        await in_hand(it, peer, 0)
        await it.replay()


async def test_a_peer_outside_that_failed_fails_the_delegation(world: MakeWorld) -> None:
    async with delegating(world) as (it, peer, run, delegation):
        await delegation.execute_update("reply", reply(peer, status="failed", body="no ink"))
        await result_of(run)
        brought = (await it.results(run))[0][1]
    assert f"subtask part ({peer.name}) failed: no ink" in brought


async def test_a_subtask_that_is_not_answered_in_time_is_withdrawn(world: MakeWorld) -> None:
    async with delegating(world, timeout="500ms") as (it, peer, run, _):
        await result_of(run)
        brought = (await it.results(run))[0][1]
        await in_hand(it, peer, 0)
    assert "timed out" in brought


async def test_a_terminated_mailbox_gets_its_subtasks_again(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflows.delegation.REMINDER", timedelta(seconds=1))
    async with delegating(world) as (it, peer, run, delegation):
        await in_hand(it, peer, 1)
        box = it.client.get_workflow_handle(mailbox_workflow_id(peer.name))
        await box.terminate()

        async def is_there_again() -> bool:
            return (await box.describe()).status is WorkflowExecutionStatus.RUNNING

        await it.until(is_there_again)
        [letter] = await in_hand(it, peer, 1)
        await delegation.execute_update("reply", reply(peer))
        await result_of(run)
        await it.replay()
    assert letter.subtask_id == "part"


async def test_a_reply_during_the_withdrawal_of_its_subtask_counts(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
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
        run, _ = await start_delegation(it)
        await result_of(run)
        brought = (await it.results(run))[0][1]
        await it.replay()
    assert verdicts == ["RESOLVED"]
    assert '"status":"done","outcome":"written"' in brought


async def test_a_cancelled_run_withdraws_its_subtasks(world: MakeWorld) -> None:
    async with delegating(world) as (it, peer, run, _):
        await in_hand(it, peer, 1)
        await run.signal("cancel")
        await expect_cancelled(run)
        await in_hand(it, peer, 0)


async def test_no_run_can_be_an_agent_that_lives_outside(world: MakeWorld) -> None:
    peer = scribe()
    async with world([FINISH], agents=[lead(peer), peer]) as it:
        run = await it.start(agent=peer.name)
        failure = await failure_of(run)
    assert (failure.type, "lives outside" in failure.message) == ("UnknownAgent", True)

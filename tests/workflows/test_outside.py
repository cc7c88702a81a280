"""A subtask of a peer that lives outside: a message in its mailbox, and whatever comes back (D5, D6)."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.service import RPCError

from perdure.contracts.agent import Agent
from perdure.features.mailbox.activities.peers import OutsidePeer
from perdure.features.mailbox.contract import InboxMessage, MailDispatch
from perdure.testkit.model_server import Reply, calls
from perdure.workflows.execution import WITHDRAWING
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.mail import Mailbox
from tests.workflows.runs import expect_cancelled, failure_of, result_of
from tests.workflows.script import FINISH


def scribe() -> Agent:
    """Each test's mailbox is its own: they share a server."""
    return Agent(name=f"scribe-{uuid4().hex[:8]}", description="writes", tools=(), mailbox=True)


def asks(peer: Agent, *more: dict[str, Any], **fields: Any) -> Reply:
    part = {"id": "part", "agent": peer.name, "instructions": "Write it down.", **fields}
    return calls(("delegate", {"subtasks": [part, *more]}))


def reply(peer: str, **fields: Any) -> dict[str, Any]:
    said = {"mailbox": peer, "sender": peer, "subtask_id": "part", "status": "done", "body": "written"}
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


@asynccontextmanager
async def served(it: World, peer: Agent, root: Path) -> AsyncIterator[Mailbox]:
    """The peer's folder, with its bridge."""
    box = Mailbox(it, root / "box", peer.name, outside=True)
    async with box.served():
        yield box


async def in_hand(box: Mailbox, count: int) -> list[InboxMessage]:
    """Return the messages in hand in the peer's folder, once there are so many and their files are there."""
    await box.it.until(lambda: len(box.open()) == len(files(box)) == count)
    return box.open()


def files(box: Mailbox) -> list[Path]:
    return list((box.folder.root / "inbox").glob("*/*.md"))


def lead(*peers: Agent) -> Agent:
    return Agent(name="lead", prompt="I am lead.", tools=(), peers=tuple(peer.name for peer in peers))


@asynccontextmanager
async def delegating(
    world: MakeWorld, root: Path, **fields: Any
) -> AsyncIterator[tuple[World, Mailbox, Run, WorkflowHandle[Any, Any]]]:
    """A run that waits for one subtask of a peer outside, the peer's folder, and the delegation."""
    peer = scribe()
    async with world([asks(peer, **fields), FINISH], agents=[lead(peer), peer]) as it:
        run, delegation = await start_delegation(it)
        async with served(it, peer, root) as box:
            yield it, box, run, delegation


async def test_a_peer_outside_gets_the_whole_task_and_its_reply_is_the_result(world: MakeWorld, tmp_path: Path) -> None:
    async with delegating(world, tmp_path) as (it, box, run, delegation):
        [sent] = await in_hand(box, 1)
        written = files(box)[0].read_text()
        text = await delegation.query("message", {"subtask_id": "part"})
        assert await delegation.execute_update("reply", reply(box.folder.agent)) == "RESOLVED"
        event = await result_of(run)
        brought = (await it.results(run))[0][1]
        first_request = it.model.requests[0]
        await it.replay()
    run_id = run.id.removeprefix("run:")
    assert (sent.plan_id, sent.task_id, sent.subtask_id) == (run_id, f"{run_id}.1", "part")
    assert written == text
    assert text.startswith(f'---\ntype: "task"\nmessage_id: "{run_id}.1-part"\nplan_id: "{run_id}"\n')
    assert text.endswith("\n\nWrite it down.")
    assert event["payload"]["outcome"] == "done"
    assert '"status":"done","outcome":"written"' in brought
    assert "works outside" in str(first_request["system"])


async def test_a_reply_file_in_the_peers_outbox_is_the_result_and_ends_the_subtask(
    world: MakeWorld, tmp_path: Path
) -> None:
    async with delegating(world, tmp_path) as (it, box, run, _):
        [sent] = await in_hand(box, 1)
        head = {"type": "reply", "message_id": "r", "plan_id": sent.plan_id, "task_id": sent.task_id, "body": "by file"}
        shown = {**head, "subtask_id": "part", "from": box.folder.agent, "status": "done"}
        box.folder.below.write(json.dumps(shown).encode(), "outbox", sent.plan_id, "r.json")
        await result_of(run)
        assert '"outcome":"by file"' in (await it.results(run))[0][1]
        await it.until(lambda: not box.open())


async def test_a_subtask_waits_for_a_bridge(world: MakeWorld, tmp_path: Path) -> None:
    peer = scribe()
    async with world([asks(peer), FINISH], agents=[lead(peer), peer]) as it:
        run, delegation = await start_delegation(it)
        async with served(it, peer, tmp_path) as box:
            await in_hand(box, 1)
        async with served(it, peer, tmp_path) as box:  # another bridge
            await in_hand(box, 1)
            await delegation.execute_update("reply", reply(peer.name))
            await result_of(run)
        await it.replay()


async def test_a_second_reply_changes_nothing_and_a_foreign_one_is_an_orphan(world: MakeWorld) -> None:
    peer = scribe()
    more = {"id": "rest", "agent": peer.name, "instructions": "And the rest."}
    async with world([asks(peer, more), FINISH], agents=[lead(peer), peer]) as it:
        run, delegation = await start_delegation(it)
        said = [
            reply(peer.name, mailbox="stranger"),
            reply(peer.name, subtask_id="nothing"),
            reply(peer.name, body="first"),
            reply(peer.name, body="second"),
        ]
        verdicts = [await delegation.execute_update("reply", each) for each in said]
        with pytest.raises(WorkflowUpdateFailedError):
            await delegation.execute_update("reply", {"subtask_id": "rest"})
        await delegation.execute_update("reply", reply(peer.name, subtask_id="rest"))
        await result_of(run)
        brought = (await it.results(run))[0][1]
        with pytest.raises(RPCError, match="completed"):
            await delegation.execute_update("reply", reply(peer.name))
        await it.replay()
    assert verdicts == ["ORPHAN", "ORPHAN", "RESOLVED", "ALREADY_DONE"]
    assert '"outcome":"first"' in brought


async def test_a_reply_in_the_folder_of_the_one_that_asked_ends_the_subtask_in_the_peers_too(
    world: MakeWorld, tmp_path: Path
) -> None:
    async with delegating(world, tmp_path) as (it, box, run, delegation):
        await in_hand(box, 1)
        assert await delegation.execute_update("reply", reply(box.folder.agent, mailbox="lead")) == "RESOLVED"
        await result_of(run)
        await in_hand(box, 0)
        await it.replay()


async def test_a_reply_before_the_end_of_its_subtask_s_sending_is_known_leaves_no_file(
    world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = OutsidePeer.dispatch_mail

    class Replied(OutsidePeer):
        @activity.defn
        async def dispatch_mail(self, request: MailDispatch) -> None:
            await send(self, request)
            delegation = self._client.get_workflow_handle(request.delegation)
            await delegation.execute_update("reply", reply(self._writer.folder.agent, mailbox="lead"))

    monkeypatch.setattr(OutsidePeer, "dispatch_mail", Replied.dispatch_mail)
    async with delegating(world, tmp_path) as (it, box, run, _):
        await result_of(run)
        await in_hand(box, 0)
        assert '"outcome":"written"' in (await it.results(run))[0][1]
        await it.replay()


async def test_a_peer_outside_that_failed_fails_the_delegation(world: MakeWorld, tmp_path: Path) -> None:
    async with delegating(world, tmp_path) as (it, box, run, delegation):
        peer = box.folder.agent
        await delegation.execute_update("reply", reply(peer, status="failed", body="no ink"))
        await result_of(run)
        brought = (await it.results(run))[0][1]
    assert f"subtask part ({peer}) failed: no ink" in brought


async def test_a_subtask_that_is_not_answered_in_time_is_withdrawn(world: MakeWorld, tmp_path: Path) -> None:
    async with delegating(world, tmp_path, timeout="3s") as (it, box, run, _):
        await in_hand(box, 1)
        await result_of(run)
        brought = (await it.results(run))[0][1]
        await in_hand(box, 0)
    assert "timed out" in brought


async def test_a_subtask_that_ended_while_no_bridge_ran_is_withdrawn_by_the_next(
    world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WITHDRAWING, "schedule_to_close_timeout", timedelta(seconds=0.5))
    peer = scribe()
    async with world([asks(peer), FINISH], agents=[lead(peer), peer]) as it:
        run, _ = await start_delegation(it)
        async with served(it, peer, tmp_path) as box:
            await in_hand(box, 1)
        await run.signal("cancel")
        await expect_cancelled(run)
        assert len(files(box)) == 1
        async with served(it, peer, tmp_path) as box:
            await in_hand(box, 0)


async def test_a_reply_during_the_withdrawal_of_its_subtask_counts(
    world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    withdraw, verdicts = OutsidePeer.withdraw_mail, list[str]()

    class Slow(OutsidePeer):
        @activity.defn
        async def withdraw_mail(self, request: MailDispatch) -> None:
            delegation = self._client.get_workflow_handle(request.delegation)
            verdicts.append(await delegation.execute_update("reply", reply(self._writer.folder.agent)))
            await withdraw(self, request)

    monkeypatch.setattr(OutsidePeer, "withdraw_mail", Slow.withdraw_mail)
    async with delegating(world, tmp_path, timeout="3s") as (it, box, run, _):
        await in_hand(box, 1)
        await result_of(run)
        brought = (await it.results(run))[0][1]
        await it.replay()
    assert verdicts == ["RESOLVED"]
    assert '"status":"done","outcome":"written"' in brought


async def test_a_cancelled_run_withdraws_its_subtasks(world: MakeWorld, tmp_path: Path) -> None:
    async with delegating(world, tmp_path) as (_, box, run, __):
        await in_hand(box, 1)
        await run.signal("cancel")
        await expect_cancelled(run)
        await in_hand(box, 0)


async def test_no_run_can_be_an_agent_that_lives_outside(world: MakeWorld) -> None:
    peer = scribe()
    async with world([FINISH], agents=[lead(peer), peer]) as it:
        run = await it.start(agent=peer.name)
        failure = await failure_of(run)
    assert (failure.type, "lives outside" in failure.message) == ("UnknownAgent", True)

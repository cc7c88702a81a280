"""What bridges and lanes do to mailboxes in the scenarios. No lane is there: the words of its turns are said here."""

from datetime import UTC, datetime
from typing import Any

from contracts.conversation import TurnEnd
from contracts.mail.commands import BridgeResult, BridgeTask
from contracts.mail.delivery import Stage
from contracts.mail.mailbox import Delivery
from decisions import ids
from tests.workflows.conftest import Run, World
from tests.workflows.mail import FakeBridge, disk_errors, message, new_agent, turn_ended

SENT = {"delegation": "run:r/delegation:1", "plan_id": "p", "task_id": "r.1", "subtask_id": "a", "sender": "lead"}
NO_MESSAGE = Delivery(file="x", plan="p", sha256="", fault="no front matter")


async def a_mailbox(it: World) -> Run:
    """Opened by a delegation whose peer lives outside."""
    agent = new_agent()
    box: Run = await it.client.start_workflow(
        "Mailbox",
        {"agent": agent},
        id=ids.mailbox_workflow_id(agent),
        task_queue=it.queue,
        start_signal="dispatch",
        start_signal_args=[SENT],
    )
    it.started.append(box.id)
    return box


def bridge_of(it: World, box: Run) -> FakeBridge:
    return FakeBridge(it, box.id.removeprefix(ids.mailbox_workflow_id("")))


def _taken(order: BridgeTask) -> BridgeResult:
    """`blocked` asks for an input, and the others run."""
    return BridgeResult(run_id=f"run-of-{order.letter.message_id}", is_blocked=order.letter.message_id == "blocked")


async def everything_is_said_to_it(it: World, box: Run) -> None:
    bridge = bridge_of(it, box)
    bridge.failures += disk_errors(1)
    bridge.answers["take"] = _taken
    async with bridge.working():
        await bridge.deliver(message("a"), message("blocked", missing=("x",)), NO_MESSAGE)
        await bridge.deliver(message("a", file="again"), message("b", task="t-a"), message("bad", fault="two files"))
        await bridge.deliver(message("blocked", undecided=("x",)))
        view = await bridge.until(lambda view: [str(each.stage) for each in view.open].count("running") == 2)
        (asks,) = (each.key for each in view.open if each.message_id == "blocked")
        await box.signal("input_picked", {"key": asks})
        takes = {each.letter.message_id: each.letter for each in bridge.orders if each.kind == "take"}
        await box.signal("turn_ended", turn_ended(bridge.agent, takes["a"]))
        await box.signal("turn_ended", turn_ended(bridge.agent, takes["blocked"], TurnEnd.cancelled))
        await bridge.until(lambda view: len(view.open) == 1 and view.open[0].stage is Stage.sent and not view.orders)
        await bridge.deliver(message("c", task="t-a"), message("hopeless", missing=("x",)))
        await box.signal("give_up", {"message_id": "hopeless", "by": "eva"})
        await box.signal("withdraw", SENT)
        await box.signal("redeliver", {"message_id": "bad"})
        for name in ("redeliver", "turn_ended", "input_picked", "give_up", "dispatch", "withdraw", "no_such_signal"):
            await box.signal(name, {"no": "such field"})
        await bridge.until(lambda view: not view.open and not view.orders)
    await bridge.deliver(message("never"))
    await bridge.until(lambda view: view.open[0].ack is not None)
    await box.cancel()


async def its_runs_are_looked_at(it: World, box: Run) -> None:
    """One that never begins, whose lane is nowhere."""
    bridge = bridge_of(it, box)
    bridge.answers["take"] = lambda _: BridgeResult(run_id="never", at=datetime(2026, 1, 1, tzinfo=UTC))  # long ago
    async with bridge.working():
        await bridge.deliver(message("a"))
        await bridge.until(lambda view: bool(view.recent) and not view.orders)
    await box.cancel()


async def it_rotates(it: World, box: Run) -> None:
    """With orders that no bridge carries out yet."""
    bridge = bridge_of(it, box)
    names = [f"m{n}" for n in range(60)]
    for name in names:
        await bridge.deliver(message(name))

    async def has_rotated() -> bool:
        history = await box.fetch_history()
        started: Any = history.events[0].workflow_execution_started_event_attributes
        return bool(started.continued_execution_run_id)

    await it.until(has_rotated)
    async with bridge.working():
        await bridge.until(lambda view: len(view.recent) == len(names))
    await it.client.get_workflow_handle(box.id).cancel()


async def a_peer_outside_replies(it: World, delegation: Run) -> None:
    """To one subtask; the time of the other is used up before."""
    said = {"mailbox": "outsider", "sender": "outsider", "subtask_id": "a", "status": "done", "body": "written"}

    async def is_over() -> bool:
        state = await it.state(delegation)
        return bool(state["subtasks"][1]["status"] == "timed_out")

    await it.until(is_over)
    await delegation.execute_update("reply", {**said, "subtask_id": "b"})
    await delegation.execute_update("reply", said)

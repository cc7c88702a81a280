"""A mailbox with scripted bridges on the real server: each message once, whatever is lost in between (C2 to C5, C7)."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.conversation import submit_to_lane
from activities.mailbox.client import Mailboxes, signal_mailbox
from activities.mailbox.folder import MailFolder
from contracts.conversation import SubmitRequest, TurnEnd
from contracts.mail.commands import BridgeResult, BridgeTask
from contracts.mail.delivery import Ack, MessageResult, Stage, TaskState
from contracts.mail.mailbox import Delivery, TurnLookupRequest
from contracts.mail.peers import Dispatch, MailDispatch
from decisions import ids
from decisions.mailbox import commands
from decisions.mailbox.poll_mode import PollMode, PollPolicy
from perdure.process.mailbox_bridge import Bridge
from perdure.testkit.model_server import Reply, calls
from tests.workflows.conftest import MakeWorld, World
from tests.workflows.lane import echo, lane_of, new_id, run_of, say, wait_for_question, wait_for_run
from tests.workflows.mail import FakeBridge, acks, disk_errors, message, new_agent, turn_ended
from tests.workflows.runs import expect_cancelled, failure_of, rejection_of
from tests.workflows.script import texts
from workflows.policies import CARRYING

ASK = calls(("ask_human", {"question": "which one?"}))
GONE = MessageResult(ack=Ack.failed, details="its file is gone")
SENT = Dispatch(delegation="run:r/delegation:1", plan_id="p", task_id="r.1", subtask_id="a", sender="lead")


def asks_or_says(body: dict[str, Any]) -> Reply:
    return ASK if texts(body)[-1] == "ask" else echo(body)


@asynccontextmanager
async def working(it: World) -> AsyncIterator[FakeBridge]:
    """The bridge of a mailbox of its own, at work."""
    bridge = FakeBridge(it, new_agent())
    async with bridge.working():
        yield bridge


async def test_a_message_is_consumed_before_it_runs_and_finished_once(world: MakeWorld) -> None:
    async with world(echo) as it:
        async with working(it) as bridge:
            assert await bridge.deliver(message("a")) == ["admitted"]
            view = await bridge.until_over("a")
            attributes = (await bridge.box.describe()).typed_search_attributes
        assert bridge.agent in [pair.value for pair in attributes.search_attributes]
    take, finish = bridge.orders
    assert [each.state for each in take.letter.transitions] == [TaskState.consumed]
    assert [str(each.state) for each in finish.letter.transitions] == ["CONSUMED", "RUNNING", "SUCCEEDED"]
    assert acks(view) == [("a", "SUCCEEDED")]


async def test_two_bridges_of_one_folder_bring_the_same_files_and_each_is_taken_once(world: MakeWorld) -> None:
    async with world(echo) as it:
        one = FakeBridge(it, new_agent())
        two = FakeBridge(it, one.agent, one.folder)
        files = [message(f"m{n}") for n in range(20)]
        async with one.working(), two.working():
            verdicts = await asyncio.gather(*(each.deliver(*files) for each in (one, two)))
            await one.until_over(*(f"m{n}" for n in range(20)))
    takes = [file for each in (one, two) for _, file in each.done("take")]
    assert sorted(takes) == sorted(f"m{n}.md" for n in range(20))
    assert Counter(verdicts[0] + verdicts[1])["admitted"] == 20
    assert max(one.at_a_time + two.at_a_time) <= commands.MAX_BATCH


async def test_a_known_message_or_task_is_not_repeated(world: MakeWorld) -> None:
    async with world(echo) as it:
        bridge = FakeBridge(it, new_agent())
        bridge.ends = None
        async with bridge.working():
            await bridge.deliver(message("a"))
            await bridge.until(lambda view: view.open[0].stage is Stage.running)
            verdicts = await bridge.deliver(message("a"), message("a", file="a2"), message("b", task="t-a", file="b"))
            assert verdicts == ["known", "duplicate", "task_in_progress"]
            await bridge.box.signal("turn_ended", turn_ended(bridge.agent, bridge.orders[0].letter))
            await bridge.until_over("a")
            verdicts = await bridge.deliver(message("a", file="a3"), message("c", task="t-a", file="c"))
            assert verdicts == ["duplicate", "task_done"]
            await bridge.until(lambda view: not view.orders)
    assert sorted(bridge.done()) == [
        ("finish", "a.md"),
        ("resend", "c"),
        ("skip", "a2"),
        ("skip", "a3"),
        ("skip", "b"),
        ("take", "a.md"),
    ]
    assert {each.why for each in bridge.orders if each.why} == {
        "SKIPPED_DUPLICATE",
        "SKIPPED_TASK_IN_PROGRESS",
        "RESULT_SENT_AGAIN",
    }


async def test_a_message_waits_for_its_inputs_and_a_person_for_a_choice(world: MakeWorld) -> None:
    async with world(echo) as it:
        bridge = FakeBridge(it, new_agent())
        bridge.ends = None
        bridge.answers["take"] = lambda _: BridgeResult(run_id="r", is_blocked=True)
        async with bridge.working():
            assert await bridge.deliver(message("a", missing=("x",))) == ["blocked"]
            await bridge.until(lambda view: not view.orders)
            assert await bridge.deliver(message("a", undecided=("x",))) == ["admitted"]
            view = await bridge.until(lambda view: not view.orders and view.open[0].stage is Stage.running)
            assert (view.open[0].state, view.open[0].undecided) == (TaskState.blocked, ("x",))
            await bridge.box.signal("input_picked", {"key": view.open[0].key})
            view = await bridge.until(lambda view: not view.orders and view.open[0].state is TaskState.running)
            await bridge.box.signal("turn_ended", turn_ended(bridge.agent, bridge.orders[1].letter))
            await bridge.until_over("a")
    assert [kind for kind, _ in bridge.done()] == ["write_state", "take", "write_state", "write_state", "finish"]
    states = [str(each.state) for each in bridge.orders[-1].letter.transitions]
    blocked = "BLOCKED_WAITING_INPUT"
    assert states == [blocked, "CONSUMED", blocked, "RUNNING", "SUCCEEDED"]


async def test_a_person_gives_up_a_message_whose_inputs_never_come(world: MakeWorld) -> None:
    async with world(echo) as it, working(it) as bridge:
        assert await bridge.deliver(message("a", missing=("x",))) == ["blocked"]
        await bridge.box.signal("give_up", {"message_id": "a", "by": "eva"})
        view = await bridge.until_over("a")
        assert await bridge.deliver(message("b", task="t-a")) == ["admitted"]
        await bridge.until_over("a", "b")
    assert [(each.details, str(each.ack)) for each in view.recent] == [("given up by eva", "FAILED")]


async def test_without_a_bridge_orders_wait_until_one_comes(world: MakeWorld) -> None:
    async with world(echo) as it:
        bridge = FakeBridge(it, new_agent())
        await bridge.deliver(message("a"))
        await bridge.until(lambda view: view.open[0].ack is Ack.consumed)
        await bridge.deliver(message("b"))
        assert (await bridge.look()).orders == 2
        async with bridge.working():
            view = await bridge.until_over("a", "b")
        assert await it.failed_tasks(bridge.box) == 0
    assert acks(view) == [("a", "SUCCEEDED"), ("b", "SUCCEEDED")]


async def test_a_bridge_that_fails_three_times_does_it_in_the_end(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = replace(CARRYING["retry_policy"], initial_interval=timedelta(milliseconds=50))
    monkeypatch.setitem(CARRYING, "retry_policy", policy)
    async with world(echo) as it:
        bridge = FakeBridge(it, new_agent())
        bridge.failures += disk_errors(3)
        async with bridge.working():
            await bridge.deliver(message("a"))
            view = await bridge.until_over("a")
    assert acks(view) == [("a", "SUCCEEDED")]
    assert view.notices == ()


NO_ZONE = {"run_id": "r", "at": "2026-01-01T00:00:00"}


@pytest.mark.parametrize(
    "bad", [{"done": []}, {"done": [{}, {}]}, {"done": [{"is_blocked": "?"}]}, {"done": [NO_ZONE]}, None, "text"]
)
async def test_a_bad_answer_of_a_bridge_is_a_notice_and_the_task_stays(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, bad: Any
) -> None:
    monkeypatch.setattr("workflows.mailbox.BRIDGE_REST", commands.LATER / 25)
    async with world(echo) as it:
        bridge = FakeBridge(it, new_agent())
        bridge.raw.append(bad)
        async with bridge.working():
            await bridge.deliver(message("a"))
            view = await bridge.until_over("a")
        assert await it.failed_tasks(bridge.box) == 0
    assert len(view.notices) == 1
    assert bridge.folder in view.notices[0]
    assert bridge.done() == [("take", "a.md"), ("finish", "a.md")]


async def test_a_task_that_no_bridge_can_carry_out_is_a_notice_and_stays(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.mailbox.BRIDGE_REST", commands.LATER / 25)
    async with world(echo) as it:
        bridge = FakeBridge(it, new_agent())
        bridge.failures.append(ApplicationError("never", non_retryable=True))
        async with bridge.working():
            await bridge.deliver(message("a"))
            view = await bridge.until_over("a")
    assert "never" in view.notices[0]


async def test_a_postponed_task_holds_up_no_other(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(echo) as it:
        bridge = FakeBridge(it, new_agent())
        refuses = True
        bridge.answers["finish"] = lambda order: BridgeResult(later=refuses and order.letter.plan == "refuses")
        async with bridge.working():
            monkeypatch.setattr(commands, "LATER", commands.LATER / 10)
            await bridge.deliver(message("a", plan="refuses"))
            await it.until(lambda: len(bridge.done("finish")) >= 2)
            await bridge.deliver(message("b"))
            view = await bridge.until(lambda view: len(view.recent) == 1)
            assert acks(view) == [("b", "SUCCEEDED")]
            refuses = False
            await bridge.until_over("a", "b")


async def test_a_run_that_did_nothing_is_retried_and_a_failed_one_is_a_dead_letter(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("decisions.mailbox.state.PAUSE", commands.LATER / 100)
    async with world(echo) as it:
        bridge = FakeBridge(it, new_agent())
        bridge.ends = TurnEnd.failed
        bridge.answers["finish"] = lambda order: BridgeResult(again=order.letter.attempt < 3)
        async with bridge.working():
            await bridge.deliver(message("a"))
            await bridge.until_over("a")
            (dead,) = await bridge.dead()
    assert [each.letter.attempt for each in bridge.orders if each.kind == "take"] == [1, 2, 3]
    assert (dead.message_id, dead.attempt, dead.why) == ("a", 3, "the run failed")
    alerts = [vars(each)["event"] for each in caplog.records if each.msg.startswith("agent.mail.dead_letter")]
    assert [(each["agent"], each["message_id"], each["attempt"]) for each in alerts] == [(bridge.agent, "a", 3)]


async def test_dead_letters_are_delivered_again_when_asked(world: MakeWorld) -> None:
    bad = Delivery(file="x", plan="p", sha256="", fault="no front matter")
    async with world(echo) as it:
        bridge = FakeBridge(it, new_agent())
        bridge.answers["take"] = lambda order: (
            BridgeResult(ending=GONE) if order.letter.attempt == 1 else BridgeResult(run_id="r")
        )
        async with bridge.working():
            assert await bridge.deliver(bad, message("a")) == ["dead", "admitted"]
            await bridge.until_over("a")
            assert [each.why for each in await bridge.dead()] == ["no front matter", "its file is gone"]
            await bridge.box.signal("redeliver", {"message_id": "a", "by": "eva"})
            await bridge.until(lambda view: not view.orders)
            await bridge.box.signal("redeliver")
            await bridge.until(lambda view: not view.orders)
            assert await bridge.dead() == []
            assert await bridge.deliver(message("a", file="back")) == ["admitted"]
            await bridge.until(lambda view: view.open[0].run_id == "r")
    assert [file for kind, file in bridge.done("restore")] == ["a.md", "x"]


async def test_the_end_of_a_run_is_found_where_its_word_was_lost(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "FIRST_LOOK", commands.FIRST_LOOK / 120)
    async with world(asks_or_says) as it:
        bridge = FakeBridge(it, new_agent())
        says, asks = await say(it, new_id(), "say"), await say(it, new_id(), "ask")
        await (await wait_for_run(it, says)).result()
        await wait_for_question(it, asks)
        of = {"done.md": says.run_id, "open.md": asks.run_id, "never.md": "nobody's"}
        bridge.answers["take"] = lambda order: BridgeResult(run_id=of[order.letter.file])
        async with bridge.working():
            await bridge.deliver(*(message(name.removesuffix(".md")) for name in of))
            await bridge.until(lambda view: len(view.recent) == 2)
            await run_of(it, asks).cancel()
            view = await bridge.until_over("done", "open", "never")
    assert {each.message_id: (str(each.ack), each.details) for each in view.recent} == {
        "done": ("SUCCEEDED", "the run is completed"),
        "open": ("FAILED", "the run was cancelled"),
        "never": ("FAILED", "the task was dropped before its run began"),
    }


async def test_a_lookup_reports_how_runs_have_ended(world: MakeWorld) -> None:
    async with world(asks_or_says) as it:
        chat, other = new_id(), new_id()
        done = await say(it, chat, "say")
        await (await wait_for_run(it, done)).result()
        open_run = await say(it, other, "ask")
        await wait_for_question(it, open_run)
        runs = (done.run_id, open_run.run_id, "not-yet", "never")
        lanes = (chat, other, other, "no-such-lane")
        look = Mailboxes(it.client, it.queue).look_at_turns
        seen = await ActivityEnvironment().run(look, TurnLookupRequest(run_ids=runs, lanes=lanes))
        await lane_of(it, other).cancel()
        with pytest.raises(WorkflowFailureError):
            await lane_of(it, other).result()
    assert seen.ends == (TurnEnd.completed, None, None, TurnEnd.dropped)


async def test_subtasks_go_to_an_outside_peer_and_are_taken_back(world: MakeWorld) -> None:
    async with world(echo) as it:
        bridge = FakeBridge(it, new_agent())
        tell = Mailboxes(it.client, it.queue).dispatch_mail
        for _ in range(2):
            await ActivityEnvironment().run(tell, MailDispatch(agent=bridge.agent, dispatch=SENT))
        async with bridge.working():
            await bridge.deliver()
            view = await bridge.until(lambda view: view.open[0].stage is Stage.sent)
            assert len(view.open) == 1
            for _ in range(2):
                await ActivityEnvironment().run(tell, MailDispatch(agent=bridge.agent, dispatch=SENT, withdraw=True))
            await bridge.until(lambda view: not view.open and not view.orders)
    assert {kind for kind, _ in bridge.done()} == {"dispatch", "withdraw"}
    assert bridge.orders[0].letter.delegation == SENT.delegation


BAD = [(), ({}, {}), ("text",), (None,), ([],), ({"key": 1, "folder": 2, "no": "such field"},)]


async def test_nothing_that_is_sent_to_a_mailbox_wedges_it(world: MakeWorld) -> None:
    async with world(echo) as it:
        async with working(it) as bridge:
            await bridge.deliver()
            for name in ("redeliver", "turn_ended", "input_picked", "give_up", "dispatch", "withdraw", "nonsense"):
                for args in BAD:
                    await bridge.box.signal(name, args=args)
            for args in BAD:
                assert (await rejection_of(bridge.box, "deliver", *args)).type == "InvalidInput"
            for query in ("acks", "deadletters"):
                for args in BAD:
                    await bridge.box.query(query, args=args)
            await bridge.deliver(message("a"))
            view = await bridge.until_over("a")
        assert await it.failed_tasks(bridge.box) == 0
    assert len(view.notices) == 20


@pytest.mark.parametrize("bad", [({"agent": "another"},), ({"id": 1},), ("text",), (1, 2)])
async def test_a_mailbox_with_a_bad_input_ends_with_a_clear_failure(world: MakeWorld, bad: tuple[Any, ...]) -> None:
    async with world(echo) as it:
        box = await it.start_raw(*bad, workflow_type="Mailbox", id=f"mailbox:{new_agent()}")
        assert (await failure_of(box)).type == "InvalidInput"
        it.started.clear()


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_mailbox_that_is_cancelled_ends_so_and_the_next_one_begins_where_files_are(
    world: MakeWorld, *, is_there: bool
) -> None:
    async with world(echo) as it:
        bridge = FakeBridge(it, new_agent())
        bridge.gate.clear()
        if is_there:
            async with bridge.working():
                await bridge.deliver(message("a"))
                await it.until(lambda: bool(bridge.at_a_time))
                await cancel_mailbox(bridge)
                bridge.gate.set()
        else:
            await bridge.deliver(message("a"))
            await cancel_mailbox(bridge)
            bridge.gate.set()
        assert await it.failed_tasks(bridge.box) == 0
        async with bridge.working():
            assert await bridge.deliver(message("a")) == ["admitted"]
            await bridge.until_over("a")


class Submitting(FakeBridge):
    """Hands tasks to their lanes, as bridges do."""

    async def _one(self, order: BridgeTask) -> BridgeResult:
        if order.kind != "take":
            return await super()._one(order)
        conversation = ids.mail_conversation_id(self.agent, order.letter.task)
        request_id = ids.mail_request_id(order.letter.key, order.letter.attempt)
        request = SubmitRequest(request_id=request_id, goal="work", mailbox=self.agent)
        self.it.started.append(ids.conversation_workflow_id(conversation))
        taken = await submit_to_lane(self.it.client, self.it.queue, conversation, request, closes=True)
        return BridgeResult(run_id=taken.run_id, at=datetime.now(UTC))


async def test_a_mailbox_that_was_terminated_finds_the_run_that_was_made_before(world: MakeWorld) -> None:
    async with world(echo) as it:
        bridge = Submitting(it, new_agent())
        async with bridge.working():
            runs = []
            for _ in range(2):
                assert await bridge.deliver(message("a")) == ["admitted"]
                view = await bridge.until_over("a")
                runs.append(view.recent[0].run_id)
                await bridge.box.terminate()
        assert len(it.model.requests) == 1
    assert runs[0] == runs[1]
    assert acks(view) == [("a", "SUCCEEDED")]
    assert [kind for kind, _ in bridge.done()] == ["take", "finish"] * 2


async def test_as_much_as_a_client_can_deliver_at_once_does_not_wedge_it(world: MakeWorld) -> None:
    long = "ä" * 200
    async with world(echo) as it:
        bridge = FakeBridge(it, new_agent())
        found = [
            message(
                f"{n}{long}"[:200],
                plan=long,
                task=f"{n}{long}"[:200],
                file=f"{n}{long}",
                undecided=tuple("x" * 60 + str(k) for k in range(10, 20)),
            )
            for n in range(100)
        ]
        for _ in range(3):
            verdicts = Counter(await bridge.deliver(*found))
        assert set(verdicts) == {"known", "full"}
        async with bridge.working():
            await bridge.until(lambda view: not view.open and not view.orders)
        assert await it.failed_tasks(bridge.box) == 0


async def cancel_mailbox(bridge: FakeBridge) -> None:
    box = bridge.it.client.get_workflow_handle(bridge.box.id, run_id=(await bridge.box.describe()).run_id)
    await box.cancel()
    await expect_cancelled(box)


async def until_rotated(bridge: FakeBridge, times: int = 1) -> None:
    async def has_rotated() -> bool:
        return await executions(bridge) > times

    await bridge.it.until(has_rotated)


async def executions(bridge: FakeBridge) -> int:
    return len([e async for e in bridge.it.client.list_workflows(f"WorkflowId = '{bridge.box.id}'")])


async def test_a_mailbox_remembers_over_its_rotations(world: MakeWorld, short_history_client: Client) -> None:
    names = [f"m{n}" for n in range(60)]
    async with world(echo, server=short_history_client) as it, working(it) as bridge:
        for name in names:
            assert await bridge.deliver(message(name)) == ["admitted"]
        view = await bridge.until_over(*names)
        await until_rotated(bridge, 2)
        files = [message(name, file=f"again-{name}") for name in names]
        assert set(await bridge.deliver(*files)) == {"duplicate"}
        await bridge.until(lambda view: not view.orders)
    assert sorted(bridge.done("take")) == sorted(("take", f"{name}.md") for name in names)
    assert len(bridge.done("finish")) == len(bridge.done("skip")) == 60
    assert view.accepted == 60


async def test_a_thousand_messages_leave_a_mailbox_as_small_as_its_memory(
    world: MakeWorld, short_history_client: Client
) -> None:
    names = [f"m{n}" for n in range(1000)]
    async with world(echo, server=short_history_client) as it:
        async with working(it) as bridge:
            for n in range(0, 1000, 100):
                found = [message(name, plan=f"plan {n % 3}") for name in names[n : n + 100]]
                await bridge.deliver_all(*found)
            view = await bridge.until(lambda view: not view.open and not view.orders)
        history = await bridge.box.fetch_history()
        begun_with = history.events[0].workflow_execution_started_event_attributes.input.payloads[0].data
        assert await executions(bridge) > 4
        assert await it.failed_tasks(bridge.box) == 0
    assert Counter(file for _, file in bridge.done("take")) == Counter(f"{name}.md" for name in names)
    assert Counter(file for _, file in bridge.done("finish")) == Counter(f"{name}.md" for name in names)
    assert (view.accepted, view.skipped, view.failed) == (1000, 0, 0)
    assert 100 < len(view.recent) <= 200
    assert len(begun_with) < 1000 * 120 + 128 * 1024


async def test_a_mailbox_rotates_with_tasks_that_no_bridge_carries_out(
    world: MakeWorld, short_history_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.mailbox.MAX_REST_WAIT", commands.LATER / 25)
    names = [f"m{n}" for n in range(60)]
    async with world(echo, server=short_history_client) as it:
        bridge = FakeBridge(it, new_agent())
        for name in names:
            assert await bridge.deliver(message(name)) == ["admitted"]
        await until_rotated(bridge, 1)
        async with bridge.working():
            view = await bridge.until_over(*names)
        assert await it.failed_tasks(bridge.box) == 0
    assert len({file for _, file in bridge.done("take")}) == 60
    assert len(view.recent) == 60


async def test_tasks_in_hand_at_a_rotation_are_not_ordered_twice(
    world: MakeWorld, short_history_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.mailbox.MAX_REST_WAIT", commands.LATER / 25)
    async with world(echo, server=short_history_client) as it:
        bridge = FakeBridge(it, new_agent())
        bridge.gate.clear()
        async with bridge.working():
            for n in range(60):
                await bridge.deliver(message(f"m{n}"))
            await until_rotated(bridge, 1)
            await it.until(lambda: len(bridge.at_a_time) > 1)
            bridge.gate.set()
            view = await bridge.until_over(*(f"m{n}" for n in range(60)))
        assert await it.failed_tasks(bridge.box) == 0
    assert bridge.most_at_once == 1
    assert view.notices == ()


@asynccontextmanager
async def bridged(it: World, folder: MailFolder, patience: PollPolicy) -> AsyncIterator[Bridge]:
    """A bridge that stays up. Its orders are for whoever works on the queue of the folder."""
    bridge, stop = Bridge(it.client, it.queue, folder, patience), asyncio.Event()
    task = asyncio.create_task(bridge.run(stop))
    yield bridge
    stop.set()
    await task


WAKES: pytest.MarkDecorator = pytest.mark.parametrize(
    "patience", [PollPolicy(dormant_after=None), PollPolicy(0, timedelta(0))], ids=str
)


@WAKES
async def test_a_running_bridge_redelivers_pending_messages_to_the_next_mailbox(
    world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: PollPolicy
) -> None:
    monkeypatch.setattr("perdure.process.mailbox_bridge.MAILBOX_CHECK_INTERVAL", 0.2)
    folder = MailFolder(tmp_path / "box", new_agent())
    folder.open_folder()
    for name in "abc":
        task = {"type": "task", "message_id": name, "plan_id": "p", "task_id": name, "from": "bob", "body": "x"}
        folder.below.write(json.dumps(task).encode(), "inbox", "p", f"{name}.json")
    async with world(echo) as it:
        box = FakeBridge(it, folder.agent, folder.id)
        async with bridged(it, folder, patience) as bridge:
            await it.until(lambda: bridge.open == 3)
            if patience.dormant_after is not None:
                await it.until(lambda: bridge.pace.mode is PollMode.dormant)
            await box.box.terminate("lost")
            await it.until(lambda: open_in(box, "abc"))


@WAKES
async def test_a_subtask_for_a_mailbox_that_was_ended_comes_to_the_bridge_that_stays_up(
    world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: PollPolicy
) -> None:
    monkeypatch.setattr("perdure.process.mailbox_bridge.MAILBOX_CHECK_INTERVAL", 0.2)
    folder = MailFolder(tmp_path / "box", new_agent(), outside=True)
    folder.open_folder()
    async with world(echo) as it:
        carrier = FakeBridge(it, folder.agent, folder.id)
        async with carrier.working(), bridged(it, folder, patience) as bridge:
            mode = PollMode.idle if patience.dormant_after is None else PollMode.dormant
            await it.until(lambda: bridge.pace.mode is mode)
            await carrier.box.terminate("lost")
            await signal_mailbox(it.client, it.queue, folder.agent, "dispatch", SENT)
            await it.until(lambda: bool(carrier.done("dispatch")))


async def open_in(carrier: FakeBridge, names: str) -> bool:
    """Of the mailbox that is open now. One that was terminated would still tell what it had."""
    if (await carrier.box.describe()).status is not WorkflowExecutionStatus.RUNNING:
        return False
    return {each.message_id for each in (await carrier.look()).open} == {*names}

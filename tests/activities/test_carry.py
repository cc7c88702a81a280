"""Orders in a folder that others write into as well."""

import asyncio
import json
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from activities.mailbox.client import NOT_KEPT
from activities.mailbox.commands import OrderRunner
from activities.mailbox.folder import MailFolder
from activities.mailbox.message import parse_message
from activities.mailbox.pages import TaskPages
from activities.mailbox.watch import FolderWatcher
from activities.mailbox.writer import REQUEST, MailWriter
from contracts.conversation import TurnEnd
from contracts.mail.commands import BridgeBatch, BridgeResult, BridgeTask, BridgeTaskKind
from contracts.mail.delivery import Ack, InboxMessage, MessageResult, Stage, TaskState, Transition
from decisions.ids import task_key
from decisions.mailbox.delivery import ending_of
from tests.waiting import PATIENCE

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class FakeDelegation:
    """Tells of a subtask what it is asked to."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get_workflow_handle(self, *_: Any) -> "FakeDelegation":
        return self

    async def query(self, *_: Any, **__: Any) -> str:
        return self.text


def message_of_plan(plan: str, **changes: Any) -> InboxMessage:
    """About the task `t1` of this plan."""
    return new_message(1, plan, task=task_key(plan, "t1", None), **changes)


class ForgetfulServer:
    """A server that knows no run any more."""

    def get_workflow_handle(self, *_: Any, **__: Any) -> "ForgetfulServer":
        return self

    async def result(self) -> Any:
        raise RPCError("workflow not found", RPCStatusCode.NOT_FOUND, b"")

    def list_workflows(self, *_: Any, **__: Any) -> Any:
        raise RPCError("nothing is listed", RPCStatusCode.UNAVAILABLE, b"")


class WedgedServer:
    """A lane or delegation that takes no update, as the SDK tells it."""

    def get_workflow_handle(self, *_: Any) -> "WedgedServer":
        return self

    async def execute_update(self, *_: Any, **__: Any) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise WorkflowUpdateRPCTimeoutOrCancelledError from error

    execute_update_with_start_workflow = execute_update


@pytest.fixture
def folder(tmp_path: Path) -> MailFolder:
    found = MailFolder(tmp_path / "box", "writer")
    found.open_folder()
    return found


def new_message(number: int = 1, plan: str = "p", **changes: Any) -> InboxMessage:
    transitions = (Transition(state=TaskState.consumed, at=NOW),)
    known = InboxMessage(
        key=f"key{plan}{number}", task=f"task{number}", folder="f", plan=plan, file=f"{number}.md", sha256="a" * 64,
        message_id=f"m{number}", plan_id=plan, task_id=f"t{number}", sender="you", stage=Stage.admitted, heard_at=NOW,
        transitions=transitions,
    )  # fmt: skip
    return known.model_copy(update=changes)


def write_pending(folder: MailFolder, which: InboxMessage) -> Path:
    path = folder.root / "inbox" / which.plan / ".pending" / which.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    return path


async def run_orders(folder: MailFolder, *orders: BridgeTask, client: Any = None) -> tuple[BridgeResult, ...]:
    carrier = OrderRunner(client, folder, folder.root / "runs", "queue")
    answer = await ActivityEnvironment().run(carrier.carry, BridgeBatch(agent="writer", folder="f", orders=orders))
    return answer.done


def put_message(folder: MailFolder, kind: str = "task", **fields: Any) -> InboxMessage:
    """A message whose file is claimed and waits to be taken."""
    head = {"type": kind, "message_id": "m1", "plan_id": "p", "task_id": "t1", "from": "you", "body": "x", **fields}
    data = json.dumps(head).encode()
    message = new_message(sha256=sha256(data).hexdigest(), is_reply=kind == "reply")
    folder.below.write(data, "inbox", "p", ".pending", message.file)
    return message


@pytest.fixture
def pages(folder: MailFolder) -> TaskPages:
    return TaskPages(FakeDelegation(""), MailWriter(folder))  # type: ignore[arg-type]


def new_task(kind: str, which: InboxMessage, why: str = "") -> BridgeTask:
    return BridgeTask(kind=BridgeTaskKind(kind), letter=which, why=why)


async def test_a_plan_that_is_broken_is_put_off_and_the_others_go_on(folder: MailFolder) -> None:
    broken, well = new_message(1, "broken"), new_message(1)
    (folder.root / "outbox" / "broken").write_text("no folder")
    kept, moved = write_pending(folder, broken), write_pending(folder, well)
    done = await run_orders(
        folder,
        new_task("skip", broken, "SKIPPED_DUPLICATE"),
        new_task("skip", well, "SKIPPED_DUPLICATE"),
        new_task("bury", broken, "what follows about the same file is put off with it"),
        new_task("write_state", new_message(2)),
    )
    assert [each.later for each in done] == [True, False, True, False]
    assert (kept.exists(), moved.exists()) == (True, False)
    assert (folder.root / "outbox/p/task_state_t2.json").exists()
    assert "skip of 1.md: expected a folder" in folder.undone
    assert [each.later for each in await run_orders(folder, new_task("write_state", new_message(2)))] == [False]
    assert folder.undone == ""


@pytest.mark.parametrize("junk", ["[" * 200_000, "1" * 5000, "{", "\0"])
async def test_a_spoiled_ack_is_left_and_another_is_written(folder: MailFolder, junk: str) -> None:
    spoiled = folder.root / "outbox" / "p" / "ack_m1.json"
    spoiled.parent.mkdir()
    spoiled.write_text(junk)
    which = new_message(ending=MessageResult(ack=Ack.failed, details="so"))
    write_pending(folder, which)
    assert not (await run_orders(folder, new_task("finish", which)))[0].later
    assert spoiled.read_text() == junk
    assert json.loads(spoiled.with_name(f"ack_m1.{'a' * 12}.json").read_text())["status"] == "FAILED"


async def test_a_subtask_for_a_peer_outside_is_written_as_its_delegation_tells_it(folder: MailFolder) -> None:
    outside = MailFolder(folder.root, "writer", outside=True, id=folder.id)
    text = '---\ntype: "task"\nmessage_id: "m"\nplan_id: "p"\ntask_id: "t1"\nfrom: "a"\n---\n\nWrite \a it.'
    which = new_message(delegation="d", file="", subtask_id="s")
    assert await run_orders(outside, new_task("dispatch", which), client=FakeDelegation(text)) == (BridgeResult(),)
    written = (folder.root / "inbox" / "p" / "t1-s.md").read_bytes()
    assert written.decode() == text.replace("\a", "\ufffd")
    assert parse_message(written, "p")[1] == "\nWrite \ufffd it."


async def test_a_page_that_cannot_be_written_holds_up_no_task(
    folder: MailFolder, pages: TaskPages, tmp_path: Path
) -> None:
    (folder.root / "tasks" / "t1").symlink_to(tmp_path)
    await pages.begin_page(new_message(), "the task")
    assert not (tmp_path / "task.md").exists()


async def test_a_reply_finds_its_place_among_files_of_others(folder: MailFolder) -> None:
    out = folder.root / "outbox" / "p"
    out.mkdir()
    for name in ("t1-reply.md", "t1-reply.task1.md"):
        (out / name).write_text("of others")
    await run_orders(folder, new_task("finish", new_message(ending=MessageResult(ack=Ack.failed, details="so"))))
    assert (out / "t1-reply.md").read_text() == "of others"
    assert "so" in (out / "t1-reply.task1.md").read_text()


async def test_a_lock_that_is_never_released_holds_up_its_own_plan_alone(
    folder: MailFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.storage.safe_dir.LOCK_TIMEOUT", 0.1)
    orders = (new_task("write_state", new_message(1, "held")), new_task("write_state", new_message(1)))
    with folder.below.lock_folder("outbox", "held"):
        done = await run_orders(folder, *orders)
        assert [each.later for each in done] == [True, False]
        assert "another process holds the lock of this folder: outbox/held" in folder.undone
    assert [each.later for each in await run_orders(folder, *orders)] == [False, False]


async def test_a_bridge_that_sleeps_looks_for_the_pick_that_a_task_waits_for(
    folder: MailFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def take(*_: Any) -> BridgeResult:
        return BridgeResult(run_id="r", is_blocked=True, at=NOW)

    monkeypatch.setattr("activities.mailbox.intake.Intake.take_message", take)
    watcher = FolderWatcher(folder)
    await run_orders(folder, new_task("take", new_message()))
    assert watcher.woken.is_set()


@pytest.mark.parametrize(
    "other",
    [
        message_of_plan("autumn"),
        message_of_plan("autumn", is_reply=True),
        message_of_plan("spring", key="reply", is_reply=True),
    ],
    ids=["a task of another plan", "a reply there", "a reply in its own plan"],
)
async def test_what_a_task_asks_stays_until_its_own_end(folder: MailFolder, other: InboxMessage) -> None:
    asks = message_of_plan("spring")
    writer = MailWriter(folder)
    writer.write_request(asks, "run-1", {"data": ("a", "b")})
    request, ending = folder.root / "tasks/t1" / REQUEST, MessageResult(ack=Ack.failed, details="so")
    await run_orders(folder, new_task("finish", other.model_copy(update={"ending": ending})))
    assert (request.exists(), writer.list_open_requests()) == (True, ["t1"])
    await run_orders(folder, new_task("finish", asks.model_copy(update={"ending": ending})))
    assert (request.exists(), writer.list_open_requests()) == (False, [])


async def test_tasks_of_two_plans_that_are_called_alike_ask_beside_each_other(folder: MailFolder) -> None:
    writer, plans = (
        MailWriter(folder),
        {"run-1": message_of_plan("spring"), "run-2": message_of_plan("autumn")},
    )
    for _ in range(2):  # what is asked again stays where it is
        for run_id, which in plans.items():
            writer.write_request(which, run_id, {"data": ("a", "b")})
    second = f"t1.{plans['run-2'].task[:8]}"
    assert writer.list_open_requests() == ["t1", second]
    asked = {
        name: json.loads((folder.root / "tasks" / name / REQUEST).read_text()) for name in writer.list_open_requests()
    }
    assert {name: each["run_id"] for name, each in asked.items()} == {"t1": "run-1", second: "run-2"}
    writer.close_message_requests(plans["run-2"])
    assert writer.list_open_requests() == ["t1"]


async def test_tasks_of_two_plans_that_are_called_alike_have_a_page_each(folder: MailFolder, pages: TaskPages) -> None:
    spring, autumn = message_of_plan("spring"), message_of_plan("autumn")
    for _ in range(2):
        await pages.begin_page(spring, "of spring")
        await pages.begin_page(autumn, "of autumn")
    names = {each.name: (each / "task.md").read_text() for each in (folder.root / "tasks").iterdir()}
    assert ["of spring" in names["t1"], "of autumn" in names[f"t1.{autumn.task[:8]}"]] == [True, True]
    assert len(names) == 2


async def test_an_edited_page_makes_no_other_folder(folder: MailFolder, pages: TaskPages) -> None:
    (folder.root / "tasks/t1").mkdir()
    (folder.root / "tasks/t1/task.md").write_text("my notes")
    await pages.begin_page(message_of_plan("spring"), "of spring")
    assert [each.name for each in (folder.root / "tasks").iterdir()] == ["t1"]
    assert "of spring" in (folder.root / "tasks/t1/task.md").read_text()


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        (TurnEnd.completed, "done", NOT_KEPT),
        (TurnEnd.dropped, "failed", "the task was dropped before its run began"),
    ],
)
async def test_the_end_of_a_run_that_the_server_has_forgotten_is_written_as_it_was_reported(
    folder: MailFolder, end: TurnEnd, status: str, said: str
) -> None:
    which = new_message(run_id="r", stage=Stage.ending, ending=ending_of(end))
    write_pending(folder, which)
    (done,) = await run_orders(folder, new_task("finish", which), client=ForgetfulServer())
    assert done.ending == which.ending
    head, body = parse_message((folder.root / "outbox/p/t1-reply.md").read_bytes(), "p")
    assert (getattr(head, "status", None), body.strip()) == (status, said)
    page = (folder.root / "tasks/t1/task.md").read_text()
    assert f"status: {status}\n" in page
    assert said in page


async def test_the_result_of_a_done_task_that_is_gone_is_sent_again_as_done(folder: MailFolder) -> None:
    which = new_message()
    write_pending(folder, which)
    again = new_task("resend", which).model_copy(update={"run_id": "r"})
    assert await run_orders(folder, again, client=ForgetfulServer()) == (BridgeResult(),)
    head, body = parse_message((folder.root / "outbox/p/t1-reply.md").read_bytes(), "p")
    assert (getattr(head, "status", None), body.strip()) == ("done", NOT_KEPT)


@pytest.mark.parametrize("kind", ["task", "reply"])
async def test_a_workflow_that_takes_no_message_holds_up_no_other(
    folder: MailFolder, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("activities.mailbox.intake.ANSWERED_WITHIN", 0.1)
    more = {"subtask_id": "s", "status": "done"} if kind == "reply" else {}
    which = put_message(folder, kind, task_id="r.1", **more)
    orders = (new_task("take", which), new_task("write_state", new_message(2)))
    async with asyncio.timeout(PATIENCE):
        assert await run_orders(folder, *orders, client=WedgedServer()) == (BridgeResult(later=True), BridgeResult())
    assert "take of 1.md: no answer within 0.1 s; it will be retried" in folder.undone


async def test_a_take_that_is_called_off_ends_at_once(folder: MailFolder) -> None:
    which = put_message(folder)
    task = asyncio.create_task(run_orders(folder, new_task("take", which), client=WedgedServer()))
    done, _ = await asyncio.wait({task}, timeout=0.5)
    assert not done
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_input_that_was_just_written_puts_its_task_off(folder: MailFolder) -> None:
    which = put_message(folder, inputs=[{"name": "data", "match": "*.csv"}])
    folder.below.write(b"1", "inputs", "a.csv")
    assert await run_orders(folder, new_task("take", which)) == (BridgeResult(later=True),)

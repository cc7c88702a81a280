"""Messages in a folder that others write into as well."""

import asyncio
import json
import os
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from perdure.contracts.people import Work
from perdure.contracts.run.limits import Share
from perdure.decisions.ids import task_key
from perdure.features.delegation.contract import DelegationRequest, Subtask
from perdure.features.delegation.rules import begin_delegation, peer_message
from perdure.features.mailbox.activities.folder import MailFolder
from perdure.features.mailbox.activities.handler import NOT_KEPT, MessageHandler, NotYetError
from perdure.features.mailbox.activities.message import parse_message
from perdure.features.mailbox.activities.pages import TaskPages
from perdure.features.mailbox.activities.peers import OutsidePeer
from perdure.features.mailbox.activities.records import TaskRecords
from perdure.features.mailbox.activities.watch import FolderWatcher
from perdure.features.mailbox.activities.writer import REQUEST, MailWriter
from perdure.features.mailbox.contract import (
    Ack,
    DeliveryVerdict,
    InboxMessage,
    MailDispatch,
    MessageResult,
    Stage,
    TaskHead,
    TaskState,
    Transition,
)
from perdure.features.mailbox.rules.admission import SKIPPED_DUPLICATE, FileJudgement
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

    describe = result
    id = "run:r"

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
        key=f"key{plan}{number}", task=f"task{number}", plan=plan, file=f"{number}.md", sha256="a" * 64,
        message_id=f"m{number}", plan_id=plan, task_id=f"t{number}", sender="you", stage=Stage.admitted,
        transitions=transitions,
    )  # fmt: skip
    return known.evolve(**changes)


def write_pending(folder: MailFolder, which: InboxMessage) -> Path:
    path = folder.root / "inbox" / which.plan / ".pending" / which.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    return path


def handler_of(folder: MailFolder, client: Any = None) -> MessageHandler:
    writer = MailWriter(folder)
    return MessageHandler(client, writer, TaskPages(client, writer), folder.root / "runs", "queue")


async def end(folder: MailFolder, which: InboxMessage, client: Any = None) -> None:
    """Write the end of a message."""
    assert await handler_of(folder, client).advance(which.evolve(stage=Stage.ending)) is None


async def skip(folder: MailFolder, which: InboxMessage) -> None:
    await handler_of(folder).put_aside(FileJudgement(DeliveryVerdict.duplicate, which, SKIPPED_DUPLICATE))


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


async def test_a_plan_that_is_broken_refuses_and_the_others_go_on(folder: MailFolder) -> None:
    broken, well = new_message(1, "broken"), new_message(1)
    (folder.root / "outbox" / "broken").write_text("no folder")
    kept, moved = write_pending(folder, broken), write_pending(folder, well)
    with pytest.raises(OSError, match="expected a folder"):
        await skip(folder, broken)
    await skip(folder, well)
    assert (kept.exists(), moved.exists()) == (True, False)


@pytest.mark.parametrize("junk", ["[" * 200_000, "1" * 5000, "{", "\0"])
async def test_a_spoiled_ack_is_left_and_another_is_written(folder: MailFolder, junk: str) -> None:
    spoiled = folder.root / "outbox" / "p" / "ack_m1.json"
    spoiled.parent.mkdir()
    spoiled.write_text(junk)
    which = new_message(ending=MessageResult(ack=Ack.failed, details="so"))
    write_pending(folder, which)
    await end(folder, which)
    assert spoiled.read_text() == junk
    assert json.loads(spoiled.with_name(f"ack_m1.{'a' * 12}.json").read_text())["status"] == "FAILED"


async def test_a_subtask_for_a_peer_outside_is_written_as_its_delegation_tells_it(folder: MailFolder) -> None:
    outside = MailFolder(folder.root, "writer", outside=True, id=folder.id)
    text = '---\ntype: "task"\nmessage_id: "m"\nplan_id: "p"\ntask_id: "t1"\nfrom: "a"\n---\n\nWrite \a it.'
    client: Any = FakeDelegation(text)
    peer = OutsidePeer(client, MailWriter(outside))
    asked = MailDispatch(delegation="d", plan_id="p", task_id="t1", subtask_id="s", sender="a")
    for _ in range(2):
        await ActivityEnvironment().run(peer.dispatch_mail, asked)
    file = folder.root / "inbox" / "p" / "t1-s.md"
    assert file.read_text() == text.replace("\a", "\ufffd")
    assert parse_message(file.read_bytes(), "p")[1] == "\nWrite \ufffd it."
    records = TaskRecords(folder.below)
    assert [message.subtask_id for message in records.open_messages()] == ["s"]
    for _ in range(2):
        await ActivityEnvironment().run(peer.withdraw_mail, asked)
    assert (file.exists(), list(records.open_messages()), peer.sent) == (False, [], {})


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
    await end(folder, new_message(ending=MessageResult(ack=Ack.failed, details="so")))
    assert (out / "t1-reply.md").read_text() == "of others"
    assert "so" in (out / "t1-reply.task1.md").read_text()


async def test_a_lock_that_is_never_released_holds_up_its_own_plan_alone(
    folder: MailFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.activities.storage.workspace.LOCK_TIMEOUT", 0.1)
    held, free = new_message(1, "held"), new_message(1)
    write_pending(folder, held)
    write_pending(folder, free)
    with folder.below.lock_folder("outbox", "held"):
        with pytest.raises(OSError, match="another process holds the lock of this folder"):
            await skip(folder, held)
        await skip(folder, free)
    await skip(folder, held)


async def test_a_bridge_that_sleeps_looks_for_the_pick_that_a_task_waits_for(
    folder: MailFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def submit(*_: Any, **__: Any) -> None:
        pass

    monkeypatch.setattr("perdure.features.mailbox.activities.handler.submit_to_lane", submit)
    watcher = FolderWatcher(folder)
    which = put_message(folder, inputs=[{"name": "data", "match": "*.csv"}])
    for name in ("a.csv", "b.csv"):
        folder.below.write(b"1", "inputs", name)
        os.utime(folder.root / "inputs" / name, (1, 1))
    begun = await handler_of(folder).advance(which)
    assert begun is not None
    assert (begun.stage, begun.transitions[-1].state) == (Stage.running, TaskState.blocked)
    assert list(TaskRecords(folder.below).open_messages()) == [begun]
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
    await end(folder, other.evolve(ending=ending))
    assert (request.exists(), writer.list_open_requests()) == (True, ["t1"])
    await end(folder, asks.evolve(ending=ending))
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


async def test_the_end_of_a_run_that_the_server_has_forgotten_is_written_as_unknown(folder: MailFolder) -> None:
    which = new_message(run_id="r", stage=Stage.running)
    write_pending(folder, which)
    assert await handler_of(folder, ForgetfulServer()).advance(which) is None
    head, body = parse_message((folder.root / "outbox/p/t1-reply.md").read_bytes(), "p")
    assert (getattr(head, "status", None), body.strip()) == ("failed", "its end is not known")
    page = (folder.root / "tasks/t1/task.md").read_text()
    assert "status: failed\n" in page
    assert "its end is not known" in page


async def test_the_result_of_a_done_task_that_is_gone_is_sent_again_as_done(folder: MailFolder) -> None:
    which = new_message()
    write_pending(folder, which)
    again = FileJudgement(DeliveryVerdict.task_done, which, "RESULT_SENT_AGAIN", "r")
    await handler_of(folder, ForgetfulServer()).put_aside(again)
    head, body = parse_message((folder.root / "outbox/p/t1-reply.md").read_bytes(), "p")
    assert (getattr(head, "status", None), body.strip()) == ("done", NOT_KEPT)


@pytest.mark.parametrize("kind", ["task", "reply"])
async def test_a_workflow_that_takes_no_message_holds_up_no_other(
    folder: MailFolder, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("perdure.features.mailbox.activities.handler.ANSWERED_WITHIN", 0.1)
    more = {"subtask_id": "s", "status": "done"} if kind == "reply" else {}
    which = put_message(folder, kind, task_id="r.1", **more)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
            await handler_of(folder, WedgedServer()).advance(which)


async def test_a_take_that_is_called_off_ends_at_once(folder: MailFolder) -> None:
    which = put_message(folder)
    task = asyncio.create_task(handler_of(folder, WedgedServer()).advance(which))
    done, _ = await asyncio.wait({task}, timeout=0.5)
    assert not done
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_input_that_was_just_written_puts_its_task_off(folder: MailFolder) -> None:
    which = put_message(folder, inputs=[{"name": "data", "match": "*.csv"}])
    folder.below.write(b"1", "inputs", "a.csv")
    with pytest.raises(NotYetError):
        await handler_of(folder).advance(which)


def test_a_message_to_a_peer_outside_carries_the_work_that_it_belongs_to_and_so_does_what_comes_of_it() -> None:
    work = Work(root="R1", has_read=("web",), requesters=("ann",))
    subtask = Subtask(id="a", agent="scribe", instructions="Write.")
    asked = DelegationRequest(
        run_id="R2", agent="lead", step=1, depth=0, max_depth=3, budget=Share(steps=9), subtasks=(subtask,), work=work
    )
    outside = asked.evolve(mailboxes=("scribe",))
    text = peer_message(outside, begin_delegation(outside), subtask)
    head, body = parse_message(text.encode(), "R2")
    assert isinstance(head, TaskHead)
    assert (head.work, body.strip()) == (work, "Write.")
    assert "work" not in peer_message(asked, begin_delegation(asked), subtask)  # a run has it with its start


async def test_the_run_of_a_message_belongs_to_the_work_that_the_message_names(
    folder: MailFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    async def submit(*args: Any, **_: Any) -> None:
        sent.append(args[3])

    monkeypatch.setattr("perdure.features.mailbox.activities.handler.submit_to_lane", submit)
    which = put_message(folder, work={"root": "R1", "has_read": ["web"]})
    await handler_of(folder).advance(which)
    assert sent[0].work == Work(root="R1", has_read=("web",))

"""The bridge's cycle, beside a mailbox that answers as it is told."""

import asyncio
import errno
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.service import RPCError, RPCStatusCode
from watchfiles import Change

from activities.mailbox.folder import MailFolder
from activities.mailbox.intake import MAX_BYTES
from activities.mailbox.pages import TaskPages
from activities.mailbox.picks import InputPicks
from activities.mailbox.watch import FolderWatcher
from contracts.mail.mailbox import Delivered, DeliveryVerdict
from decisions.mailbox.poll_mode import PollMode, PollPolicy
from perdure.process.mailbox_bridge import FILE_GONE, SMALL_BATCH, Bridge

SLEEPY = PollPolicy(idle_after=1, dormant_after=timedelta(seconds=0.1))
Answer = Callable[[list[dict[str, Any]]], list[DeliveryVerdict]]


class FakeClient:
    """Keeps what was delivered."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.delivered: list[list[dict[str, Any]]] = []

    async def execute_update_with_start_workflow(self, update: str, request: Any, **_: Any) -> Delivered:
        given = request.get("deliveries", [])
        self.delivered.append(given)
        return Delivered(verdicts=tuple(self.answer(given)), open=0)

    def get_workflow_handle(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("nothing is asked for")


def client_of(bridge: Bridge) -> FakeClient:
    return cast("FakeClient", bridge.client)


def admitted(given: list[dict[str, Any]]) -> list[DeliveryVerdict]:
    return [DeliveryVerdict.admitted if each.get("head") else DeliveryVerdict.dead for each in given]


def task(name: str) -> dict[str, Any]:
    return {"type": "task", "message_id": name, "plan_id": "p", "task_id": name, "from": "a", "body": "x"}


def put(bridge: Bridge, name: str, text: str | None = None) -> None:
    path = bridge.folder.root / "inbox" / "p" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(task(name)) if text is None else text)
    os.utime(path, (1, 1))


@pytest.fixture
def bridge(tmp_path: Path) -> Bridge:
    folder = MailFolder(tmp_path / "box", "writer")
    folder.open_folder()
    client: Any = FakeClient(admitted)
    return Bridge(client, "queue", folder, PollPolicy(idle_after=1, dormant_after=None))


async def holds(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while True:
        if claim():
            return
        assert time.monotonic() < deadline, "it never came to hold"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def running(bridge: Bridge) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(bridge.run(stop))
    yield
    stop.set()
    await task


async def run_until(bridge: Bridge, claim: Callable[[], bool]) -> None:
    async with running(bridge):
        await holds(claim)


def lines(bridge: Bridge) -> list[dict[str, Any]]:
    path = bridge.folder.root / "deliveries.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_messages_are_delivered_and_listed(bridge: Bridge) -> None:
    put(bridge, "a.json")
    put(bridge, "bad.json", "no")
    await run_until(bridge, lambda: len(lines(bridge)) == 2)
    listed = {(each["verdict"], each.get("message_id")) for each in lines(bridge)}
    assert listed == {("admitted", "a.json"), ("dead", None)}


async def test_a_mailbox_that_is_away_is_logged_once_and_gets_everything_later(bridge: Bridge, caplog: Any) -> None:
    put(bridge, "a.json")
    tries = [0]

    def away(given: list[dict[str, Any]]) -> list[DeliveryVerdict]:
        tries[0] += 1
        if tries[0] < 4:
            raise RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"")
        return admitted(given)

    client_of(bridge).answer = away
    await run_until(bridge, lambda: len(lines(bridge)) == 1)
    assert [record.message for record in caplog.records].count("agent.mail.trouble") == 1
    assert bridge.trouble == ""


async def test_a_full_mailbox_gets_few_at_a_time_until_it_has_all(bridge: Bridge) -> None:
    for number in range(30):
        put(bridge, f"{number}.json")
    taken: list[str] = []

    def full(given: list[dict[str, Any]]) -> list[DeliveryVerdict]:
        first = given[:7]
        taken.extend(each["file"] for each in first)
        return [DeliveryVerdict.admitted] * len(first) + [DeliveryVerdict.full] * (len(given) - len(first))

    client_of(bridge).answer = full
    await run_until(bridge, lambda: len(taken) == 30 and len(lines(bridge)) == 30)
    assert len(set(taken)) == 30
    assert max(len(given) for given in client_of(bridge).delivered[2:]) <= 2 * SMALL_BATCH


async def test_a_disk_that_refuses_does_not_end_the_bridge(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bridge, "a.json")
    rename, tries = os.rename, [0]

    def refuses(*args: Any, **more: Any) -> None:
        tries[0] += 1
        if tries[0] < 3:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), "a.json")
        rename(*args, **more)

    monkeypatch.setattr(os, "rename", refuses)
    await run_until(bridge, lambda: bool(bridge.trouble))
    assert bridge.trouble.endswith("it is read-only: a.json")
    await run_until(bridge, lambda: len(lines(bridge)) == 1)


async def test_an_unreadable_plan_holds_up_no_other_and_is_delivered_once_it_is_repaired(bridge: Bridge) -> None:
    put(bridge, "a.json")
    (bridge.folder.root / "inbox/p/.pending").write_text("")
    bridge.patience = SLEEPY
    async with running(bridge):
        await holds(lambda: bridge.is_quiet and "p/.pending: expected a folder" in bridge.last_error)
        assert bridge.trouble == ""
        cycle = bridge.cycle
        await holds(lambda: bridge.cycle > cycle + 2)  # it stays awake: no event tells that it was mended
        (bridge.folder.root / "inbox/p/.pending").unlink()
        await holds(lambda: verdicts(bridge) == ["admitted"] and not bridge.last_error)


async def test_picks_and_pages_are_updated_although_deliveries_fail(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, pages = [0], [0]

    async def look(_: InputPicks) -> int:
        looks[0] += 1
        return 0

    async def refresh(_: TaskPages) -> None:
        pages[0] += 1

    async def refuses(_: Bridge) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(InputPicks, "check_requests", look)
    monkeypatch.setattr(TaskPages, "refresh_pages", refresh)
    monkeypatch.setattr(Bridge, "_deliver_next", refuses)
    monkeypatch.setattr("perdure.process.mailbox_bridge.PAGE_REFRESH_CYCLES", 2)
    bridge.open = 1
    await run_until(bridge, lambda: looks[0] > 1 and pages[0] > 0)
    assert bridge.trouble.endswith("the disk is full")
    looks[0] = pages[0] = 0
    (bridge.folder.root / ".mailbox.json").write_text('{"id": "other", "agent": "writer"}')
    again = Bridge(bridge.client, "queue", bridge.folder)
    again.open = 1
    await run_until(again, lambda: again.cycle > 2)
    assert "has become another mailbox" in again.trouble
    assert (looks, pages) == ([0], [0])


async def test_a_bridge_that_sleeps_is_woken_by_a_file_and_not_by_its_own(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, matters = list[str](), FolderWatcher._is_relevant

    def notes(watcher: FolderWatcher, change: Change, path: str) -> bool:
        wakes = matters(watcher, change, path)
        seen.append(f"{Path(path).name} wakes" if wakes else Path(path).name)
        return wakes

    monkeypatch.setattr(FolderWatcher, "_is_relevant", notes)
    (bridge.folder.root / "inbox" / "p").mkdir()
    bridge.patience = SLEEPY
    async with running(bridge):
        await holds(lambda: bridge.pace.mode is PollMode.dormant)
        cycle = bridge.cycle
        bridge.folder.below.write(b"x", "outbox", "p", "ack.json")
        (bridge.folder.root / "inbox" / "p" / ".last").write_text("")
        await holds(lambda: ".last" in seen)  # events come in their order
        assert not [each for each in seen if each.endswith("wakes")]
        assert bridge.cycle == cycle
        put(bridge, "a.json")
        await holds(lambda: bool(lines(bridge)))
        assert "a.json wakes" in seen


def blocks(given: list[dict[str, Any]]) -> list[DeliveryVerdict]:
    """As a mailbox does."""
    verdicts = {FILE_GONE: DeliveryVerdict.dead, None: DeliveryVerdict.admitted}
    return [DeliveryVerdict.blocked if each["missing"] else verdicts[each.get("fault")] for each in given]


def waits_for(bridge: Bridge, name: str, match: str) -> None:
    put(bridge, name, json.dumps({**task(name), "inputs": [{"name": "data", "match": match}]}))


def verdicts(bridge: Bridge) -> list[str]:
    return [each["verdict"] for each in lines(bridge)]


async def test_an_input_that_is_still_being_written_is_looked_at_until_it_rests(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    client_of(bridge).answer = blocks
    bridge.patience = SLEEPY
    waits_for(bridge, "a.json", "*.csv")
    monkeypatch.setattr("perdure.process.mailbox_bridge.INPUT_DELAY", 0.0)  # it looks at once
    async with running(bridge):
        await holds(lambda: verdicts(bridge) == ["blocked"] and bridge.pace.mode is PollMode.dormant)
        (bridge.folder.root / "inputs" / "rates.csv").write_text("1")
        await holds(lambda: verdicts(bridge) == ["blocked", "admitted"])


async def test_without_file_watches_inputs_are_polled(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    client_of(bridge).answer = blocks
    waits_for(bridge, "a.json", "*.csv")
    monkeypatch.setattr("perdure.process.mailbox_bridge.UNDELIVERED_SCAN_INTERVAL", 0.3)

    def refuses(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "OS file watch limit reached")

    monkeypatch.setattr("activities.mailbox.watch.awatch", refuses)
    async with running(bridge):
        await holds(lambda: verdicts(bridge) == ["blocked"])
        path = bridge.folder.root / "inputs" / "rates.csv"
        path.write_text("1")
        os.utime(path, (1, 1))
        await holds(lambda: verdicts(bridge) == ["blocked", "admitted"])
    assert ["watch limit" in record.getMessage() for record in caplog.records].count(True) == 1


async def test_links_are_not_watched_and_files_in_new_folders_wake(bridge: Bridge) -> None:
    client_of(bridge).answer = blocks
    (bridge.folder.root / "inbox" / "plan").symlink_to("/usr")
    (bridge.folder.root / "inputs" / "more").symlink_to("/usr")
    waits_for(bridge, "a.json", "new/*.csv")
    bridge.patience = SLEEPY
    async with running(bridge):
        await holds(lambda: verdicts(bridge) == ["blocked"] and bridge.pace.mode is PollMode.dormant)
        (bridge.folder.root / "inputs" / "new").mkdir()
        await holds(lambda: bridge.pace.mode is PollMode.idle)
        await holds(lambda: bridge.pace.mode is PollMode.dormant)
        assert watches() <= 10
        (bridge.folder.root / "inputs" / "new" / "a.csv").write_text("1")
        await holds(lambda: verdicts(bridge) == ["blocked", "admitted"])


def watches() -> int:
    """Of this process."""
    infos = [each.read_text() for each in Path("/proc/self/fdinfo").iterdir() if each.exists()]
    return sum(each.count("inotify wd") for each in infos)


async def test_a_file_that_is_taken_away_while_it_waits_for_inputs_fails_its_message(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    client_of(bridge).answer = blocks
    waits_for(bridge, "a.json", "*.csv")
    monkeypatch.setattr("perdure.process.mailbox_bridge.UNDELIVERED_SCAN_INTERVAL", 0.1)
    async with running(bridge):
        await holds(lambda: verdicts(bridge) == ["blocked"])
        (pending,) = (bridge.folder.root / "inbox/p/.pending").iterdir()
        pending.unlink()
        await holds(lambda: verdicts(bridge) == ["blocked", "dead"])
        cycle = bridge.cycle
        await holds(lambda: bridge.cycle > cycle + 2)
    assert lines(bridge)[1]["fault"] == FILE_GONE
    assert len(lines(bridge)) == 2


async def test_large_heads_are_delivered_in_batches_that_a_mailbox_takes(bridge: Bridge) -> None:
    for number in range(60):
        head = {"type": "reply", "message_id": f"m{number}", "plan_id": "p", "task_id": "t", "from": "a"}
        more = {"status": "done", "artifacts": ["\N{GRINNING FACE}" * 10_000], "body": "x"}
        put(bridge, f"{number}.json", json.dumps({**head, **more}, ensure_ascii=False))
    await run_until(bridge, lambda: len(lines(bridge)) == 60)
    assert max(len(json.dumps(given)) for given in client_of(bridge).delivered) < MAX_BYTES + 60
    assert len(client_of(bridge).delivered) < 15


async def test_unreadable_messages_hold_up_no_other(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.json", "denied.json", "broken.json"):
        put(bridge, name)
    read, tries = MailFolder.read_message_file, [0]

    def refuses(self: MailFolder, plan: str, file: str) -> bytes:
        if "denied" in file:
            raise PermissionError(errno.EACCES, "Permission denied", file)
        tries[0] += "broken" in file
        if "broken" in file and tries[0] < 4:
            raise OSError(errno.EIO, "Input/output error", file)
        return read(self, plan, file)

    monkeypatch.setattr(MailFolder, "read_message_file", refuses)
    monkeypatch.setattr("perdure.process.mailbox_bridge.UNDELIVERED_SCAN_INTERVAL", 0.1)
    monkeypatch.setattr("perdure.process.mailbox_bridge.UNDELIVERED_DELAY", 0.1)
    await run_until(bridge, lambda: len(lines(bridge)) == 3)
    assert sorted(verdicts(bridge)) == ["admitted", "admitted", "dead"]


async def test_an_unprintable_name_in_pending_is_replaced(bridge: Bridge) -> None:
    pending = bridge.folder.root / "inbox/p/.pending"
    pending.mkdir(parents=True)
    for name in (b"\xff.md", b"x" * 252 + b".md"):
        (pending / os.fsdecode(name)).write_text("no")
    await run_until(bridge, lambda: len(lines(bridge)) == 2)
    assert sorted(each.name for each in pending.iterdir()) == sorted(each["file"] for each in lines(bridge))


async def test_a_claimed_message_is_delivered_although_its_claim_is_not_durable(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bridge, "a.json")
    fsync = os.fsync

    def refuses(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == ".pending":
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuses)
    await run_until(bridge, lambda: len(lines(bridge)) == 1)


async def test_a_folder_that_is_removed_and_comes_back_is_the_same_mailbox(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.process.mailbox_bridge.UNDELIVERED_SCAN_INTERVAL", 0.1)
    own = bridge.folder.id
    async with running(bridge):
        await holds(lambda: bridge.cycle > 1)
        (bridge.folder.root / ".mailbox.json").unlink()
        await holds((bridge.folder.root / ".mailbox.json").exists)
        bridge.patience = SLEEPY
        await holds(lambda: bridge.pace.mode is PollMode.dormant)
        shutil.rmtree(bridge.folder.root, ignore_errors=True)
        await holds((bridge.folder.root / "inbox").exists)
        put(bridge, "a.json")
        await holds(lambda: bool(lines(bridge)))
        assert json.loads((bridge.folder.root / ".mailbox.json").read_text())["id"] == bridge.folder.id == own
        (bridge.folder.root / ".mailbox.json").write_text('{"id": "other", "agent": "writer"}')
        put(bridge, "b.json")
        await holds(lambda: "has become another mailbox" in bridge.trouble)


async def test_trouble_that_repeats_each_cycle_is_logged_once(bridge: Bridge, caplog: Any) -> None:
    (bridge.folder.root / "tasks" / ".asked").symlink_to("/etc")
    await run_until(bridge, lambda: bridge.cycle > 3)
    assert [record.message for record in caplog.records].count("agent.mail.trouble") == 1


async def test_a_folder_with_an_unprintable_name_leaves_the_others_watched(bridge: Bridge) -> None:
    put(bridge, "a.json")
    (bridge.folder.root / "inbox" / os.fsdecode(b"pl\xff")).mkdir()
    async with running(bridge):
        await holds(lambda: bridge.is_quiet and bridge.pace.mode is PollMode.idle)
        bridge.patience = SLEEPY
        await holds(lambda: bridge.pace.mode is PollMode.dormant)
        put(bridge, "b.json")
        await holds(lambda: len(lines(bridge)) == 2)


async def test_a_bridge_becomes_quiet_without_file_watches(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "OS file watch limit reached")

    monkeypatch.setattr("activities.mailbox.watch.awatch", refuses)
    put(bridge, "a.json")
    await run_until(bridge, lambda: bool(lines(bridge)) and bridge.is_quiet)


async def test_a_message_that_the_disk_does_not_return_is_reported(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error", "a.json")

    monkeypatch.setattr(MailFolder, "read_message_file", refuses)
    put(bridge, "a.json")
    await run_until(bridge, lambda: "is tried again: Input/output error" in bridge.last_error)
    assert [place.plan for place in bridge.unread] == ["p"]

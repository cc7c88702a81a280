"""The bridge's cycle, beside a server that takes what it is given, and whose runs do not end."""

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

from perdure.contracts.bounds import Backoff
from perdure.features.mailbox.activities.folder import MailFolder
from perdure.features.mailbox.activities.pages import TaskPages
from perdure.features.mailbox.activities.picks import InputPicks
from perdure.features.mailbox.activities.watch import FolderWatcher
from perdure.features.mailbox.bridge import Bridge
from perdure.features.mailbox.contract import InboxMessage, Stage
from perdure.features.mailbox.rules import turns
from perdure.features.mailbox.rules.admission import FILE_GONE
from perdure.features.mailbox.rules.poll_mode import PollMode, PollPolicy

OPEN = InboxMessage(
    key="k", task="t", plan="p", message_id="m", plan_id="p", task_id="t", sender="a", stage=Stage.blocked
)
SLEEPY = PollPolicy(idle_after=1, dormant_after=timedelta(seconds=0.1))


class FakeClient:
    """Keeps what was submitted. No run ends."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.failures: list[Exception] = []

    async def execute_update_with_start_workflow(self, _: str, request: Any, **__: Any) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.submitted.append(request["raw"]["message_id"])

    def get_workflow_handle(self, *_: Any, **__: Any) -> Any:
        return self

    async def result(self) -> Any:
        await asyncio.Event().wait()

    async def describe(self, **_: Any) -> Any:
        raise RPCError("nothing is described", RPCStatusCode.UNAVAILABLE, b"")


def client_of(bridge: Bridge) -> FakeClient:
    return cast("FakeClient", bridge.client)


def task(name: str) -> dict[str, Any]:
    return {"type": "task", "message_id": name, "plan_id": "p", "task_id": name, "from": "a", "body": "x"}


def put(bridge: Bridge, name: str, text: str | None = None, plan: str = "p") -> None:
    path = bridge.folder.root / "inbox" / plan / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(task(name)) if text is None else text)
    os.utime(path, (1, 1))


@pytest.fixture
def bridge(tmp_path: Path) -> Bridge:
    folder = MailFolder(tmp_path / "box", "writer")
    folder.open_folder()
    return bridge_of(folder)


def bridge_of(folder: MailFolder) -> Bridge:
    client: Any = FakeClient()
    workspaces = folder.root.parent / "runs"
    return Bridge(client, "queue", folder, workspaces, PollPolicy(idle_after=1, dormant_after=None))


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


async def test_a_server_that_is_away_is_logged_once_and_gets_everything_later(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr("perdure.features.mailbox.bridge.STEP_RETRIES", Backoff(0.01, 0.01))
    put(bridge, "a.json")
    client_of(bridge).failures += [RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"") for _ in range(3)]
    await run_until(bridge, lambda: client_of(bridge).submitted == ["a.json"] and not bridge.last_error)
    assert ["connection refused" in record.getMessage() for record in caplog.records].count(True) == 1
    assert verdicts(bridge) == ["admitted"]


async def test_a_flood_stays_in_the_inbox_and_lets_other_plans_in(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "MAX_RUNNING", 1)
    monkeypatch.setattr(turns, "MAX_WAITING", 5)
    monkeypatch.setattr("perdure.features.mailbox.bridge.MAX_CLAIMS", 2)
    for number in range(30):
        put(bridge, f"{number}.json")
    async with running(bridge):
        await holds(lambda: len(lines(bridge)) > 4)
        put(bridge, "other.json", json.dumps({**task("other"), "plan_id": "q"}), plan="q")
        await holds(lambda: "other" in client_of(bridge).submitted)
    assert len(lines(bridge)) < 12
    assert len(list((bridge.folder.root / "inbox/p").glob("*.json"))) > 18


async def test_of_two_bridges_one_serves_the_folder_and_the_other_takes_over(bridge: Bridge) -> None:
    second = bridge_of(MailFolder(bridge.folder.root, "writer", id=bridge.folder.id))
    async with running(second):
        async with running(bridge):
            await holds(lambda: {bridge.pace.mode, second.pace.mode} > {PollMode.standby})
            first = bridge if second.pace.mode is PollMode.standby else second
            other = second if first is bridge else bridge
            put(bridge, "a.json")
            await holds(lambda: client_of(first).submitted == ["a.json"])
            await holds(lambda: other.is_quiet)
            assert (await other.open_work()) == (await first.open_work())
            if first is second:
                return
        put(bridge, "b.json")
        await holds(lambda: "b.json" in client_of(second).submitted)
        assert {"a.json", "b.json"} == {message.message_id for message in second.messages.values()}


async def test_a_disk_that_refuses_does_not_end_the_bridge(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bridge, "a.json")
    rename, attempts = os.rename, [0]

    def refuses(*args: Any, **more: Any) -> None:
        attempts[0] += 1
        if attempts[0] < 3:
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

    async def refresh(*_: Any) -> None:
        pages[0] += 1

    async def refuses(_: Bridge) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(InputPicks, "check_requests", look)
    monkeypatch.setattr(TaskPages, "refresh_pages", refresh)
    monkeypatch.setattr(Bridge, "_admit_next", refuses)
    monkeypatch.setattr("perdure.features.mailbox.bridge.PAGE_REFRESH_CYCLES", 2)
    bridge.messages["k"] = OPEN
    await run_until(bridge, lambda: looks[0] > 1 and pages[0] > 0)
    assert bridge.trouble.endswith("the disk is full")
    looks[0] = pages[0] = 0
    (bridge.folder.root / ".mailbox.json").write_text('{"id": "other", "agent": "writer"}')
    again = bridge_of(bridge.folder)
    again.messages["k"] = OPEN
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


def waits_for(bridge: Bridge, name: str, match: str) -> None:
    put(bridge, name, json.dumps({**task(name), "inputs": [{"name": "data", "match": match}]}))


def verdicts(bridge: Bridge) -> list[str]:
    return [each["verdict"] for each in lines(bridge)]


async def test_an_input_that_is_still_being_written_is_checked_until_it_rests(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge.patience = SLEEPY
    waits_for(bridge, "a.json", "*.csv")
    monkeypatch.setattr("perdure.features.mailbox.bridge.INPUT_DELAY", 0.0)  # it looks at once
    async with running(bridge):
        await holds(lambda: verdicts(bridge) == ["blocked"] and bridge.pace.mode is PollMode.dormant)
        (bridge.folder.root / "inputs" / "rates.csv").write_text("1")
        await holds(lambda: verdicts(bridge) == ["blocked", "admitted"])


async def test_without_file_watches_inputs_are_polled(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    waits_for(bridge, "a.json", "*.csv")
    monkeypatch.setattr("perdure.features.mailbox.bridge.UNCLAIMED_SCAN_INTERVAL", 0.3)

    def refuses(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "OS file watch limit reached")

    monkeypatch.setattr("perdure.features.mailbox.activities.watch.awatch", refuses)
    async with running(bridge):
        await holds(lambda: verdicts(bridge) == ["blocked"])
        path = bridge.folder.root / "inputs" / "rates.csv"
        path.write_text("1")
        os.utime(path, (1, 1))
        await holds(lambda: verdicts(bridge) == ["blocked", "admitted"])
    assert ["watch limit" in record.getMessage() for record in caplog.records].count(True) == 1


async def test_links_are_not_watched_and_files_in_new_folders_wake(bridge: Bridge) -> None:
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
    waits_for(bridge, "a.json", "*.csv")
    monkeypatch.setattr("perdure.features.mailbox.bridge.UNCLAIMED_SCAN_INTERVAL", 0.1)
    async with running(bridge):
        await holds(lambda: verdicts(bridge) == ["blocked"])
        (pending,) = (bridge.folder.root / "inbox/p/.pending").iterdir()
        pending.unlink()
        await holds(lambda: verdicts(bridge) == ["blocked", "dead"])
        cycle = bridge.cycle
        await holds(lambda: bridge.cycle > cycle + 2)
    assert lines(bridge)[1]["fault"] == FILE_GONE
    assert len(lines(bridge)) == 2


async def test_unreadable_messages_hold_up_no_other(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.json", "denied.json", "broken.json"):
        put(bridge, name)
    read, attempts = MailFolder.read_message_file, [0]

    def refuses(self: MailFolder, plan: str, file: str) -> bytes:
        if "denied" in file:
            raise PermissionError(errno.EACCES, "Permission denied", file)
        attempts[0] += "broken" in file
        if "broken" in file and attempts[0] < 4:
            raise OSError(errno.EIO, "Input/output error", file)
        return read(self, plan, file)

    monkeypatch.setattr(MailFolder, "read_message_file", refuses)
    monkeypatch.setattr("perdure.features.mailbox.bridge.UNCLAIMED_SCAN_INTERVAL", 0.1)
    await run_until(bridge, lambda: len(lines(bridge)) == 3)
    assert sorted(verdicts(bridge)) == ["admitted", "admitted", "dead"]


async def test_an_unprintable_name_in_pending_is_replaced(bridge: Bridge) -> None:
    pending = bridge.folder.root / "inbox/p/.pending"
    pending.mkdir(parents=True)
    for name in (b"\xff.md", b"x" * 252 + b".md"):
        (pending / os.fsdecode(name)).write_text("no")
    await run_until(bridge, lambda: len(lines(bridge)) == 2 and not any(pending.iterdir()))
    dead = [each.name for each in pending.with_name(".deadletter").glob("*.md")]
    assert sorted(dead) == sorted(each["file"] for each in lines(bridge))


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
    monkeypatch.setattr("perdure.features.mailbox.bridge.UNCLAIMED_SCAN_INTERVAL", 0.1)
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

    monkeypatch.setattr("perdure.features.mailbox.activities.watch.awatch", refuses)
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

"""The bridge's cycle, beside a mailbox that answers as it is told."""

import asyncio
import errno
import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from activities.mail_folder import MailFolder
from bridge import FEW, Bridge
from contracts.mailbox import Delivered, Verdict
from decisions.mail_mode import Mode, Patience

Answer = Callable[[list[dict[str, Any]]], list[Verdict]]


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


def admitted(given: list[dict[str, Any]]) -> list[Verdict]:
    return [Verdict.admitted if each.get("head") else Verdict.dead for each in given]


def put(bridge: Bridge, name: str, text: str | None = None) -> None:
    path = bridge.folder.root / "inbox" / "p" / name
    path.parent.mkdir(exist_ok=True)
    told = {"type": "task", "message_id": name, "plan_id": "p", "task_id": name, "from": "a", "body": "x"}
    path.write_text(json.dumps(told) if text is None else text)
    os.utime(path, (1, 1))


@pytest.fixture
def bridge(tmp_path: Path) -> Bridge:
    folder = MailFolder(tmp_path / "box", "writer")
    folder.open()
    client: Any = FakeClient(admitted)
    return Bridge(client, "queue", folder, Patience(idle_after=1, dormant_after=None))


async def holds(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while True:
        if claim():
            return
        assert time.monotonic() < deadline, "it never came to hold"
        await asyncio.sleep(0.02)


async def running(bridge: Bridge, until: Callable[[], bool]) -> None:
    stop = asyncio.Event()
    task = asyncio.create_task(bridge.run(stop))
    await holds(until)
    stop.set()
    await task


def lines(bridge: Bridge) -> list[dict[str, Any]]:
    path = bridge.folder.root / "deliveries.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_what_lies_there_and_what_comes_is_delivered_and_listed(bridge: Bridge) -> None:
    put(bridge, "a.json")
    put(bridge, "bad.json", "no")
    await running(bridge, lambda: len(lines(bridge)) == 2)
    told = {(each["verdict"], each.get("message_id")) for each in lines(bridge)}
    assert told == {("admitted", "a.json"), ("dead", None)}


async def test_a_mailbox_that_is_away_is_told_once_and_then_has_everything(bridge: Bridge, caplog: Any) -> None:
    put(bridge, "a.json")
    client: Any = bridge.client
    tries = [0]

    def away(given: list[dict[str, Any]]) -> list[Verdict]:
        tries[0] += 1
        if tries[0] < 4:
            raise RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"")
        return admitted(given)

    client.answer = away
    await running(bridge, lambda: len(lines(bridge)) == 1)
    assert [record.message for record in caplog.records].count("agent.mail.trouble") == 1
    assert bridge.trouble == ""


async def test_a_full_mailbox_gets_few_at_a_time_until_it_has_all(bridge: Bridge) -> None:
    for number in range(30):
        put(bridge, f"{number}.json")
    client: Any = bridge.client
    taken: list[str] = []

    def full(given: list[dict[str, Any]]) -> list[Verdict]:
        first = given[:7]
        taken.extend(each["file"] for each in first)
        return [Verdict.admitted] * len(first) + [Verdict.full] * (len(given) - len(first))

    client.answer = full
    await running(bridge, lambda: len(taken) == 30 and len(lines(bridge)) == 30)
    assert len(set(taken)) == 30
    assert max(len(given) for given in client.delivered[2:]) <= 2 * FEW


async def test_a_disk_that_refuses_does_not_end_the_bridge(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bridge, "a.json")
    rename, tries = os.rename, [0]

    def refuses(*args: Any, **more: Any) -> None:
        tries[0] += 1
        if tries[0] < 3:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), "a.json")
        rename(*args, **more)

    monkeypatch.setattr(os, "rename", refuses)
    await running(bridge, lambda: bool(bridge.trouble))
    assert bridge.trouble.endswith("it is read-only: a.json")
    await running(bridge, lambda: len(lines(bridge)) == 1)


async def test_a_bridge_that_sleeps_is_woken_by_a_file_and_not_by_its_own(bridge: Bridge) -> None:
    bridge.patience = Patience(idle_after=1, dormant_after=timedelta(seconds=0.1))
    stop = asyncio.Event()
    task = asyncio.create_task(bridge.run(stop))
    await holds(lambda: bridge.pace.mode is Mode.dormant)
    await asyncio.sleep(0.5)
    cycle = bridge.cycle
    bridge.folder.below.write(b"x", "outbox", "p", "ack.json")
    await asyncio.sleep(0.5)
    assert bridge.cycle == cycle
    put(bridge, "a.json")
    await holds(lambda: bool(lines(bridge)))
    stop.set()
    await task

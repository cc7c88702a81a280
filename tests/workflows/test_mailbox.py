"""Bridges beside lanes on the real server: each message once, whatever is lost in between (C1 to C5, C7)."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from perdure.activities.run.outcome import SubtaskOutcome
from perdure.activities.temporal import submit_to_lane
from perdure.contracts.conversation import SubmitRequest
from perdure.contracts.failures import RunFailure
from perdure.contracts.run.limits import SubtaskStatus
from perdure.decisions import ids
from perdure.features.mailbox.activities import handler
from perdure.features.mailbox.activities.handler import MessageHandler
from perdure.features.mailbox.activities.writer import MailWriter
from perdure.features.mailbox.commands import _redeliver
from perdure.features.mailbox.contract import Ack, MessageResult, TaskState
from perdure.features.mailbox.rules import admission
from perdure.testkit.model_server import Reply, calls
from tests.workflows.conftest import MakeWorld
from tests.workflows.lane import echo, lane_of
from tests.workflows.mail import Mailbox, kill
from tests.workflows.script import texts

ASK = calls(("ask_human", {"question": "which one?"}))
BUSY = SubtaskOutcome(SubtaskStatus.failed, "rate limited", RunFailure.rate_limited)


def asks_or_says(body: dict[str, Any]) -> Reply:
    is_answered = any(block["type"] == "tool_result" for said in body["messages"] for block in said["content"])
    return ASK if texts(body)[-1] == "ask" and not is_answered else echo(body)


async def test_a_message_is_consumed_before_it_runs_and_answered_once(world: MakeWorld, tmp_path: Path) -> None:
    async with world(echo) as it:
        box = Mailbox(it, tmp_path / "box")
        async with box.served():
            box.put("a")
            await box.until_over("a")
        assert len(it.model.requests) == 1
    assert [each["status"] for each in box.ack("a")["history"]] == ["CONSUMED", "SUCCEEDED"]
    assert box.states("t-a") == ["CONSUMED", "RUNNING", "SUCCEEDED"]
    assert box.reply("t-a").endswith("you said: work\n")
    assert box.names(".processed") == ["a.json"]


async def test_of_several_bridges_each_message_has_one_run(world: MakeWorld, tmp_path: Path) -> None:
    async with world(echo) as it:
        box = Mailbox(it, tmp_path / "box")
        names = [f"m{n}" for n in range(20)]
        async with box.served(3):
            for name in names:
                box.put(name)
                box.put(name, file=f"again-{name}.json")
            await box.until_over(*names)
        assert len(it.model.requests) == 20
    assert {len(box.ack(name)["duplicates"]) for name in names} == {1}


async def test_a_known_message_or_task_is_not_repeated(world: MakeWorld, tmp_path: Path) -> None:
    async with world(asks_or_says) as it:
        box = Mailbox(it, tmp_path / "box")
        async with box.served():
            box.put("a", body="ask")
            await it.until(lambda: box.states("t-a")[-1:] == ["RUNNING"])
            box.put("a", body="ask", file="a2.json")
            box.put("b", task="t-a")
            await it.until(lambda: box.names(".processed") == ["a2.json", "b.json"])
            message = await box.running()
            run = it.client.get_workflow_handle(ids.run_workflow_id(message.run_id or ""))
            await it.until_state(run, question=True)
            await run.execute_update("answer", {"text": "this one"})
            await box.until_over("a")
            box.put("c", task="t-a")
            await box.until_over("a", "c")
    assert [each["details"] for each in box.ack("a")["duplicates"]] == ["SKIPPED_DUPLICATE"]
    assert box.ack("b")["details"] == "SKIPPED_TASK_IN_PROGRESS"
    assert box.ack("c")["details"] == "RESULT_SENT_AGAIN"


async def test_a_run_that_did_nothing_is_retried_and_a_failed_one_is_a_dead_letter(
    world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admission, "PAUSE", admission.PAUSE / 100)
    ended = list[int]()

    async def fails(_: Any, __: str, message: Any) -> tuple[MessageResult, SubtaskOutcome]:
        ended.append(message.attempt)
        return MessageResult(ack=Ack.failed, details=BUSY.text, fault=BUSY.fault), BUSY

    async def no_steps(*_: Any) -> int:
        return 0

    monkeypatch.setattr(handler, "wait_for_message_end", fails)
    monkeypatch.setattr(handler, "count_steps", no_steps)
    async with world(echo) as it:
        box = Mailbox(it, tmp_path / "box")
        async with box.served():
            box.put("a")
            await box.until_over("a")
            await it.until(lambda: any(each.msg == "agent.mail.dead_letter" for each in caplog.records))
    assert ended == [1, 2, 3]
    assert [(each["status"], each["attempt"]) for each in box.ack("a")["history"]] == [
        ("CONSUMED", 1), ("CONSUMED", 2), ("CONSUMED", 3), ("FAILED", 3),
    ]  # fmt: skip
    alerts = [vars(each)["event"] for each in caplog.records if each.msg.startswith("agent.mail.dead_letter")]
    assert [(each["message_id"], each["attempt"], each["why"]) for each in alerts] == [("a", 3, "rate limited")]
    assert box.names(".deadletter") == ["a.json", "a.json.reason.json"]


async def test_dead_letters_are_delivered_again_when_asked(world: MakeWorld, tmp_path: Path) -> None:
    async with world(echo) as it:
        box = Mailbox(it, tmp_path / "box")
        wants = [{"name": "data", "match": "a.csv"}]
        async with box.served():
            box.put("a", inputs=wants, wait_for_inputs=False)
            box.folder.below.write(b"no message", "inbox", box.plan, "junk.json")
            await it.until(lambda: len(box.names(".deadletter")) == 4)
            assert box.ack("a")["status"] == "FAILED"
            (tmp_path / "box/inputs/a.csv").write_text("1")
            os.utime(tmp_path / "box/inputs/a.csv", (1, 1))
            assert _redeliver(box.folder, "nothing") == 0
            assert _redeliver(box.folder, "a") == 1
            await it.until(lambda: box.ack("a")["status"] == "SUCCEEDED" and not box.open())
            assert box.names(".deadletter") == ["junk.json", "junk.json.reason.json"]
            assert _redeliver(box.folder, "all") == 1
            await it.until(lambda: len((tmp_path / "box/deliveries.jsonl").read_text().splitlines()) == 4)
        assert len(it.model.requests) == 1
    verdicts = [json.loads(line)["verdict"] for line in (tmp_path / "box/deliveries.jsonl").read_text().splitlines()]
    assert sorted(verdicts) == ["admitted", "dead", "dead", "dead"]


async def test_the_end_of_a_run_that_is_cancelled_is_a_failure_that_says_so(world: MakeWorld, tmp_path: Path) -> None:
    async with world(asks_or_says) as it:
        box = Mailbox(it, tmp_path / "box")
        async with box.served():
            box.put("a", body="ask")
            message = await box.running()
            run = it.client.get_workflow_handle(ids.run_workflow_id(message.run_id or ""))
            await it.until_state(run, question=True)
            await run.cancel()
            await box.until_over("a")
    assert (box.ack("a")["status"], box.ack("a")["details"]) == ("FAILED", "it was cancelled")


async def test_a_request_that_its_lane_dropped_ends_as_failed(world: MakeWorld, tmp_path: Path) -> None:
    async with world(asks_or_says) as it:
        box = Mailbox(it, tmp_path / "box")
        lane = ids.mail_conversation_id("default", ids.task_key(box.plan, "t-a", None))
        first = it.client.get_workflow_handle(ids.conversation_workflow_id(lane))
        await submit_to_lane(it.client, it.queue, lane, SubmitRequest(request_id="x", goal="ask"))
        async with box.served():
            box.put("a")
            request_id = ids.mail_request_id((await box.running()).key, 1)
            await first.signal("drop", {"request_id": request_id})
            await box.until_over("a")
        await lane_of(it, lane).cancel()
        with pytest.raises(WorkflowFailureError):
            await lane_of(it, lane).result()
    assert box.ack("a")["details"] == "the task was dropped before its run began"


STEPS = [
    (MessageHandler, "_write_consumed"),
    (MessageHandler, "_copy_inputs"),
    (MailWriter, "write_state"),
    (MailWriter, "write_reply"),
    (MailWriter, "close_message_requests"),
    (MailWriter, "put_away_finished"),
]


@pytest.mark.parametrize("of", STEPS, ids=lambda of: of[1])
async def test_a_bridge_that_ends_anywhere_is_followed_by_one_that_goes_on(
    world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: tuple[type, str]
) -> None:
    owner, name = of
    reached, does = asyncio.Event(), getattr(owner, name)

    async with world(echo) as it:
        loop = asyncio.get_running_loop()

        def breaks_off(*args: Any) -> Any:
            loop.call_soon_threadsafe(reached.set)
            raise OSError("it ends here")

        box = Mailbox(it, tmp_path / "box")
        box.put("a")
        monkeypatch.setattr(owner, name, breaks_off)
        first = asyncio.create_task(box.bridge().run(asyncio.Event()))
        await asyncio.wait_for(reached.wait(), 30)
        await kill(first)
        monkeypatch.setattr(owner, name, does)
        async with box.served():
            await box.until_over("a")
        assert len(it.model.requests) == 1
    assert [each["status"] for each in box.ack("a")["history"]] == ["CONSUMED", "SUCCEEDED"]
    assert box.states("t-a") == ["CONSUMED", "RUNNING", "SUCCEEDED"]
    assert box.names(".processed") == ["a.json"]


async def test_what_waits_for_inputs_goes_on_with_the_next_bridge_and_ends_if_its_file_was_removed(
    world: MakeWorld, tmp_path: Path
) -> None:
    async with world(echo) as it:
        box = Mailbox(it, tmp_path / "box")
        wants = [{"name": "data", "match": "a.csv"}]
        async with box.served():
            box.put("a", inputs=wants)
            box.put("b", inputs=[{"name": "data", "match": "b.csv"}])
            await it.until(lambda: [box.states(f"t-{name}") for name in "ab"] == [["BLOCKED_WAITING_INPUT"]] * 2)
        (pending,) = (tmp_path / "box/inbox" / box.plan / ".pending").glob("*~b.json")
        pending.unlink()
        (tmp_path / "box/inputs/a.csv").write_text("1")
        async with box.served():
            await box.until_over("a", "b")
    assert box.states("t-a") == ["BLOCKED_WAITING_INPUT", "CONSUMED", "RUNNING", "SUCCEEDED"]
    assert (box.ack("b")["status"], box.ack("b")["details"]) == ("FAILED", "its file is gone")


async def test_a_person_chooses_the_file_of_an_input(world: MakeWorld, tmp_path: Path) -> None:
    async with world(echo) as it:
        box = Mailbox(it, tmp_path / "box")
        for name in ("a.csv", "b.csv"):
            (tmp_path / "box/inputs" / name).write_text(name)
        async with box.served():
            box.put("a", inputs=[{"name": "data", "match": "*.csv"}])
            await it.until(lambda: box.states("t-a")[-1:] == [TaskState.blocked])
            request = tmp_path / "box/tasks/t-a/human_intervention_request.json"
            await it.until(request.exists)
            request.write_text(json.dumps(json.loads(request.read_text()) | {"pick": {"data": "b.csv"}}))
            await box.until_over("a")
    assert box.states("t-a") == ["CONSUMED", "BLOCKED_WAITING_INPUT", "RUNNING", "SUCCEEDED"]
    assert "b.csv" in box.reply("t-a")

"""The request to a person, and all that can become of its file."""

import asyncio
import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.contracts.run.signals import QuestionKind
from perdure.contracts.run.state import QuestionView, RunStatus
from perdure.features.mailbox.activities.folder import MailFolder
from perdure.features.mailbox.activities.picks import CHECKS_PER_QUERY, InputPicks
from perdure.features.mailbox.activities.writer import MailWriter
from perdure.features.mailbox.contract import InboxMessage, Stage

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class FakeRun:
    """Waits for a pick until it has one."""

    def __init__(self) -> None:
        self.id = "run:run-1"
        self.answers: list[str] = []
        self.reported: list[str] = []
        self.asked: list[str] = []
        self.queries = 0

    def get_workflow_handle(self, workflow_id: str) -> "FakeRun":
        self.asked.append(workflow_id)
        return self

    async def query(self, *_: Any, **__: Any) -> Any:
        self.queries += 1
        question = QuestionView(id="q1", kind=QuestionKind.choice, text="Which file is data?", options=("a", "b"))
        status = RunStatus.running if self.answers else RunStatus.waiting_on_human
        return SimpleNamespace(status=status, turns=0, question=None if self.answers else question)

    async def describe(self) -> Any:
        return SimpleNamespace(run_id="first", history_length=len(self.answers))

    async def execute_update(self, _: str, said: dict[str, Any]) -> None:
        self.answers.append(said["text"])

    async def reports(self, key: str) -> None:
        self.reported.append(key)


@pytest.fixture
def writer(tmp_path: Path) -> MailWriter:
    folder = MailFolder(tmp_path / "box", "writer")
    folder.open_folder()
    letter = InboxMessage(
        key="k", task="d", plan="p", message_id="m", plan_id="p", task_id="t", sender="you",
        stage=Stage.admitted,
    )  # fmt: skip
    writer = MailWriter(folder)
    writer.write_request(letter, "run-1", {"data": ("a", "b")})
    return writer


@pytest.fixture
def request_file(writer: MailWriter) -> Any:
    return writer.folder.root / "tasks" / "t" / "human_intervention_request.json"


async def check_picks(writer: MailWriter, run: FakeRun, count: int = CHECKS_PER_QUERY + 1) -> InputPicks:
    client: Any = run
    picks = InputPicks(client, writer, run.reports)
    for _ in range(count):
        await picks.check_requests()
    return picks


async def test_a_pick_is_the_answer_and_ends_the_request(writer: MailWriter, request_file: Any) -> None:
    asked = json.loads(request_file.read_text())
    request_file.write_text(json.dumps({**asked, "pick": {"data": "b"}}))
    run = FakeRun()
    await check_picks(writer, run, 1)
    assert (run.answers, run.reported, request_file.exists()) == (["b"], ["k"], False)


async def test_a_request_that_waits_is_queried_once_however_often_it_is_checked(
    writer: MailWriter, request_file: Any
) -> None:
    run = FakeRun()
    picks = await check_picks(writer, run, 10 * CHECKS_PER_QUERY)
    assert run.queries == 1  # its history has not grown since
    request_file.write_text('{"pick": {"data": "a"}}')
    await picks.check_requests()
    assert run.answers == ["a"]


@pytest.mark.parametrize(
    "spoiled",
    [
        "[" * 200_000,
        "",
        "no",
        "[1]",
        "{}",
        '{"pick": 1}',
        '{"pick": {"data": 7}}',
        '{"pick": {"": "a"}, "choices": []}',
        '{"pick": "a", "choices": [{"name": "data", "options": 5}, 3], "run_id": 5}',
        '{"pick": {"data": "\\ud800"}}',
        " " * (1024 * 1024 + 1),
    ],
)
async def test_a_spoiled_request_file_ends_nothing_and_can_be_mended(
    writer: MailWriter, request_file: Any, spoiled: str
) -> None:
    request_file.write_text(spoiled)
    run = FakeRun()
    picks = await check_picks(writer, run)
    if not run.answers:
        request_file.write_text('{"pick": {"data": "a"}}')
        await picks.check_requests()
    assert (run.answers, set(run.asked)) == (["a"], {"run:run-1"})


async def test_no_other_run_is_answered_than_the_one_that_asks(writer: MailWriter, request_file: Any) -> None:
    request_file.write_text('{"run_id": "stranger", "key": "x", "pick": {"data": "a"}}')
    run = FakeRun()
    await check_picks(writer, run, 1)
    assert "run:stranger" not in run.asked
    assert run.answers == ["a"]


async def test_a_run_that_does_not_take_its_answer_holds_up_no_folder(
    writer: MailWriter, request_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(FakeRun):
        async def execute_update(self, *_: Any) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr("perdure.features.mailbox.activities.picks.ANSWERED_WITHIN", 0.05)
    asked = json.loads(request_file.read_text())
    request_file.write_text(json.dumps({**asked, "pick": {"data": "b"}}))
    await asyncio.wait_for(check_picks(writer, Silent(), 1), 10)
    run = FakeRun()
    await check_picks(writer, run, 1)
    assert run.answers == ["b"]


async def test_a_request_that_goes_away_while_it_is_edited_comes_back(writer: MailWriter, request_file: Any) -> None:
    before = request_file.read_text()
    request_file.unlink()
    run = FakeRun()
    picks = await check_picks(writer, run)
    assert json.loads(request_file.read_text()) == json.loads(before)
    other = request_file.with_name("4913")
    other.write_text(json.dumps({**json.loads(before), "pick": {"data": "a"}}))
    other.rename(request_file)
    await picks.check_requests()
    assert run.answers == ["a"]


async def test_a_request_that_is_no_file_is_said_once(
    writer: MailWriter, request_file: Any, caplog: pytest.LogCaptureFixture
) -> None:
    request_file.unlink()
    request_file.symlink_to("/etc/passwd")
    with caplog.at_level(logging.WARNING):
        await check_picks(writer, FakeRun())
    assert len(caplog.records) == 1

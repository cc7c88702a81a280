"""Files that people attach: stored by their hash before anything starts, refused in one line, shown by their names."""

import os
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from perdure.activities.media.store import read_media
from perdure.activities.storage.store import LocalStores
from perdure.client.errors import RejectedError
from perdure.client.files import attach_files
from perdure.client.records.event_reader import EventReader
from perdure.client.run_events import AnswerReceived, RunEvent, RunStarted, ToolCallFinished, event_to_json
from perdure.commands.chat import ChatSession
from perdure.contracts.conversation import SubmitRequest, Submitted
from perdure.contracts.media import MAX_ATTACHMENTS, MAX_MEDIA_BYTES, Attachment, StoredMedia
from perdure.contracts.run.events import StartEvent
from perdure.contracts.run.signals import HumanInput
from perdure.contracts.tool import ToolCall, ToolOutcome
from perdure.decisions.ids import UPLOADS_STORE
from perdure.features.mcp_server.tools import RunTools
from perdure.terminal.event_lines import format_bytes, format_event
from tests.media_files import image_bytes, pdf_bytes
from tests.screen import Terminal


async def test_attached_files_are_stored_by_their_hash(tmp_path: Path) -> None:
    stores = LocalStores(tmp_path / "runs")
    data = {"a.png": image_bytes(), "b.txt": pdf_bytes()}
    for name, content in data.items():
        (tmp_path / name).write_bytes(content)
    attachments = await attach_files(stores, [tmp_path / name for name in data])
    assert attachments == (
        Attachment(name="a.png", media_type="image/png", sha256=sha256(data["a.png"]).hexdigest()),
        Attachment(name="b.txt", media_type="application/pdf", sha256=sha256(data["b.txt"]).hexdigest()),
    )
    for attachment, content in zip(attachments, data.values(), strict=True):
        assert read_media(stores.of(UPLOADS_STORE), attachment.sha256 or "") == content


async def test_a_file_that_is_not_taken_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("text")
    with (tmp_path / "large.png").open("wb") as large:
        large.truncate(MAX_MEDIA_BYTES + 1)
    os.mkfifo(tmp_path / "pipe")
    reasons = {
        "gone.png": "No such file or directory",
        ".": "not a file",
        "pipe": "not a file",
        "note.txt": "not an image or a PDF that is taken",
        "large.png": "larger than 33,554,432 bytes",
    }
    for name, reason in reasons.items():
        with pytest.raises(RejectedError, match=reason) as refusal:
            await attach_files(LocalStores(tmp_path / "runs"), [tmp_path / name])
        assert str(refusal.value).isprintable()
    with pytest.raises(RejectedError, match="21 files are attached; the maximum is 20"):
        await attach_files(LocalStores(tmp_path / "runs"), [tmp_path / "note.txt"] * (MAX_ATTACHMENTS + 1))


ATTACHED = Attachment(name="invoice.png", media_type="image/png", sha256="0" * 64)
CHART = StoredMedia(sha256="1" * 64, media_type="application/pdf", bytes=1_240_000, name="chart.pdf", pages=2)
CALL = ToolCall(step=1, tool="draw", tool_use_id="u", arguments={})


@pytest.mark.parametrize("width", [None, 80])
@pytest.mark.parametrize(
    ("event", "line"),
    [
        (RunStarted("read it", (ATTACHED,)), "▣ image invoice.png"),
        (AnswerReceived(HumanInput(text="here", attachments=(ATTACHED,))), "▣ image invoice.png"),
        (ToolCallFinished(CALL, ToolOutcome(result="done", media=(CHART,))), "▣ PDF chart.pdf  1.2 MB"),
    ],
)
def test_an_image_and_a_pdf_are_lines_of_their_event(event: RunEvent, line: str, width: int | None) -> None:
    assert str(list(format_event(event, width))[-1]).strip() == line


AT = "2026-02-16T12:00:00.000+00:00"


def test_a_start_names_its_files_also_if_they_are_not_valid() -> None:
    payload = {"goal": "read it", "attachments": [ATTACHED.model_dump()]}
    for given, attachments in ((payload, (ATTACHED,)), ({**payload, "attachments": [{"name": 1}]}, ())):
        history = {
            "type": "workflow_execution_started",
            "at": AT,
            "input": [{"type": "agentic.start", "payload": given}],
        }
        (started,) = EventReader().read(history)
        assert started == RunStarted("read it", attachments)
        assert f'{{"type": "run_started", "at": "{AT}", "goal": "read it"' in event_to_json(started)
    assert '"attachments": [{"name": "invoice.png"' in event_to_json(RunStarted("read it", (ATTACHED,)))


def test_a_size_is_short() -> None:
    sizes = {80: "80 bytes", 1240: "1.2 kB", 310_000: "310 kB", 1_240_000: "1.2 MB", 32_000_000: "32 MB"}
    assert {size: format_bytes(size) for size in sizes} == sizes


async def test_an_mcp_client_attaches_files_of_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[StartEvent] = []

    async def start(_client: Any, _queue: str, event: StartEvent, *_: Any, **__: Any) -> Any:
        events.append(event)
        return SimpleNamespace(id="run:r", first_execution_run_id="1")

    async def no_message(_: str) -> None:
        return None

    monkeypatch.setattr("perdure.python_client.start_or_get_run", start)
    settings = SimpleNamespace(check_agent=lambda _: None, check_pace=lambda *_: None, task_queue="q")
    session: Any = SimpleNamespace(
        client=None, settings=settings, missing_worker_message=no_message, web_ui_page=lambda _: None
    )
    await RunTools(session, may_approve=False).start_run("look", attach=["other/artifacts/a.png"])
    [attachment] = events[0].payload.attachments
    assert (attachment.name, attachment.artifact) == ("a.png", "other/artifacts/a.png")


@pytest.fixture
def talk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ChatSession, list[SubmitRequest], Console]:
    """A conversation in a terminal whose requests are recorded."""
    requests: list[SubmitRequest] = []

    async def submit(_client: Any, _queue: str, _id: str, request: SubmitRequest) -> Submitted:
        requests.append(request)
        return Submitted(run_id=request.request_id, position=0, duplicate=False)

    monkeypatch.setattr("perdure.commands.chat.submit_with_retry", submit)
    monkeypatch.setattr("perdure.commands.chat.is_person", lambda: True)
    console = Console(file=Terminal(), record=True, force_terminal=True, width=100)
    settings = SimpleNamespace(stores=LocalStores(tmp_path / "runs"), task_queue="q")
    session: Any = SimpleNamespace(client=None, settings=settings)
    return ChatSession(session, "chat", None, console), requests, console


async def test_the_next_message_of_a_chat_has_the_attached_files(
    talk: tuple[ChatSession, list[SubmitRequest], Console], tmp_path: Path
) -> None:
    chat, requests, console = talk
    (tmp_path / "my invoice.pdf").write_bytes(pdf_bytes())
    for line in (f"/attach '{tmp_path}/my invoice.pdf'", "what is the total?", "and the tax?"):
        await chat._handle_line(line)
    assert [[file.name for file in request.attachments] for request in requests] == [["my invoice.pdf"], []]
    assert "[my invoice.pdf] > " in console.export_text()


async def test_a_chat_names_a_file_that_it_cannot_attach_and_can_detach(
    talk: tuple[ChatSession, list[SubmitRequest], Console], tmp_path: Path
) -> None:
    chat, requests, console = talk
    (tmp_path / "a.png").write_bytes(image_bytes())
    for line in (f"/attach {tmp_path}/gone.png", f"/attach {tmp_path}/a.png", "/attach", "look"):
        await chat._handle_line(line)
    assert [request.attachments for request in requests] == [()]
    assert "gone.png: No such file or directory" in console.export_text().replace("\n", "")

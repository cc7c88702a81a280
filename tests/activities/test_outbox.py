"""Messages go out once, or by a key that the other side honours; an outcome that is unknown is reported as such."""

import asyncio
import json
import resource
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, create_autospec

import httpx
import pytest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from perdure.activities.effects.ledger import InDoubt, LedgerEntry
from perdure.activities.project import Project
from perdure.activities.tools.interface import TransientToolError
from perdure.contracts.conversation import Headers
from perdure.contracts.model_settings import ModelOptions
from perdure.contracts.run.limits import LimitOverrides
from perdure.contracts.tool import Effect, ToolOutcome
from perdure.features.follow_ups.activities import MAX_SENDS, FollowUps
from perdure.features.follow_ups.contract import FollowUpCommands, NotifyRequest, Outbound, TaskCommand, TaskData
from perdure.features.follow_ups.outbox import FILE, ListedOutbox, LogOutbox, WebhookOutbox
from perdure.settings import ProjectError, load_settings
from tests.activities.calls import error_of

MESSAGE = Outbound(channel_id="x", text="I asked B: £5?")
REQUEST = NotifyRequest(task_id="t1", number=1, execution="0123456789ab", message=MESSAGE)
KEY = "workflow:f:task:t1:notify"


class DyingOutbox:
    """Sends, and then its worker goes."""

    effect = Effect.once
    timeout = timedelta(seconds=1)

    def __init__(self) -> None:
        self.sent = 0
        self.begun = asyncio.Event()

    async def send(self, message: Outbound, key: str) -> ToolOutcome:
        self.sent += 1
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody waits for this")


def new_project(outbox: Any, folder: Path) -> Project:
    return Project(
        agents={},
        tools={},
        model="",
        options=ModelOptions(max_tokens=1),
        limits=LimitOverrides(),
        workspaces=folder,
        instructions="",
        parts={"follow_ups": outbox},
    )


def new_attempt(number: int = 1) -> ActivityEnvironment:
    env = ActivityEnvironment()
    env.info = replace(env.info, workflow_id="wf:f", attempt=number)
    return env


async def notify(outbox: Any, folder: Path, number: int = 1) -> ToolOutcome:
    follow_ups = FollowUps(create_autospec(Client, instance=True), new_project(outbox, folder))
    outcome: ToolOutcome = await new_attempt(number).run(follow_ups.notify, REQUEST)
    return outcome


def webhook_outbox(answer: Callable[[httpx.Request], httpx.Response], effect: Effect = Effect.keyed) -> WebhookOutbox:
    def stream(request: httpx.Request) -> httpx.Response:
        """As a server's answer comes: nothing of it is read yet."""
        made = answer(request)
        if not made.is_stream_consumed:
            return made
        return httpx.Response(made.status_code, headers=made.headers, stream=httpx.ByteStream(made.content))

    client = httpx.AsyncClient(transport=httpx.MockTransport(stream))
    return WebhookOutbox("http://bridge.test/out", effect, timedelta(seconds=1), client)


async def test_what_was_claimed_and_not_recorded_is_not_sent_again(tmp_path: Path) -> None:
    dying, env = DyingOutbox(), new_attempt()
    follow_ups = FollowUps(create_autospec(Client, instance=True), new_project(dying, tmp_path))
    sending = asyncio.ensure_future(env.run(follow_ups.notify, REQUEST))
    await dying.begun.wait()
    env.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    for _ in range(2):
        error = error_of(await notify(dying, tmp_path, 2))
        assert error.kind == "in_doubt"
    assert dying.sent == 1


async def test_a_message_that_is_being_recorded_is_waited_for_and_not_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, go_on = threading.Event(), threading.Event()
    record, found, outcomes = LedgerEntry.record, LedgerEntry.read_outcome, []

    def recorded_late(page: LedgerEntry, outcome: ToolOutcome) -> None:
        recording.set()
        assert go_on.wait(20)
        record(page, outcome)

    def looking(page: LedgerEntry) -> ToolOutcome | InDoubt:
        outcomes.append(found(page))
        if len(outcomes) == 3:  # by its claim, and by who takes it for lost
            go_on.set()
        return outcomes[-1]

    monkeypatch.setattr(LedgerEntry, "record", recorded_late)
    monkeypatch.setattr(LedgerEntry, LedgerEntry.read_outcome.__name__, looking)
    outbox = LogOutbox(tmp_path / "home")
    follow_ups = FollowUps(create_autospec(Client, instance=True), new_project(outbox, tmp_path))
    first = asyncio.ensure_future(new_attempt().run(follow_ups.notify, REQUEST))
    try:
        assert await asyncio.to_thread(recording.wait, 20)
        second = await new_attempt(2).run(follow_ups.notify, REQUEST)
    finally:
        go_on.set()
    assert await first == second == ToolOutcome(result="written")
    assert len((tmp_path / "home" / FILE).read_text(encoding="utf-8").splitlines()) == 1


async def test_a_recorded_message_is_returned_and_not_sent_again(tmp_path: Path) -> None:
    outbox = LogOutbox(tmp_path / "home")
    first, second = await notify(outbox, tmp_path), await notify(outbox, tmp_path, 2)
    assert first == second == ToolOutcome(result="written")
    (line,) = (tmp_path / "home" / FILE).read_text(encoding="utf-8").splitlines()
    entry = json.loads(line)
    assert (entry["key"], entry["channelId"], entry["text"]) == (KEY, "x", "I asked B: £5?")


@contextmanager
def limit_file_size(most: int) -> Iterator[None]:
    """For a file, as on a disk that is nearly full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_line_that_a_full_disk_cuts_off_does_not_count_and_spoils_no_other(tmp_path: Path) -> None:
    outbox = LogOutbox(tmp_path)
    await outbox.send(MESSAGE, "k1")
    size = (tmp_path / FILE).stat().st_size
    with limit_file_size(size + 20), pytest.raises(OSError, match="No space left"):
        await outbox.send(MESSAGE, "k2")
    assert (tmp_path / FILE).stat().st_size == size + 20
    assert [await outbox.send(MESSAGE, key) for key in ("k3", "k4")] == [ToolOutcome(result="written")] * 2
    first, stump, *others = (tmp_path / FILE).read_bytes().splitlines()
    assert [json.loads(line)["key"] for line in (first, *others)] == ["k1", "k3", "k4"]
    assert len(stump) == 20


async def test_a_webhook_gets_the_message_and_its_key(tmp_path: Path) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(204)

    assert await notify(webhook_outbox(answer), tmp_path) == ToolOutcome(result="sent")
    assert seen[0].headers["idempotency-key"] == KEY
    assert json.loads(seen[0].content) == {"channelId": "x", "text": "I asked B: £5?"}


async def test_a_key_in_any_letters_is_a_header(tmp_path: Path) -> None:
    """A follow-up may be called as its creator likes."""
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["idempotency-key"])
        return httpx.Response(204)

    assert (await webhook_outbox(answer).send(MESSAGE, "workflow:größe:task:t1:notify")).result == "sent"
    assert seen == ["workflow%3Agr%C3%B6%C3%9Fe%3Atask%3At1%3Anotify"]


@pytest.mark.parametrize(("status", "kind"), [(503, "http_error"), (429, "http_error")])
async def test_a_keyed_message_is_tried_again_and_given_up_typed(tmp_path: Path, status: int, kind: str) -> None:
    outbox = webhook_outbox(lambda _: httpx.Response(status, headers={"retry-after": "7"}))
    with pytest.raises(ApplicationError) as raised:
        await notify(outbox, tmp_path)
    assert (raised.value.type, raised.value.next_retry_delay) == (kind, timedelta(seconds=7))
    error = error_of(await notify(outbox, tmp_path, MAX_SENDS))
    assert error.kind == kind


@pytest.mark.parametrize("asked", ["Mon, 01 Jan 99999999999 00:00:00 GMT", "inf"])
async def test_a_delay_that_is_beyond_all_years_leaves_a_message_to_be_tried_again(tmp_path: Path, asked: str) -> None:
    outbox = webhook_outbox(lambda _: httpx.Response(503, headers={"retry-after": asked}))
    with pytest.raises(ApplicationError) as raised:
        await notify(outbox, tmp_path)
    assert (raised.value.type, raised.value.next_retry_delay) == ("http_error", None)


async def test_whatever_fails_a_keyed_message_it_is_not_tried_for_ever(tmp_path: Path) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise OverflowError("beyond all years")

    with pytest.raises(OverflowError):
        await notify(webhook_outbox(answer), tmp_path, MAX_SENDS - 1)
    error = (await notify(webhook_outbox(answer), tmp_path, MAX_SENDS)).error
    assert error is not None
    assert (error.kind, error.message) == ("tool_error", "OverflowError: beyond all years")


async def test_a_refused_message_is_final(tmp_path: Path) -> None:
    error = error_of(await notify(webhook_outbox(lambda _: httpx.Response(403, text="no such channel")), tmp_path))
    assert error.message == "403 from the outbox: no such channel"


async def test_a_url_that_is_none_fails_typed_and_is_not_tried_for_ever(tmp_path: Path) -> None:
    outbox = WebhookOutbox("http://[::1", Effect.keyed, timedelta(seconds=1), httpx.AsyncClient())
    error = (await notify(outbox, tmp_path)).error
    assert error is not None
    assert (error.kind, "no usable url" in error.message) == ("unreachable", True)


async def test_an_outbox_that_cannot_be_reached_fails_a_once_message_typed(tmp_path: Path) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    error = error_of(await notify(webhook_outbox(answer, Effect.once), tmp_path))
    assert error.kind == "unreachable"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('kind = "http"', "needs a url"),
        ('url = "http://x"', "takes none"),
        ('kind = "log"\neffect = "keyed"', "honours no keys"),
        ('kind = "http"\nurl = "http://x"\neffect = "read"', "effect"),
        ('kind = "pigeon"', "kind"),
    ],
)
def test_an_outbox_that_makes_no_sense_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "perdure.toml").write_text(f"[outbox]\n{text}\n", encoding="utf-8")
    with pytest.raises(ProjectError, match=words):
        load_settings({}, tmp_path)


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_an_answer_of_any_size_costs_no_memory(status: int, tmp_path: Path) -> None:
    """It is not read where the message was sent, and else up to what is shown."""
    pulled = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal pulled
        for _ in range(100):
            pulled += 1
            yield b"x" * 65_536

    outbox = webhook_outbox(lambda _: httpx.Response(status, content=endless()))
    with suppress(TransientToolError):
        outcome = await outbox.send(MESSAGE, KEY)
        assert (outcome.error is None) is (status == 200)
    assert pulled <= 2


@pytest.mark.parametrize(
    ("listed", "platform", "is_sent"),
    [
        ("x", None, True),
        ("x", "slack", True),
        ("slack:x", "slack", True),
        ("slack:*", "slack", True),
        ("slack:x", None, False),
        ("slack:*", "discord", False),
        ("y", "slack", False),
        ("X", None, False),
    ],
)
async def test_a_message_goes_only_to_a_channel_that_is_listed(
    tmp_path: Path, listed: str, platform: str | None, *, is_sent: bool
) -> None:
    """By whatever door it came; and the agent that asks for it gets the refusal at once."""
    message = MESSAGE.evolve(platform=platform)
    outbox = ListedOutbox(LogOutbox(tmp_path), (listed,))
    outcome = await outbox.send(message, KEY)
    assert (outcome.status == "ok", (tmp_path / FILE).exists()) == (is_sent, is_sent)
    data = {"workflowId": "f", "taskId": "t", "kind": "notify", "description": "tell", "runId": "r"}
    given = {"channelId": "x", "text": "hi", **({"platform": platform} if platform else {})}
    headers = Headers(request_id="r", session_id="s", request_client="c")
    task = TaskCommand(headers=headers, data=TaskData.model_validate({**data, "input": given}))
    follow_ups = FollowUps(create_autospec(Client, instance=True), new_project(outbox, tmp_path))
    follow_ups._submit_task = AsyncMock(return_value=None)  # type: ignore[method-assign]
    entry = await new_attempt().run(follow_ups.command_follow_up, FollowUpCommands(task=task))
    assert entry.error is None if is_sent else entry.error is not None and entry.error.kind == "blocked"

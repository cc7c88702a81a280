"""Push notifications of tasks: signed, in order and at least once, to addresses that may be reached."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

import httpx
import pytest
from a2a.types import (
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from google.protobuf.json_format import ParseDict
from standardwebhooks.webhooks import Webhook
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ActivityError

from perdure.decisions.ids import push_workflow_id
from perdure.features.pushes.sender import check_secret, create_sender
from perdure.settings import ProjectError, load_settings
from tests.a2a.conftest import SECRET, Other, message, shown, talking
from tests.gateway.conftest import Gateway, Gateways, make_token
from tests.waiting import until

Json = dict[str, Any]


@dataclass
class Receiver:
    """Takes pushes, after it has refused some. It checks each signature."""

    url: str = ""
    refuses: int = 0
    refused: list[str] = field(default_factory=list)  # ids
    taken: list[tuple[Json, str]] = field(default_factory=list)  # headers, and the state

    @property
    def states(self) -> list[str]:
        return [state for _, state in self.taken]

    def take(self, headers: Json, body: bytes) -> int:
        Webhook(SECRET).verify(body, headers)
        event = ParseDict(json.loads(body), StreamResponse())
        if self.refuses:
            self.refuses -= 1
            self.refused.append(headers["webhook-id"])
            return 503
        self.taken.append((headers, shown(event)))
        return 200


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(receiver.take(headers, body))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        receiver.url = f"http://127.0.0.1:{server.server_port}/hook"
        yield receiver
        server.shutdown()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as opened:
        yield opened


@pytest.fixture
async def pushing(push_gateway: Gateway) -> AsyncIterator[Other]:
    async with talking(push_gateway, streaming=False) as opened:
        yield opened


async def send_with(other: Other, text: str, config: TaskPushNotificationConfig, id_: str = "") -> str:
    settings = SendMessageConfiguration(task_push_notification_config=config)
    request = SendMessageRequest(message=message(text, id_), configuration=settings)
    [event] = [event async for event in other.client.send_message(request)]
    return event.task.id


async def until_last(receiver: Receiver, state: str) -> None:
    await until(lambda: bool(receiver.states) and receiver.states[-1] == state)


async def test_a_receiver_that_fails_first_gets_each_state_in_order(pushing: Other, receiver: Receiver) -> None:
    receiver.refuses = 1
    config = TaskPushNotificationConfig(
        url=receiver.url, token="mine", authentication=AuthenticationInfo(scheme="Bearer", credentials="k3y")
    )
    task_id = await send_with(pushing, "GOAL ask", config)
    await until_last(receiver, "INPUT_REQUIRED")
    assert receiver.refused[0] == receiver.taken[0][0]["webhook-id"]  # the same event again
    await pushing.send(message("blue", task=task_id))
    await until_last(receiver, "COMPLETED")
    ids = [headers["webhook-id"] for headers, _ in receiver.taken]
    assert len({*ids}) == len(ids)
    assert [int(each.rpartition(":")[2]) for each in ids] == [*range(1, len(ids) + 1)]
    at = receiver.states.index("INPUT_REQUIRED")
    assert {*receiver.states[:at]} <= {"SUBMITTED", "WORKING"}
    assert {*receiver.states[at + 1 : -1]} <= {"WORKING"}
    headers = receiver.taken[0][0]
    assert (headers["x-a2a-notification-token"], headers["authorization"]) == ("mine", "Bearer k3y")


async def test_a_registration_sends_the_state_and_another_question_is_news(pushing: Other, receiver: Receiver) -> None:
    task = await pushing.send(message("GOAL twice"))
    config = TaskPushNotificationConfig(task_id=task.id, url=receiver.url)
    made = await pushing.client.create_task_push_notification_config(config)
    assert made.id == task.id
    await until(lambda: receiver.states == ["INPUT_REQUIRED"])
    await pushing.send(message("red", task=task.id))
    await until(lambda: receiver.states.count("INPUT_REQUIRED") == 2)
    await pushing.send(message("red", task=task.id))
    await until_last(receiver, "COMPLETED")


async def test_pushes_go_on_over_a_killed_gateway(a2a_gateways: Gateways, receiver: Receiver) -> None:
    """They are the workers', so the gateway is not needed."""
    env = {"PERDURE_TASK_QUEUE": f"queue-{uuid4().hex[:6]}"}
    with a2a_gateways.project.worker(TEMPORAL_ADDRESS=a2a_gateways.address, **env):
        with a2a_gateways.open(**env) as gateway:
            async with talking(gateway) as other:
                task = (await other.stream(message("GOAL ask")))[0].task
                config = TaskPushNotificationConfig(task_id=task.id, url=receiver.url)
                await other.client.create_task_push_notification_config(config)
            await asyncio.to_thread(gateway.process.send_signal, signal.SIGKILL)
            await asyncio.to_thread(gateway.process.wait)
        await until_last(receiver, "INPUT_REQUIRED")
        handle = a2a_gateways.client.get_workflow_handle(f"run:{task.id}")
        await handle.signal("human_input", {"text": "blue", "question_id": "q1"})
        await until_last(receiver, "COMPLETED")


async def test_configs_are_read_listed_and_deleted_by_their_owner_alone(
    a2a_gateways: Gateways, push_gateway: Gateway, pushing: Other, receiver: Receiver
) -> None:
    client, task = pushing.client, await pushing.send(message("GOAL ask"))
    for name in ("one", "two"):
        config = TaskPushNotificationConfig(task_id=task.id, id=name, url=receiver.url, token="secret")
        for _ in range(2):
            await client.create_task_push_notification_config(config)
    one = GetTaskPushNotificationConfigRequest(task_id=task.id, id="one")
    read = await client.get_task_push_notification_config(one)
    assert (read.id, read.url, read.token) == ("one", receiver.url, "")
    wanted = ListTaskPushNotificationConfigsRequest(task_id=task.id)

    async def are_listed(*names: str) -> bool:
        listed = await client.list_task_push_notification_configs(wanted)
        return sorted(each.id for each in listed.configs) == [*names]

    await until(lambda: are_listed("one", "two"))
    token = await asyncio.to_thread(make_token, a2a_gateways.project, "pusher", "runs:start", "runs:read")
    async with talking(push_gateway, token) as stranger:
        for call in (
            stranger.client.get_task_push_notification_config(one),
            stranger.client.list_task_push_notification_configs(wanted),
            stranger.client.create_task_push_notification_config(config),
            stranger.client.delete_task_push_notification_config(
                DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="one")
            ),
        ):
            with pytest.raises(TaskNotFoundError):
                await call
    for _ in range(2):
        await client.delete_task_push_notification_config(
            DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="one")
        )
    with pytest.raises(TaskNotFoundError, match="no push"):
        await client.get_task_push_notification_config(one)
    await until(lambda: are_listed("two"))
    await pushing.cancel(task.id)
    await until_last(receiver, "CANCELED")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/hook",
        "https://10.0.0.1/hook",
        "https://169.254.169.254/latest",
        "https://127.1/hook",
        "https://0x7f000001/",
        "https://[::ffff:127.0.0.1]/",
        "https://user:word@example.com/",
        "ftp://example.com/",
        "https:///hook",
        "https://example.com/a b",
        "hook",
        "",
    ],
)
async def test_an_address_inside_is_refused_as_it_is_named(pushing: Other, url: str) -> None:
    task = await pushing.send(message("GOAL look"), waits=False)
    with pytest.raises(InvalidParamsError):
        await pushing.client.create_task_push_notification_config(TaskPushNotificationConfig(task_id=task.id, url=url))


@pytest.mark.parametrize(
    "config",
    [
        TaskPushNotificationConfig(token="a\r\nHost: b"),
        TaskPushNotificationConfig(authentication=AuthenticationInfo(scheme="Bearer", credentials="a\nb")),
        TaskPushNotificationConfig(authentication=AuthenticationInfo(scheme="Bearer x", credentials="a")),
        TaskPushNotificationConfig(id="x" * 2000),
    ],
)
async def test_what_could_be_another_header_is_refused(pushing: Other, config: TaskPushNotificationConfig) -> None:
    task = await pushing.send(message("GOAL look"), waits=False)
    config.task_id, config.url = task.id, "https://example.com/hook"
    with pytest.raises(InvalidParamsError):
        await pushing.client.create_task_push_notification_config(config)


async def test_a_name_that_points_inside_is_refused_at_the_sending(push_gateway: Gateway, pushing: Other) -> None:
    """And the push is in the list of failed workflows, with the reason."""
    task = await pushing.send(message("GOAL look"))
    config = TaskPushNotificationConfig(task_id=task.id, url="https://localhost/hook")
    await pushing.client.create_task_push_notification_config(config)
    handle = push_gateway.client.get_workflow_handle(push_workflow_id(task.id, task.id))
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert isinstance(failed.value.cause, ActivityError)
    assert "not a public address" in str(failed.value.cause.cause)


async def test_the_card_says_that_it_pushes(push_gateway: Gateway) -> None:
    card = (await push_gateway.get("/a2a/default/.well-known/agent-card.json")).json()
    assert card["capabilities"] == {"streaming": True, "pushNotifications": True}


def test_a_worker_without_the_secret_or_with_an_odd_one_says_so(tmp_path: Path) -> None:
    (tmp_path / "perdure.toml").write_text('[push]\nsecret_env = "PUSH_SECRET"\n')
    with pytest.raises(ProjectError, match="PUSH_SECRET is not set"):
        check_secret(load_settings({}, tmp_path, strict=False))
    with pytest.raises(ProjectError, match="PUSH_SECRET is not base64"):
        create_sender(load_settings({"PUSH_SECRET": "whsec_?"}, tmp_path), httpx.AsyncClient())

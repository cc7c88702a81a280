"""A button in Slack answers the question of its message, for people whom the gateway knows."""

import json
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from perdure.features.starts.routes import ButtonPress, read_press
from perdure.features.starts.signatures import InvalidEventError, Webhook
from tests.gateway.conftest import Gateway
from tests.gateway.test_webhooks import slack

Json = dict[str, Any]


def form(
    run_id: str, question: str = "q1", option: int = 0, user: str = "U1", action: str = "perdure:answer:0"
) -> bytes:
    """A `block_actions` interaction, as Slack's documentation shows it."""
    value = json.dumps({"run_id": run_id, "question_id": question, "option": option})
    payload = {
        "type": "block_actions",
        "user": {"id": user, "username": "eva", "team_id": "T1"},
        "api_app_id": "A1",
        "container": {"type": "message", "message_ts": "1548261231.000200", "channel_id": "C1"},
        "response_url": "https://127.0.0.1:9/not-slack",
        "actions": [{"action_id": action, "block_id": "b", "type": "button", "value": value, "action_ts": "1.2"}],
    }
    return urlencode({"payload": json.dumps(payload)}).encode()


async def press(gateway: Gateway, body: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
    signed = slack(body) if headers is None else headers
    async with gateway.http as http:
        return await http.post(
            "/v1/webhooks/slack",
            content=body,
            headers={**signed, "Content-Type": "application/x-www-form-urlencoded"},
        )


async def test_a_button_answers_its_question_once_and_says_who_pressed_it(gateway: Gateway) -> None:
    run_id = await gateway.waiting()
    assert (await press(gateway, form(run_id, option=1))).json() == {"accepted": True}

    event = await gateway.client.get_workflow_handle(f"run:{run_id}").result()
    assert event["payload"]["outcome"] == "done blue"
    again = (await press(gateway, form(run_id, option=0))).json()
    assert not again["accepted"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"user": "U2"}, "U2 is not in people"),
        ({"question": "q2"}, "the question is closed"),
        ({"option": 7}, "the question is closed"),
        ({"action": "other:1"}, "not a button of Perdure"),
    ],
)
async def test_a_press_that_does_not_count_leaves_the_question_open(gateway: Gateway, change: Json, why: str) -> None:
    run_id = await gateway.waiting()
    answer = (await press(gateway, form(run_id, **change))).json()
    assert not answer["accepted"]
    assert why in answer["why"]
    assert (await gateway.get(f"/v1/runs/{run_id}")).json()["state"]["question"]["id"] == "q1"


async def test_an_unsigned_press_is_refused(gateway: Gateway) -> None:
    assert (await press(gateway, form("r1"), {})).status_code == 401
    body = form("r1")
    assert (await press(gateway, body + b"&x=1", slack(body))).status_code == 401


@pytest.mark.parametrize(
    "payload",
    [b"", b"{}", b"[1]", b'{"type":"block_actions"}', b'{"type":"a","type":"block_actions","actions":[]}'],
)
def test_a_payload_that_is_no_interaction_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidEventError):
        assert read_press(payload) is not None


def test_a_press_is_read_from_its_button_alone() -> None:
    sent = {"content-type": "application/x-www-form-urlencoded"}
    read = read_press(Webhook("slack", "s").read_payload(sent, form("r1", option=2)))
    assert read == ButtonPress("r1", "q1", None, 2, "U1", "https://127.0.0.1:9/not-slack")

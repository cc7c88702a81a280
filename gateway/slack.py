"""A press of a button in Slack: the answer of a person to a run's question."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

from activities.people.channels import ANSWER_ACTION
from contracts.run.question import QuestionKind
from contracts.run.signals import Decision, HumanInput
from contracts.sender import Sender
from decisions.errors import ReportedError
from decisions.run.question import QUESTION_DECISIONS
from decisions.text.formatting import truncate
from gateway.auth import Gateway
from gateway.signatures import InvalidEventError
from perdure.client.door import name_person, set_sender
from perdure.client.errors import RejectedError
from perdure.client.runs import query_run_state, submit_answer

FORM = "application/x-www-form-urlencoded"
SLACK_HOSTS = ("hooks.slack.com", "hooks.slack-gov.com")
REPLY_SECONDS = 5.0


@dataclass(frozen=True)
class ButtonPress:
    """A press: the question by run and id, the number of the option, Slack's id of the person, the place of a reply."""

    run_id: str
    question_id: str
    option: int
    user: str
    response_url: str


def read_press(body: bytes) -> ButtonPress | None:
    """Return the press of an answer button in a checked body; None for any other action. Raises InvalidEventError."""
    try:
        payload = json.loads(parse_qs(body.decode(), strict_parsing=True)["payload"][0])
        action = payload["actions"][0] if payload["type"] == "block_actions" else {}
        if not str(action.get("action_id")).startswith(ANSWER_ACTION):
            return None
        value = json.loads(action["value"])
        return ButtonPress(
            run_id=str(value["run_id"]),
            question_id=str(value["question_id"]),
            option=int(value["option"]),
            user=str(payload["user"]["id"]),
            response_url=str(payload.get("response_url", "")),
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise InvalidEventError("the body is not an interaction of Slack") from None


@dataclass(frozen=True)
class PressOutcome:
    """The outcome of a press: the reason if the answer is refused, and the message that the person gets in Slack."""

    refusal: str | None
    reply: Mapping[str, Any]


async def answer_press(gateway: Gateway, webhook: str, people: Mapping[str, str], press: ButtonPress) -> PressOutcome:
    """Answer the question, if the person may and it is open."""
    person = people.get(press.user)
    try:
        if person is None:
            raise RejectedError(f"{press.user} is not in people of [gateway.webhooks.{webhook}] in perdure.toml")
        text = await _submit_option(gateway, webhook, person, press)
    except ReportedError as error:
        reply = {"response_type": "ephemeral", "replace_original": False, "text": f"Not answered: {error}"}
        return PressOutcome(str(error), reply)
    return PressOutcome(None, {"replace_original": True, "text": f"{person} answered: {truncate(text, 300)}"})


async def _submit_option(gateway: Gateway, webhook: str, person: str, press: ButtonPress) -> str:
    session = gateway.session
    view = await query_run_state(session.client, press.run_id)
    questions = view.questions if view is not None else ()
    question = next((asked for asked in questions if asked.id == press.question_id), None)
    if question is None or not 0 <= press.option < len(question.options):
        raise RejectedError("the question is closed")
    option = question.options[press.option]
    is_decision = option in QUESTION_DECISIONS[QuestionKind(question.kind)]
    answer = HumanInput(
        question_id=question.id,
        call=question.call,
        decision=Decision(option) if is_decision else None,
        text=None if is_decision else option,
        by=person,
    )
    people = session.settings.file.people
    set_sender(name_person(people, person, Sender(door=f"webhook:{webhook}")))
    await submit_answer(session.client, press.run_id, answer, session.settings.answer_keys)
    return option


async def send_reply(press: ButtonPress, message: Mapping[str, Any]) -> None:
    """Reply to the person in Slack. The answer counts also if this fails."""
    address = urlsplit(press.response_url)
    if address.scheme != "https" or address.hostname not in SLACK_HOSTS:
        return
    with suppress(httpx.HTTPError):
        async with httpx.AsyncClient(timeout=REPLY_SECONDS, trust_env=False) as client:
            await client.post(press.response_url, json=message)

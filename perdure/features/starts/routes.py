"""External events, which resolve the tasks that wait for them: by a token, or signed by their senders."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx
from fastapi import APIRouter, BackgroundTasks, Path, Request
from pydantic import ConfigDict
from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from perdure.activities.rule_values import RuleReading
from perdure.client.door import name_person, set_sender
from perdure.client.errors import RejectedError
from perdure.contracts.models import FrozenModel, omit_default
from perdure.contracts.people import Sender
from perdure.contracts.run.signals import MAX_SHOWN, Decision, HumanInput
from perdure.contracts.strict_input import parse_strict_json
from perdure.decisions.errors import ReportedError
from perdure.decisions.ids import inbound_workflow_id, platform_name
from perdure.decisions.policy.rules import FindValue
from perdure.decisions.run.question import HAS_CHANGED, QUESTIONS
from perdure.decisions.text.formatting import truncate
from perdure.features.follow_ups.activities import NotAwaitedError
from perdure.features.follow_ups.client import publish_external_event
from perdure.features.follow_ups.contract import Event, Outbound, PostedMessage
from perdure.features.follow_ups.rules.topic import event_id
from perdure.features.notices.channels import ANSWER_ACTION
from perdure.features.starts.contract import InboundEvent, InboundRequest
from perdure.features.starts.project import InboundWork
from perdure.features.starts.rules import StartRule, UnusableEventError, event_facts
from perdure.features.starts.signatures import (
    GITHUB_WINDOW,
    HUMAN_SUBTYPES,
    WINDOW,
    Challenge,
    ForgedSignatureError,
    Headers,
    IgnoredEvent,
    InvalidEventError,
    Webhook,
    WrongPlatformError,
    is_form,
    parse_time,
    read_slack_text,
)
from perdure.gateway.auth import CurrentCaller, CurrentGateway, Gateway, ScopedRoute, needs_scope
from perdure.gateway.problems import ApiError, ProblemKind, describe_problems
from perdure.gateway.requests import note_login_failure, read_body_json
from perdure.gateway.tokens import Scope

BY_A_PERSON = "only events by people begin work"

_EventReader = Callable[[Headers, dict[str, Any], bytes], InboundEvent | str]


@dataclass(frozen=True)
class StartedWork:
    """The ids of the workflows that an event started, and why the other starts take it not; "" if all do."""

    ids: tuple[str, ...] = ()
    why_not: str = ""


def read_inbound(scheme: str, headers: Headers, value: Any, payload: bytes) -> InboundEvent | str:
    """Return the event of a checked payload, or the reason why it begins nothing."""
    try:
        return _READERS[scheme](headers, value, payload)
    except (KeyError, TypeError, ValueError, AttributeError):
        return f"this is no event of the scheme {scheme} that begins work"


async def start_inbound(
    client: Client, task_queue: str, rules: Iterable[StartRule], webhook: str, event: InboundEvent
) -> StartedWork:
    """Start a workflow for each start that the event is for; a repeat starts none. Raises RPCError."""
    started, reasons = list[str](), list[str]()
    for rule in rules:
        reading, facts = RuleReading(), event_facts(event)
        if reason := await reading.run(partial(rule.rejection, event), rule.expressions, facts):
            reasons.append(reason)
            continue
        request = InboundRequest(start=rule.name, event=event, sender=Sender(door=f"webhook:{webhook}"))
        identity = await reading.run(partial(_identify, rule, event), rule.expressions, facts)
        workflow_id = inbound_workflow_id(rule.name, identity)
        started.append(workflow_id)
        try:
            await client.start_workflow(
                "Inbound",
                request,
                id=workflow_id,
                task_queue=task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                static_summary=f"{webhook}: {event.kind}",
            )
        except WorkflowAlreadyStartedError:
            continue
    return StartedWork(tuple(started), "; ".join(reasons))


def _identify(rule: StartRule, event: InboundEvent, find: FindValue) -> str:
    """Return the event's identity for the start; its workflow reports an identity that cannot be evaluated."""
    try:
        return rule.identify(event, find)
    except UnusableEventError:
        return event.id


def _read_slack(_headers: Headers, value: dict[str, Any], _payload: bytes) -> InboundEvent | str:
    event = value["event"] if value["type"] == "event_callback" else {}
    if event.get("subtype") not in HUMAN_SUBTYPES or event.get("bot_id") is not None or "user" not in event:
        return BY_A_PERSON
    if isinstance(event.get("text"), str):
        value = {**value, "event": {**event, "text": read_slack_text(event["text"])}}
    thread = event.get("thread_ts") or event.get("ts")
    place = Outbound(channel_id=event["channel"], platform="slack", text="…", reply_to=thread)
    return InboundEvent(id=value["event_id"], kind=event["type"], body=value, user=event["user"], reply_to=place)


def _read_github(headers: Headers, value: dict[str, Any], payload: bytes) -> InboundEvent | str:
    person, item = value["sender"], value.get("comment") or value.get("issue") or value["pull_request"]
    if person.get("type") == "Bot" or item.get("performed_via_github_app") is not None:
        return BY_A_PERSON
    if not -WINDOW <= time.time() - parse_time(item["updated_at"]) <= GITHUB_WINDOW:
        return f"only events of the last {GITHUB_WINDOW // 60} minutes begin work: GitHub signs no time"
    number = (value.get("issue") or value["pull_request"])["number"]
    place = Outbound(channel_id=value["repository"]["full_name"], platform="github", text="…", reply_to=str(number))
    kind = f"{headers['x-github-event']}.{value['action']}"
    return InboundEvent(id=sha256(payload).hexdigest(), kind=kind, body=value, user=person["login"], reply_to=place)


def _read_standard(headers: Headers, value: dict[str, Any], _payload: bytes) -> InboundEvent | str:
    return InboundEvent(id=headers["webhook-id"], kind=value["type"], body=value)


_READERS: dict[str, _EventReader] = {"standard": _read_standard, "slack": _read_slack, "github": _read_github}


SLACK_HOSTS = ("hooks.slack.com", "hooks.slack-gov.com")
REPLY_SECONDS = 5.0


@dataclass(frozen=True)
class ButtonPress:
    """A press: the question by run and id, the call that the message is about, the number of the option, Slack's id of
    the person, the place of a reply, and the text of the message.
    """

    run_id: str
    question_id: str
    call: str | None
    option: int
    user: str
    response_url: str
    shown: str | None = None


def read_press(body: bytes) -> ButtonPress | None:
    """Return the press of an answer button in a checked payload; None for another action. Raises InvalidEventError."""
    try:
        payload = parse_strict_json(body)
        action = payload["actions"][0] if payload["type"] == "block_actions" else {}
        if not str(action.get("action_id")).startswith(ANSWER_ACTION):
            return None
        value = parse_strict_json(action["value"])
        return ButtonPress(
            run_id=str(value["run_id"]),
            question_id=str(value["question_id"]),
            call=None if value.get("call") is None else str(value["call"]),
            option=int(value["option"]),
            user=str(payload["user"]["id"]),
            response_url=str(payload.get("response_url", "")),
            shown=_shown_text(payload.get("message") or {}),
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise InvalidEventError("the body is not an interaction of Slack") from None


def _shown_text(message: Mapping[str, Any]) -> str | None:
    """Return the text of the message whose button was pressed, as Slack has it."""
    sections = [block["text"]["text"] for block in message.get("blocks", ()) if block["type"] == "section"]
    return "\n".join(map(str, sections))[:MAX_SHOWN] if sections else None


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
    run = gateway.perdure.get_run(press.run_id)
    view = await run.state()
    questions = view.questions if view is not None else ()
    question = next((asked for asked in questions if asked.id == press.question_id), None)
    if question is None or not 0 <= press.option < len(question.options):
        raise RejectedError("the question is closed")
    if press.call != question.call:
        raise RejectedError(f"question {question.id} is not about the call of this message any more: {HAS_CHANGED}")
    option = question.options[press.option]
    is_decision = option in QUESTIONS[question.kind].decisions
    answer = HumanInput(
        question_id=question.id,
        call=press.call,
        shown=press.shown,
        decision=Decision(option) if is_decision else None,
        text=None if is_decision else option,
        by=person,
    )
    people = gateway.session.settings.file.people
    set_sender(name_person(people, person, Sender(door=f"webhook:{webhook}")))
    await run.send_answer(answer)
    return option


async def send_reply(press: ButtonPress, message: Mapping[str, Any]) -> None:
    """Reply to the person in Slack. The answer counts also if this fails."""
    address = urlsplit(press.response_url)
    if address.scheme != "https" or address.hostname not in SLACK_HOSTS:
        return
    with suppress(httpx.HTTPError):
        async with httpx.AsyncClient(timeout=REPLY_SECONDS, trust_env=False) as client:
            await client.post(press.response_url, json=message)


router = APIRouter(prefix="/v1", tags=["events"], route_class=ScopedRoute)
JSON_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}


class MessageBody(PostedMessage):
    model_config = ConfigDict(extra="forbid")


class EventBody(Event):
    """The event `evt.adapter.message.created`, without unknown fields."""

    model_config = ConfigDict(extra="forbid")

    data: MessageBody


class PublishedEvent(FrozenModel):
    """The event's id, by which repeats are recognized, and its topic."""

    event: str
    topic: str


@router.post(
    "/events",
    status_code=202,
    dependencies=[needs_scope(Scope.publish)],
    responses=describe_problems(400, 401, 403, 408, 413, 415, 422, 500, 503),
)
async def publish_event(gateway: CurrentGateway, holder: CurrentCaller, event: EventBody) -> PublishedEvent:
    """Publish an event of a platform that the token allows; repeats have no effect."""
    if platform_name(event.data.platform) not in holder.platforms:
        raise ApiError(403, f"token {holder.name} may not publish events of this platform", field="data.platform")
    try:
        topic = await publish_external_event(gateway.session.client, gateway.session.settings.task_queue, event)
    except NotAwaitedError as error:
        raise ApiError(422, str(error), kind=ProblemKind.not_awaited) from None
    return PublishedEvent(event=event_id(event), topic=topic)


class WebhookResult(FrozenModel):
    """The outcome: published to a topic, the workflows that it started, or the reason why not; or Slack's challenge."""

    accepted: bool
    event: str | None = omit_default(None)
    topic: str | None = omit_default(None)
    started: tuple[str, ...] = omit_default(())
    why: str | None = omit_default(None)
    challenge: str | None = omit_default(None)


@router.post(
    "/webhooks/{name}",
    openapi_extra=JSON_BODY,
    responses=describe_problems(400, 401, 403, 404, 408, 413, 422, 500, 503),
)
async def receive_webhook(
    gateway: CurrentGateway, name: Annotated[str, Path(max_length=64)], request: Request, after: BackgroundTasks
) -> WebhookResult:
    """Accept an event signed by the sender of `[gateway.webhooks.NAME]` within five minutes; repeats have no effect."""
    webhook = _inbound_of(gateway).webhooks.get(name)
    if webhook is None:
        raise ApiError(404, "there is no webhook of this name in perdure.toml")
    body = await request.body()
    try:
        webhook.check_signature(request.headers, body)
        payload = webhook.read_payload(request.headers, body)
        if webhook.scheme == "slack" and is_form(request.headers):
            return await _press_button(gateway, name, webhook, payload, after)
        event = webhook.read_event(request.headers, read_body_json(payload))
    except ForgedSignatureError:
        note_login_failure(request.scope, "wrong_signature")
        reason = "the signature is missing, wrong or too old"
        raise ApiError(401, reason, headers={"WWW-Authenticate": "Signature"}) from None
    except WrongPlatformError as wrong:
        raise ApiError(403, str(wrong), field="data.platform") from None
    except InvalidEventError as unusable:
        raise ApiError(422, str(unusable)) from None
    set_sender(Sender(door=f"webhook:{name}"))
    if isinstance(event, Challenge):
        return WebhookResult(accepted=True, challenge=event.challenge)
    work = await _start_work(gateway, name, webhook, request, payload)
    is_begun = bool(work.ids)
    if isinstance(event, IgnoredEvent):
        why = None if is_begun else work.why_not or event.why
        return WebhookResult(accepted=is_begun, started=work.ids, why=why)
    try:
        topic = await publish_external_event(gateway.session.client, gateway.session.settings.task_queue, event)
    except NotAwaitedError as error:
        why = None if is_begun else "; ".join(filter(None, (str(error), work.why_not)))
        return WebhookResult(accepted=is_begun, event=event_id(event), started=work.ids, why=why)
    return WebhookResult(accepted=True, event=event_id(event), topic=topic, started=work.ids)


def _inbound_of(gateway: Gateway) -> InboundWork:
    inbound: InboundWork = gateway.parts.get("starts", InboundWork())
    return inbound


async def _press_button(
    gateway: Gateway, name: str, webhook: Webhook, payload: bytes, after: BackgroundTasks
) -> WebhookResult:
    """Take the answer of a button; other buttons of the app are ignored. Slack waits three seconds for the response."""
    press = read_press(payload)
    if press is None:
        return WebhookResult(accepted=False, why="not a button of Perdure")
    outcome = await answer_press(gateway, name, webhook.people, press)
    after.add_task(send_reply, press, outcome.reply)
    return WebhookResult(accepted=outcome.refusal is None, why=outcome.refusal)


async def _start_work(gateway: Gateway, name: str, webhook: Webhook, request: Request, payload: bytes) -> StartedWork:
    """Start the work of each `[[start]]` that the event is for."""
    rules = [rule for rule in _inbound_of(gateway).starts if rule.webhook == name]
    if not rules:
        return StartedWork()
    event = read_inbound(webhook.scheme, request.headers, read_body_json(payload), payload)
    if isinstance(event, str):
        return StartedWork(why_not=event)
    session = gateway.session
    return await start_inbound(session.client, session.settings.task_queue, rules, name, event)

"""External events, which resolve the tasks that wait for them: by a token, or signed by their senders."""

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Path, Request
from pydantic import ConfigDict

from activities.followup.topic import NotAwaitedError
from contracts.models import FrozenModel, omit_default
from contracts.sender import Sender
from contracts.topic import Event, PostedMessage
from decisions.followup.topic import event_id, platform_name
from gateway.access_log import note_login_failure
from gateway.auth import CurrentGateway, CurrentToken, Gateway, ScopedRoute, needs_scope
from gateway.inbound import read_inbound, start_inbound
from gateway.problems import ApiError, describe_problems
from gateway.requests import read_body_json
from gateway.signatures import (
    Challenge,
    ForgedSignatureError,
    IgnoredEvent,
    InvalidEventError,
    Webhook,
    WrongPlatformError,
)
from gateway.slack import FORM, answer_press, read_press, send_reply
from gateway.tokens import Scope
from perdure.client.door import set_sender
from perdure.client.runs import publish_external_event

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
async def publish_event(gateway: CurrentGateway, holder: CurrentToken, event: EventBody) -> PublishedEvent:
    """Publish an event of a platform that the token allows; repeats have no effect."""
    if platform_name(event.data.platform) not in holder.platforms:
        raise ApiError(403, f"token {holder.name} may not publish events of this platform", field="data.platform")
    topic = await publish_external_event(gateway.session.client, gateway.session.settings.task_queue, event)
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
    webhook = gateway.webhooks.get(name)
    if webhook is None:
        raise ApiError(404, "there is no webhook of this name in perdure.toml")
    body = await request.body()
    try:
        webhook.check_signature(request.headers, body)
        if webhook.scheme == "slack" and request.headers.get("content-type", "").startswith(FORM):
            return await _press_button(gateway, name, webhook, body, after)
        event = webhook.read_event(request.headers, read_body_json(body))
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
    started = await _start_work(gateway, name, webhook, request, body)
    if isinstance(event, IgnoredEvent):
        return WebhookResult(accepted=bool(started), started=started, why=None if started else event.why)
    try:
        topic = await publish_external_event(gateway.session.client, gateway.session.settings.task_queue, event)
    except NotAwaitedError as error:
        why = None if started else str(error)
        return WebhookResult(accepted=bool(started), event=event_id(event), started=started, why=why)
    return WebhookResult(accepted=True, event=event_id(event), topic=topic, started=started)


async def _press_button(
    gateway: Gateway, name: str, webhook: Webhook, body: bytes, after: BackgroundTasks
) -> WebhookResult:
    """Take the answer of a button; other buttons of the app are ignored. Slack waits three seconds for the response."""
    press = read_press(body)
    if press is None:
        return WebhookResult(accepted=False, why="not a button of Perdure")
    outcome = await answer_press(gateway, name, webhook.people, press)
    after.add_task(send_reply, press, outcome.reply)
    return WebhookResult(accepted=outcome.refusal is None, why=outcome.refusal)


async def _start_work(gateway: Gateway, name: str, webhook: Webhook, request: Request, body: bytes) -> tuple[str, ...]:
    """Start the work of each `[[start]]` that the event is for."""
    rules = [rule for rule in gateway.starts if rule.webhook == name]
    if not rules:
        return ()
    event = read_inbound(webhook.scheme, request.headers, read_body_json(body), body)
    if event is None:
        return ()
    session = gateway.session
    return tuple(await start_inbound(session.client, session.settings.task_queue, rules, name, event))

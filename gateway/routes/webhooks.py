"""External events from webhooks, signed by their senders; the signature is checked before the body is read."""

from typing import Annotated

from fastapi import APIRouter, Path, Request

from activities.followup.topic import NotAwaitedError
from contracts.models import FrozenModel, omit_default
from contracts.sender import Sender
from decisions.followup.topic import event_id
from gateway.access_log import note_login_failure
from gateway.auth import CurrentGateway, ScopedRoute
from gateway.problems import ApiError, describe_problems
from gateway.request_body import read_body_json
from gateway.signatures import Challenge, ForgedSignatureError, IgnoredEvent, InvalidEventError, WrongPlatformError
from perdure.client.door import set_sender
from perdure.client.publish import publish_external_event

router = APIRouter(prefix="/v1/webhooks", tags=["events"], route_class=ScopedRoute)
JSON_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}


class WebhookResult(FrozenModel):
    """The outcome: published to a topic, or the reason why not; or the answer to Slack's challenge."""

    accepted: bool
    event: str | None = omit_default(None)
    topic: str | None = omit_default(None)
    why: str | None = omit_default(None)
    challenge: str | None = omit_default(None)


@router.post(
    "/{name}", openapi_extra=JSON_BODY, responses=describe_problems(400, 401, 403, 404, 408, 413, 422, 500, 503)
)
async def receive_webhook(
    gateway: CurrentGateway, name: Annotated[str, Path(max_length=64)], request: Request
) -> WebhookResult:
    """Accept an event signed by the sender of `[gateway.webhooks.NAME]` within five minutes; repeats have no effect."""
    webhook = gateway.webhooks.get(name)
    if webhook is None:
        raise ApiError(404, "there is no webhook of this name in perdure.toml")
    body = await request.body()
    try:
        webhook.check_signature(request.headers, body)
        read = webhook.read_event(request.headers, read_body_json(body))
    except ForgedSignatureError:
        note_login_failure(request.scope, "wrong_signature")
        reason = "the signature is missing, wrong or too old"
        raise ApiError(401, reason, headers={"WWW-Authenticate": "Signature"}) from None
    except WrongPlatformError as wrong:
        raise ApiError(403, str(wrong), field="data.platform") from None
    except InvalidEventError as unusable:
        raise ApiError(422, str(unusable)) from None
    set_sender(Sender(door=f"webhook:{name}"))
    match read:
        case Challenge(challenge):
            return WebhookResult(accepted=True, challenge=challenge)
        case IgnoredEvent(why):
            return WebhookResult(accepted=False, why=why)
        case event:
            try:
                topic = await publish_external_event(gateway.session.client, gateway.session.settings.task_queue, event)
            except NotAwaitedError as error:
                return WebhookResult(accepted=False, event=event_id(event), why=str(error))
            return WebhookResult(accepted=True, event=event_id(event), topic=topic)

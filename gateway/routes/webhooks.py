"""External events from webhooks, signed by their senders; the signature is checked before the body is read."""

from typing import Annotated

from fastapi import APIRouter, Path, Request

from activities.followup.topic import NotAwaited
from contracts.models import Value, sparse
from contracts.sender import Sender
from decisions.followup.topic import event_id
from gateway.access_log import note_refused_login
from gateway.auth import Here, Route
from gateway.problems import Failure, described
from gateway.request_body import read_json
from gateway.signatures import Challenge, Forged, Ignored, Unusable, WrongPlatform
from perdure.client.door import speak_as
from perdure.client.publish import publish

router = APIRouter(prefix="/v1/webhooks", tags=["events"], route_class=Route)
BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}


class Taken(Value):
    """The outcome: published to a topic, or the reason why not; or the answer to Slack's challenge."""

    accepted: bool
    event: str | None = sparse(None)
    topic: str | None = sparse(None)
    why: str | None = sparse(None)
    challenge: str | None = sparse(None)


@router.post("/{name}", openapi_extra=BODY, responses=described(400, 401, 403, 404, 408, 413, 422, 500, 503))
async def take_webhook(gateway: Here, name: Annotated[str, Path(max_length=64)], request: Request) -> Taken:
    """Accept an event signed by the sender of `[gateway.webhooks.NAME]` within five minutes; repeats have no effect."""
    webhook = gateway.webhooks.get(name)
    if webhook is None:
        raise Failure(404, "there is no webhook of this name in perdure.toml")
    body = await request.body()
    try:
        webhook.check(request.headers, body)
        read = webhook.read(request.headers, read_json(body))
    except Forged:
        note_refused_login(request.scope, "wrong_signature")
        reason = "the signature is missing, wrong or too old"
        raise Failure(401, reason, headers={"WWW-Authenticate": "Signature"}) from None
    except WrongPlatform as wrong:
        raise Failure(403, str(wrong), field="data.platform") from None
    except Unusable as unusable:
        raise Failure(422, str(unusable)) from None
    speak_as(Sender(door=f"webhook:{name}"))
    match read:
        case Challenge(challenge):
            return Taken(accepted=True, challenge=challenge)
        case Ignored(why):
            return Taken(accepted=False, why=why)
        case event:
            try:
                topic = await publish(gateway.session.client, gateway.session.settings.task_queue, event)
            except NotAwaited as error:
                return Taken(accepted=False, event=event_id(event), why=str(error))
            return Taken(accepted=True, event=event_id(event), topic=topic)

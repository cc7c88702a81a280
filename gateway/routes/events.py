"""What happened outside comes in, and meets the task that waits for it."""

from fastapi import APIRouter
from pydantic import ConfigDict

from contracts.models import Value
from contracts.topic import Event, PostedMessage
from decisions.followup.topic import event_id, platform_name
from gateway.auth import Here, Holder, Route, needs
from gateway.problems import Failure, described
from gateway.tokens import Scope
from perdure.client.publish import publish

router = APIRouter(prefix="/v1", tags=["events"], route_class=Route)


class GivenMessage(PostedMessage):
    model_config = ConfigDict(extra="forbid")


class GivenEvent(Event):
    """The event `evt.adapter.message.created`; unknown fields are refused here."""

    model_config = ConfigDict(extra="forbid")

    data: GivenMessage


class Published(Value):
    """By what the event is known when it comes again, and the topic that it was brought to."""

    event: str
    topic: str


@router.post(
    "/events",
    status_code=202,
    dependencies=[needs(Scope.publish)],
    responses=described(400, 401, 403, 408, 413, 415, 422, 500, 503),
)
async def publish_event(here: Here, holder: Holder, event: GivenEvent) -> Published:
    """Publishes an event of a platform that the token may speak for; sent again it counts once."""
    if platform_name(event.data.platform) not in holder.platforms:
        raise Failure(403, f"token {holder.name} may not speak for this platform", field="data.platform")
    topic = await publish(here.session.client, here.session.settings.task_queue, event)
    return Published(event=event_id(event), topic=topic)

"""External events, which resolve the tasks that wait for them."""

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
    """The event `evt.adapter.message.created`, without unknown fields."""

    model_config = ConfigDict(extra="forbid")

    data: GivenMessage


class Published(Value):
    """The event's id, by which repeats are recognized, and its topic."""

    event: str
    topic: str


@router.post(
    "/events",
    status_code=202,
    dependencies=[needs(Scope.publish)],
    responses=described(400, 401, 403, 408, 413, 415, 422, 500, 503),
)
async def publish_event(gateway: Here, holder: Holder, event: GivenEvent) -> Published:
    """Publish an event of a platform that the token allows; repeats have no effect."""
    if platform_name(event.data.platform) not in holder.platforms:
        raise Failure(403, f"token {holder.name} may not publish events of this platform", field="data.platform")
    topic = await publish(gateway.session.client, gateway.session.settings.task_queue, event)
    return Published(event=event_id(event), topic=topic)

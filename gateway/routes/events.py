"""External events, which resolve the tasks that wait for them."""

from fastapi import APIRouter
from pydantic import ConfigDict

from contracts.models import FrozenModel
from contracts.topic import Event, PostedMessage
from decisions.followup.topic import event_id, platform_name
from gateway.auth import CurrentGateway, CurrentToken, ScopedRoute, needs_scope
from gateway.problems import ApiError, describe_problems
from gateway.tokens import Scope
from perdure.client.publish import publish_external_event

router = APIRouter(prefix="/v1", tags=["events"], route_class=ScopedRoute)


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

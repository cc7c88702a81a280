"""A topic: the events and subscriptions it stores, its deliveries to subscribers, and its end (E4)."""

from collections.abc import Iterator

from pydantic_core import to_json

from perdure.decisions.ids import digest_names, platform_name, topic_key
from perdure.features.follow_ups.contract import (
    MAX_EVENT,
    Event,
    PostedMessage,
    Subscription,
    Subscriptions,
    TopicState,
)

TIME_TO_LIVE = 24 * 3600 * 1000  # an event waits this long for its task
MAX_EVENTS, MAX_BYTES = 20, 1024 * 1024  # events, and their bytes together: the state has to fit one payload
MARK = 16  # characters for the subscriber, and as many for the event
MAX_EVENT_ID = 400  # characters; the contract has the same limit for `id`


def event_id(event: Event) -> str:
    """Return the id by which a duplicate of the event is recognized."""
    known = event.id or f"{event.data.platform}:{event.data.channel_id}:{event.data.message_id}"
    return known if len(known) <= MAX_EVENT_ID else digest_names(known, size=64)


def replied_to(message: PostedMessage) -> str | None:
    """Return the id of the message that this one is a strict reply to, as its platform's adapter reports it."""
    adapter_data = (message.raw or {}).get(message.platform)
    replied = adapter_data.get("replyToMessageId") if isinstance(adapter_data, dict) else None
    return replied if isinstance(replied, str) and replied else None


def topic_of(event: Event) -> str | None:
    """Return the key of the topic whose tasks wait for this event, if it is a reply."""
    message_id = replied_to(event.data)
    return message_id and topic_key(platform_name(event.data.platform), event.data.channel_id, message_id)


def event_size_error(event: Event) -> str | None:
    size = len(to_json(event))
    return f"the event has {size:,} bytes, and {MAX_EVENT:,} is the most" if size > MAX_EVENT else None


def open_topic(key: str, now: int) -> TopicState:
    return TopicState(key=key, ends_at=now + TIME_TO_LIVE)


def record_event(state: TopicState, event: Event, now: int) -> TopicState:
    """Record an event. A duplicate changes nothing; an event without open subscriptions is late, and still stored."""
    name = event_id(event)
    if _mark(name) in state.known or any(event_id(other) == name for other in state.events):
        return state
    events = (*state.events, event.evolve(id=name))
    stored = _latest_events(events)
    is_late = bool(state.subscriptions) and not any(_is_open(one, now) for one in state.subscriptions)
    marks = {_mark(event_id(one)) for one in stored}
    return state.evolve(
        events=stored,
        marks=tuple(mark for mark in state.marks if mark[MARK:] in marks),
        known=state.known.add(_mark(name)),
        forgotten=state.forgotten + len(events) - len(stored),
        ends_at=now + TIME_TO_LIVE,
        late=state.late.add(name) if is_late else state.late,
    )


def _latest_events(events: tuple[Event, ...]) -> tuple[Event, ...]:
    latest: list[Event] = []
    room = MAX_BYTES
    for event in reversed(events[-MAX_EVENTS:]):
        room -= len(to_json(event))
        if room < 0:
            break
        latest.insert(0, event)
    return tuple(latest)


def record_subscription(state: TopicState, subscription: Subscription, now: int) -> TopicState:
    """Record a subscription, its renewal, or its end. If there are too many, drop those that have ended first."""
    key = subscription.subscriber, subscription.task_id
    others = [one for one in state.subscriptions if (one.subscriber, one.task_id) != key]
    stored = Subscriptions(sorted((*others, subscription), key=lambda one: _is_open(one, now)))
    waiting = {_mark(one.subscriber, one.task_id) for one in stored if _is_open(one, now)}
    marks = tuple(mark for mark in state.marks if mark[:MARK] in waiting)
    return state.evolve(subscriptions=stored, marks=marks)


def pending_deliveries(state: TopicState, now: int) -> Iterator[tuple[Subscription, Event]]:
    """Yield the deliveries to make: every event to every open subscription, once, oldest event first."""
    sent = set(state.marks)
    waiting = [(one, _mark(one.subscriber, one.task_id)) for one in state.subscriptions if _is_open(one, now)]
    for event in state.events:
        name = _mark(event_id(event))
        for subscription, mark in waiting:
            if mark + name not in sent:
                yield subscription, event


def record_delivery(state: TopicState, subscription: Subscription, event: Event) -> TopicState:
    mark = _mark(subscription.subscriber, subscription.task_id) + _mark(event_id(event))
    return state.evolve(marks=(*state.marks, mark))


def end_subscriptions(state: TopicState, subscriber: str) -> TopicState:
    subscriptions = Subscriptions(
        one.evolve(expires_at=0) if one.subscriber == subscriber else one for one in state.subscriptions
    )
    return state.evolve(subscriptions=subscriptions)


def is_topic_over(state: TopicState, now: int) -> bool:
    return now >= state.ends_at and not any(_is_open(one, now) for one in state.subscriptions)


def next_check(state: TopicState, now: int) -> int:
    """Return the time of the next check: at the end of the topic or of a subscription, within about a day."""
    ends = [one.expires_at for one in state.subscriptions if one.expires_at is not None and one.expires_at > now]
    return min([state.ends_at if state.ends_at > now else now + TIME_TO_LIVE, *ends])


def _mark(*names: str) -> str:
    return digest_names(*names, size=MARK // 2)


def _is_open(subscription: Subscription, now: int) -> bool:
    return subscription.expires_at is None or subscription.expires_at > now

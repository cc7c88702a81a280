"""A topic: what it keeps of events and subscriptions, whom it tells of what, and when it is over (E4)."""

from collections.abc import Iterator
from hashlib import blake2b

from pydantic_core import to_json

from contracts.topic import MOST_EVENT, Event, PostedMessage, Subscription, TopicState
from decisions.ids import topic_key

TIME_TO_LIVE = 24 * 3600 * 1000  # an event waits this long for its task
MOST_KEPT, MOST_BYTES = 20, 1024 * 1024  # events, and what they take together: the state has to fit one payload
MOST_SUBSCRIPTIONS = 300
MOST_NOTED = 20
MAX_KNOWN = 5000  # events that are known again
MARK = 16  # characters for who waits, and as many for the event
MOST_EVENT_ID = 400  # characters, as of an `id` that comes with the event


def event_id(event: Event) -> str:
    """By what an event that comes again is known."""
    known = event.id or f"{event.data.platform}:{event.data.channel_id}:{event.data.message_id}"
    return known if len(known) <= MOST_EVENT_ID else blake2b(known.encode(errors="surrogatepass")).hexdigest()


def replied_to(message: PostedMessage) -> str | None:
    """The message that this one is a strict reply to, as the adapter of its platform tells it."""
    told = (message.raw or {}).get(message.platform)
    replied = told.get("replyToMessageId") if isinstance(told, dict) else None
    return replied if isinstance(replied, str) and replied else None


def platform_name(written: str) -> str:
    """One platform, however it is written: a model likes "Slack"."""
    return written.strip().lower() or written


def topic_of(event: Event) -> str | None:
    """Where tasks wait for this event; None for one that replies to nothing."""
    replied = replied_to(event.data)
    return replied and topic_key(platform_name(event.data.platform), event.data.channel_id, replied)


def too_large(event: Event) -> str | None:
    size = len(to_json(event))
    return f"the event has {size:,} bytes, and {MOST_EVENT:,} is the most" if size > MOST_EVENT else None


def opened(key: str, now: int) -> TopicState:
    return TopicState(key=key, ends_at=now + TIME_TO_LIVE)


def carried(state: TopicState) -> TopicState:
    """As an earlier execution has left it, perhaps one of an earlier version."""
    marks = (_mark(each.subscriber, each.task_id) + _mark(each.event) for each in state.sent)
    return state.model_copy(update={"sent": (), "marks": (*state.marks, *marks)})


def received(state: TopicState, event: Event, now: int) -> TopicState:
    """An event that comes again is the same. One that nobody waits for any more is late, and kept all the same."""
    name = event_id(event)
    if _mark(name) in state.known or any(event_id(each) == name for each in state.events):
        return state
    known = (*state.events, event.model_copy(update={"id": name}))
    kept = _bounded(known)
    is_late = bool(state.subscriptions) and not any(_is_open(each, now) for each in state.subscriptions)
    marks = {_mark(event_id(each)) for each in kept}
    changes = {
        "events": kept,
        "marks": tuple(mark for mark in state.marks if mark[MARK:] in marks),
        "known": (*state.known, _mark(name))[-MAX_KNOWN:],
        "forgotten": state.forgotten + len(known) - len(kept),
        "ends_at": now + TIME_TO_LIVE,
        "late": (*state.late, name)[-MOST_NOTED:] if is_late else state.late,
    }
    return state.model_copy(update=changes)


def _bounded(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """The latest ones, as many as fit."""
    kept: list[Event] = []
    room = MOST_BYTES
    for event in reversed(events[-MOST_KEPT:]):
        room -= len(to_json(event))
        if room < 0:
            break
        kept.insert(0, event)
    return tuple(kept)


def subscribed(state: TopicState, subscription: Subscription, now: int) -> TopicState:
    """A subscription, its renewal, or its end. Where there are too many, those that have ended go first."""
    others = [each for each in state.subscriptions if not _is_same(each, subscription)]
    kept = sorted((*others, subscription), key=lambda each: _is_open(each, now))[-MOST_SUBSCRIPTIONS:]
    waiting = {_mark(each.subscriber, each.task_id) for each in kept if _is_open(each, now)}
    marks = tuple(mark for mark in state.marks if mark[:MARK] in waiting)
    return state.model_copy(update={"subscriptions": tuple(kept), "marks": marks})


def todo(state: TopicState, now: int) -> Iterator[tuple[Subscription, Event]]:
    """Who has to be told of what: each open subscription of each event, once, the oldest event first."""
    sent = set(state.marks)
    waiting = [(each, _mark(each.subscriber, each.task_id)) for each in state.subscriptions if _is_open(each, now)]
    for event in state.events:
        name = _mark(event_id(event))
        for each, mark in waiting:
            if mark + name not in sent:
                yield each, event


def told(state: TopicState, subscription: Subscription, event: Event) -> TopicState:
    mark = _mark(subscription.subscriber, subscription.task_id) + _mark(event_id(event))
    return state.model_copy(update={"marks": (*state.marks, mark)})


def gone(state: TopicState, subscriber: str) -> TopicState:
    """The subscriber has ended: nothing of it is open any more."""
    left = tuple(
        each.model_copy(update={"expires_at": 0}) if each.subscriber == subscriber else each
        for each in state.subscriptions
    )
    return state.model_copy(update={"subscriptions": left})


def is_over(state: TopicState, now: int) -> bool:
    """Its time has passed, and nobody waits here."""
    return now >= state.ends_at and not any(_is_open(each, now) for each in state.subscriptions)


def next_look(state: TopicState, now: int) -> int:
    """When time itself may have changed something: the end of the topic, or of a subscription; within a day or so."""
    ends = [each.expires_at for each in state.subscriptions if each.expires_at is not None and each.expires_at > now]
    return min([state.ends_at if state.ends_at > now else now + TIME_TO_LIVE, *ends])


def _mark(*names: str) -> str:
    return blake2b("\0".join(names).encode(errors="surrogatepass"), digest_size=MARK // 2).hexdigest()


def _is_open(subscription: Subscription, now: int) -> bool:
    return subscription.expires_at is None or subscription.expires_at > now


def _is_same(one: Subscription, other: Subscription) -> bool:
    return (one.subscriber, one.task_id) == (other.subscriber, other.task_id)

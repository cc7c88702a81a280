"""A topic tells each open subscription of each event once, whichever comes first, and forgets nobody who waits."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.models import MAX_NESTING
from perdure.decisions.ids import topic_key
from perdure.features.follow_ups.contract import MAX_EVENT, Event, Subscription, Subscriptions, TaskResolved, TopicState
from perdure.features.follow_ups.rules import kinds, topic
from perdure.features.follow_ups.rules.topic import TIME_TO_LIVE


def event(name: str, text: str = "hi", **fields: Any) -> Event:
    raw = {"discord": {"replyToMessageId": "m"}}
    data = {"platform": "discord", "channelId": "c", "messageId": name, "userId": "u", "text": text, "ts": 1}
    return Event.model_validate({"type": "evt.adapter.message.created", "data": {**data, "raw": raw, **fields}})


def subscribe(name: str, expires_at: int | None = None) -> Subscription:
    return Subscription(subscriber=f"wf:{name}", task_id="t", expires_at=expires_at)


HAPPENINGS = st.lists(st.tuples(st.sampled_from(["event", "subscribe"]), st.sampled_from("abcd")), max_size=20)


@given(happenings=HAPPENINGS)
def test_each_subscriber_gets_each_event_once_in_any_order(happenings: list[tuple[str, str]]) -> None:
    state = topic.open_topic("k", 0)
    sent: list[tuple[str, str]] = []
    for what, name in happenings:
        state = (
            topic.record_event(state, event(name), 1)
            if what == "event"
            else topic.record_subscription(state, subscribe(name), 1)
        )
        while due := next(topic.pending_deliveries(state, 1), None):
            state = topic.record_delivery(state, *due)
            sent.append((due[0].subscriber, topic.event_id(due[1])))
    events = {f"discord:c:{name}" for what, name in happenings if what == "event"}
    waiting = {f"wf:{name}" for what, name in happenings if what == "subscribe"}
    assert sorted(sent) == sorted((w, e) for w in waiting for e in events)


@given(parts=st.lists(st.text(min_size=1, max_size=200), min_size=3, max_size=3))
def test_the_reply_to_a_message_comes_where_its_task_waits(parts: list[str]) -> None:
    channel, message, user = (part.encode("utf-8", "replace").decode() for part in parts)
    wanted = kinds.ReplyInput(channel_id=channel, message_id=message)
    raw = {"discord": {"replyToMessageId": message}}
    said = event("r", channelId=channel, userId=user, raw=raw)
    assert topic.topic_of(said) == kinds.reply_topic(wanted)
    assert kinds.match_reply(wanted, said) is not None


def test_an_event_that_no_longer_fits_is_not_news_when_it_comes_again() -> None:
    state = topic.open_topic("k", 0)
    for number in range(topic.MAX_EVENTS + 1):
        state = topic.record_event(state, event(str(number)), 1)
    assert topic.record_event(state, event("0"), 2) == state


def slack_event(ts: str, text: str, platform: str = "slack") -> Event:
    return event(ts, text, platform=platform, raw={platform: {"replyToMessageId": "100.1"}})


def test_a_second_question_in_a_thread_gets_only_later_replies() -> None:
    """The topic is the thread, which keeps the answer to the first question for a day."""
    about = {"platform": "slack", "channelId": "c", "messageId": "100.1"}
    second = kinds.AnyReplyInput.model_validate({**about, "after": "1000.000200"})
    first = kinds.AnyReplyInput.model_validate(about)
    state = topic.record_subscription(topic.open_topic(kinds.reply_topic(first), 0), subscribe("first"), 0)
    for said in (slack_event("999.9", "yes"), slack_event("1000.000200", "my own"), slack_event("1000.0003", "Friday")):
        state = topic.record_event(state, said, 1)
    state = topic.record_subscription(topic.end_subscriptions(state, "wf:first"), subscribe("second"), 2)
    messages = [said for _, said in topic.pending_deliveries(state, 2)]
    assert [said.data.text for said in messages if kinds.match_reply(first, said)] == ["yes", "my own", "Friday"]
    assert [said.data.text for said in messages if kinds.match_reply(second, said)] == ["Friday"]
    assert kinds.match_reply(second, slack_event("soon", "not to be ordered")) is None


@pytest.mark.parametrize("wanted", ["slack", " Slack"])
@pytest.mark.parametrize("platform", ["slack", "Slack"])
def test_a_platform_is_one_however_it_is_written(wanted: str, platform: str) -> None:
    waits_for = kinds.AnyReplyInput(platform=wanted, channel_id="c", message_id="100.1")
    said = slack_event("101.1", "yes", platform)
    assert topic.topic_of(said) == kinds.reply_topic(waits_for)
    assert kinds.match_reply(waits_for, said) is not None


def test_ids_that_run_into_one_another_are_different_topics() -> None:
    keys = {topic_key("discord", "a:b", "c"), topic_key("discord", "a", "b:c"), topic_key("discord:a", "b", "c")}
    assert len(keys) == 3
    assert len(topic_key("discord", "é" * 200, "m" * 200)) == 32


def test_an_event_that_replies_to_nothing_has_no_topic() -> None:
    assert topic.topic_of(event("a", raw=None)) is None
    assert topic.topic_of(event("a", raw={"discord": {"replyToMessageId": ""}})) is None


def test_it_outlives_its_time_while_a_subscriber_waits() -> None:
    state = topic.record_subscription(topic.open_topic("k", 0), subscribe("a", TIME_TO_LIVE + 10), 0)
    assert not topic.is_topic_over(state, TIME_TO_LIVE)
    assert topic.next_check(state, TIME_TO_LIVE) == TIME_TO_LIVE + 10
    assert topic.is_topic_over(state, TIME_TO_LIVE + 10)
    assert not topic.is_topic_over(topic.record_subscription(state, subscribe("a"), 0), 10 * TIME_TO_LIVE)
    ended = topic.record_subscription(topic.record_subscription(state, subscribe("a"), 0), subscribe("a", 0), 0)
    assert topic.is_topic_over(ended, TIME_TO_LIVE)


def test_an_event_after_the_last_subscription_is_late_and_not_delivered() -> None:
    state = topic.record_subscription(topic.open_topic("k", 0), subscribe("a", 5), 0)
    state = topic.record_event(state, event("r"), 6)
    assert (state.late, list(topic.pending_deliveries(state, 6))) == (("discord:c:r",), [])


def test_an_ended_subscriber_gets_no_more_events() -> None:
    state = topic.record_subscription(
        topic.record_subscription(topic.open_topic("k", 0), subscribe("a"), 0), subscribe("b"), 0
    )
    state = topic.record_event(topic.end_subscriptions(state, "wf:a"), event("r"), 1)
    assert [each.subscriber for each, _ in topic.pending_deliveries(state, 1)] == ["wf:b"]


def test_however_many_have_ended_those_that_wait_are_kept() -> None:
    state = topic.record_subscription(topic.open_topic("k", 0), subscribe("first"), 0)
    for n in range(3 * Subscriptions.most):
        state = topic.record_subscription(
            topic.record_subscription(state, subscribe(f"{n}"), 1), subscribe(f"{n}", 0), 1
        )
    state = topic.record_event(state, event("r"), 1)
    assert [each.subscriber for each, _ in topic.pending_deliveries(state, 1)] == ["wf:first"]
    assert len(state.subscriptions) == Subscriptions.most


def test_what_it_keeps_is_bounded_and_what_it_drops_is_counted() -> None:
    state = topic.open_topic("k", 0)
    for n in range(30):
        state = topic.record_event(state, event(f"r{n}"), 1)
    assert (len(state.events), state.forgotten, topic.event_id(state.events[-1])) == (20, 10, "discord:c:r29")
    for n in range(10):
        state = topic.record_event(state, event(f"big{n}", "x" * (MAX_EVENT - 500)), 1)
    assert len(state.model_dump_json()) < 1_200_000
    assert TopicState.model_validate(state.model_dump(mode="json")) == state


def nest(depth: int) -> Any:
    return [nest(depth - 1)] if depth > 1 else {}


def test_an_event_that_is_nested_too_deep_to_be_passed_on_is_refused() -> None:
    raw = {"discord": {"replyToMessageId": "m"}, "deep": nest(MAX_NESTING - 1)}
    assert TaskResolved(task_id="t", event=event("r", raw=raw)).event is not None
    with pytest.raises(ValueError, match="nested 50 deep"):
        event("r", raw={"deep": nest(MAX_NESTING)})
    with pytest.raises(ValueError, match="nested 50 deep"):
        Event.model_validate({**event("r").model_dump(), "headers": {"deep": nest(MAX_NESTING)}})


def test_an_event_beyond_the_limit_is_named_with_its_size() -> None:
    why = topic.event_size_error(event("a", "x" * 3_000_000))
    assert why is not None
    assert why.startswith("the event has 3,000,")
    assert topic.event_size_error(event("a", "x" * 200_000)) is None


def test_the_state_that_a_topic_continues_with_fits_one_payload() -> None:
    """2 MiB: with all events as large as it keeps, and each delivered to all who may wait."""
    state = topic.open_topic("k" * 1000, 0)
    for number in range(Subscriptions.most):
        subscriber = f"wf:{number:0500}"
        state = topic.record_subscription(state, Subscription(subscriber=subscriber, task_id=f"{number:0200}"), 0)
    for number in range(topic.MAX_EVENTS):
        state = topic.record_event(state, event(f"{number:0200}", "x" * 40_000), 0)
    due = list(topic.pending_deliveries(state, 1))
    for subscription, delivered in due:
        state = topic.record_delivery(state, subscription, delivered)
    assert len(due) == Subscriptions.most * topic.MAX_EVENTS
    assert next(topic.pending_deliveries(state, 1), None) is None
    assert len(state.model_dump_json()) < 2 * 1024 * 1024

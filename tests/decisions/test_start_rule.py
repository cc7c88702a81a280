"""A `[[start]]` reads an event: what it is for, who it is, and a goal that quotes it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.decisions.policy.rules import ExpressionError
from perdure.features.starts.contract import InboundEvent
from perdure.features.starts.rules import StartRule, UnusableEventError, compile_start, render_goal, render_name

BASE = {
    "name": "x",
    "webhook": "w",
    "on": ("a",),
    "agent": None,
    "goal": "do {text}",
    "fields": {"text": "event.text"},
    "conversation": None,
    "answer": False,
    "when": None,
    "dedupe": None,
}


def rule(**changes: Any) -> StartRule:
    return compile_start({**BASE, **changes})


def event(kind: str = "a", **body: Any) -> InboundEvent:
    return InboundEvent(id="e1", kind=kind, body=body)


@pytest.mark.parametrize(
    ("when", "taken"),
    [(None, True), ("event.n > 1", True), ("event.n > 5", False), ("event.missing > 1", True), ("event.n", True)],
)
def test_an_event_is_left_out_only_if_its_condition_is_known_to_be_false(when: str | None, taken: bool) -> None:
    reason = rule(when=when).rejection(event(n=2, text="t"))
    assert reason == (None if taken else "`when` of start x is false for this event")
    assert rule(when=when).rejection(event("b", n=2, text="t")) == "start x is for a, and this is b"


def test_a_condition_that_cannot_be_evaluated_begins_nothing_and_says_so() -> None:
    with pytest.raises(UnusableEventError, match="cannot be evaluated"):
        rule(when="event.missing > 1").prepare(event(text="t"))


@pytest.mark.parametrize("text", [[], {}])
def test_a_field_without_a_text_is_named(text: Any) -> None:
    with pytest.raises(UnusableEventError, match="field text has no text"):
        rule().prepare(event(text=text))


@pytest.mark.parametrize("text", [None, ""])
def test_what_a_sender_left_empty_is_an_empty_text(text: Any) -> None:
    assert rule().prepare(event(text=text)).goal == "do "
    added = rule(when="!event.text.contains('later')", fields={"text": "'it is: ' + event.text"})
    assert added.prepare(event(text=text)).goal == 'do "it is: "'
    assert rule(when="event.text == null").rejection(event(text=None)) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"goal": "{text}"}, "the goal is empty"),
        ({"conversation": "c-{text}"}, "the field text of the conversation is empty"),
    ],
)
def test_work_without_a_goal_or_a_conversation_of_its_own_is_not_begun(changes: Any, reason: str) -> None:
    for text in (None, ""):
        with pytest.raises(UnusableEventError, match=reason):
            rule(**changes).prepare(event(text=text))
    with pytest.raises(UnusableEventError, match="dedupe is empty"):
        rule(dedupe="event.text").identify(event(text=None))


def test_the_identity_is_that_of_the_sender_or_of_the_expression() -> None:
    assert rule().identify(event()) == "e1"
    assert rule(dedupe="string(event.n) + '-' + kind").identify(event(n=3)) == "3-a"


@pytest.mark.parametrize("changes", [{"when": "nobody.x"}, {"dedupe": "1 +"}, {"fields": {"text": "args.x"}}])
def test_an_expression_that_is_not_valid_is_refused_before_any_event(changes: Any) -> None:
    with pytest.raises(ExpressionError):
        rule(**changes)


@given(st.text(), st.text())
def test_a_field_cannot_leave_its_quotes_or_take_the_place_of_another(one: str, two: str) -> None:
    goal = render_goal("A {one} B {two} C", {"one": one, "two": two})
    assert goal.startswith("A ")
    assert goal.endswith(" C")
    assert goal == render_goal("A {one}", {"one": one}) + render_goal(" B {two} C", {"two": two})
    for line in goal.splitlines():
        if line.startswith("A "):
            break
    else:
        raise AssertionError(goal)


@given(st.text(min_size=1))
def test_a_short_text_in_a_goal_is_one_json_string(text: str) -> None:
    goal = render_goal("{t}", {"t": text})
    if "\n" not in goal:
        assert isinstance(json.loads(goal), str)


@given(st.text(max_size=500))
def test_the_id_of_a_conversation_is_short_and_safe(text: str) -> None:
    name = render_name("slack-{t}", {"t": text})
    assert 0 < len(name) <= 200
    assert name.isascii()
    assert name.isprintable()

"""Tasks of MCP servers, and what servers ask people: replies that are not believed, links, forms and answers."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.run.signals import Decision, HumanInput, Question, QuestionKind
from perdure.contracts.tool import InputRequest, ServerTask, Unfinished
from perdure.decisions.people.form import describe_form, form_flaw, read_form
from perdure.decisions.run.question import answer_rejection
from perdure.decisions.text.formatting import format_doubt, format_task
from perdure.decisions.unfinished import (
    MAX_INPUTS,
    MOST_PAUSE,
    SKEW,
    UNSEEN,
    format_input,
    is_given_up,
    pause_before_check,
    to_response,
    url_flaw,
)
from perdure.features.mcp.rules import (
    input_key,
    read_elicitations,
    read_task,
    to_input_request,
    to_input_requests,
)

NOW = datetime(2026, 11, 28, 12, 3, tzinfo=UTC)
RAW = {"taskId": "t1", "status": "working", "createdAt": NOW.isoformat(), "ttlMs": 1_620_000, "pollIntervalMs": 500}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)


def task(**changes: Any) -> ServerTask:
    read = read_task("bank", RAW | changes, NOW)
    assert isinstance(read, ServerTask)
    return read


def test_a_task_is_told_with_its_status_its_last_sight_and_its_time() -> None:
    seen = task(statusMessage="paying")
    assert format_task(seen) == "task t1 of server bank: working, paying; looked at 12:03 UTC, expires 12:30 UTC"
    assert format_task(task(ttlMs=86_400_000)).endswith("expires 2026-11-29 12:03 UTC")
    assert "expires" not in format_task(task(ttlMs=None))
    assert "task t1 of server bank: working" in format_doubt("pay", {}, seen)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"taskId": "t2"}, "it answered with the task t2 instead"),
        ({"taskId": ""}, "no usable taskId"),
        ({"taskId": "a b"}, "no usable taskId"),
        ({"taskId": "x\r\nHost: evil"}, "no usable taskId"),
        ({"taskId": "x" * 513}, "no usable taskId"),
        ({"taskId": 7}, "no usable taskId"),
        ({"status": None}, "no status"),
    ],
)
def test_a_reply_that_is_not_of_the_task_is_not_believed(changes: dict[str, Any], reason: str) -> None:
    read = read_task("bank", RAW | changes, NOW, task())
    assert isinstance(read, str)
    assert reason in read


@given(JSON, JSON, JSON, JSON)
def test_no_reply_of_a_server_breaks_the_reading(ttl: Any, poll: Any, created: Any, message: Any) -> None:
    raw = RAW | {"ttlMs": ttl, "pollIntervalMs": poll, "createdAt": created, "statusMessage": message}
    read = read_task("bank", raw, NOW)
    assert isinstance(read, ServerTask)
    assert read.created_at <= NOW
    assert timedelta() < pause_before_check(read, NOW) <= timedelta(seconds=MOST_PAUSE)


def test_the_pause_between_two_looks_grows_with_age_and_ends_at_the_expiry() -> None:
    seen = task(ttlMs=86_400_000)

    def pause(seconds: float) -> float:
        return pause_before_check(seen, NOW + timedelta(seconds=seconds)).total_seconds()

    assert [pause(0), pause(100), pause(3600), pause(50_000)] == [0.5, 5.0, 180.0, 300.0]
    assert pause(86_399) == 1.0
    assert pause_before_check(task(pollIntervalMs=0, ttlMs=None), NOW).total_seconds() == 0.2


def test_a_task_is_given_up_after_its_time_or_a_day_without_a_sight() -> None:
    seen = task()
    assert seen.expires_at is not None
    assert not is_given_up(seen, seen.expires_at + SKEW)
    assert is_given_up(seen, seen.expires_at + SKEW + timedelta(seconds=1))
    lasting = task(ttlMs=None)
    assert not is_given_up(lasting, NOW + UNSEEN)
    assert is_given_up(lasting, NOW + UNSEEN + timedelta(seconds=1))


@pytest.mark.parametrize(
    "url",
    [
        "https://bank.example/a?b=c#d",
        "https://bank.example:8443/",
        "http://127.0.0.1:8080/x",
        "http://localhost/",
        "http://[::1]:9/",
    ],
)
def test_a_link_that_people_may_open(url: str) -> None:
    assert url_flaw(url) is None


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://bank.example/", "is http, not https"),
        ("javascript:alert(1)", "hides its host"),
        ("file:///etc/passwd", "hides its host"),
        ("ftp://bank.example/", "is ftp, not https"),
        ("https://bank.example@evil.example/", "hides its host"),
        ("https://:pw@evil.example/", "hides its host"),
        ("https://evil.example\\@bank.example/", "plain characters"),
        ("https://bаnk.example/", "plain characters"),  # a Cyrillic letter
        ("https://bank.example/\u202egpj", "plain characters"),
        ("https://bank.example/a b", "plain characters"),
        ("https://bank.example:port/", "no address"),
        ("https://[bank/", "no address"),
        ("https:///path", "hides its host"),
        ("http://localhost.evil.example/", "is http"),
        ("https://" + "a" * 2000, "plain characters"),
        (None, "plain characters"),
    ],
)
def test_a_link_that_people_are_not_asked_to_open(url: Any, reason: str) -> None:
    flaw = url_flaw(url)
    assert flaw is not None
    assert reason in flaw
    asked = to_input_request("k", {"method": "elicitation/create", "params": {"mode": "url", "url": url}})
    assert (asked.url, asked.refused) == ("", flaw)


def test_the_host_of_a_link_is_shown_before_the_words_of_the_server() -> None:
    words = "Go to https://good.example/ \x1b[2J"
    params = {"mode": "url", "message": words, "url": "https://evil.example/x"}
    asked = to_input_request("k", {"method": "elicitation/create", "params": params})
    text = format_input(asked, Unfinished(way="retry", server="bank"), "pay rent")
    assert text.index("a page of evil.example") < text.index("good.example")
    assert "https://evil.example/x" in text


FIELDS = {
    "size": {"type": "string", "enum": ["small", "large"], "title": "Size"},
    "count": {"type": "integer", "minimum": 1, "maximum": 9, "default": 2},
    "gift": {"type": "boolean"},
    "note": {"type": "string", "maxLength": 5},
    "weight": {"type": "number"},
    "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "maxItems": 2},
    "who": {"type": "string", "oneOf": [{"const": "u1", "title": "Ada"}, {"const": "u2", "title": "Bob"}]},
}
FORM = {"type": "object", "properties": FIELDS, "required": ["size"]}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("size: small", {"size": "small", "count": 2}),
        ("size = LARGE\ncount: 3", {"size": "large", "count": 3}),
        ('{"size": "small", "gift": true, "weight": 1.5}', {"size": "small", "count": 2, "gift": True, "weight": 1.5}),
        ("size: small\ngift: no\nweight: 2\ntags: a, b", None),
        ("size: small\nwho: ada", {"size": "small", "count": 2, "who": "u1"}),
    ],
)
def test_the_values_that_a_person_writes_become_typed(text: str, values: dict[str, Any] | None) -> None:
    expected = values or {"size": "small", "count": 2, "gift": False, "weight": 2, "tags": ["a", "b"]}
    assert read_form(FORM, text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a value is missing: size"),
        ("size: medium", "size: expected one of: small, large"),
        ("size: small\ncount: 10", "count: expected a number from 1 to 9"),
        ("size: small\ncount: 1.5", "count: expected a whole number"),
        ("size: small\ngift: maybe", "gift: expected yes or no"),
        ("size: small\nnote: too long", "note: expected 0 to 5 characters"),
        ("size: small\nweight: nan", "weight: expected a number"),
        ('{"size": ["small"]}', "size: expected one of"),
        ('{"size": "small", "weight": 1' + "0" * 400 + "}", "weight: expected a number"),
        ("size: small\ntags: a, c", "tags: expected one of: a, b"),
        ("colour: red", "give each value in a line"),
        ("[1]", "give each value in a line"),
    ],
)
def test_values_that_do_not_fit_have_a_reason(text: str, reason: str) -> None:
    read = read_form(FORM, text)
    assert isinstance(read, str)
    assert reason in read


def test_a_form_of_one_field_takes_the_value_alone() -> None:
    one = {"type": "object", "properties": {"name": {"type": "string"}}}
    assert read_form(one, "Ada: Countess") == {"name": "Ada: Countess"}
    assert read_form(one, "name: Ada") == {"name": "Ada"}


def test_a_form_is_described_with_its_choices() -> None:
    lines = describe_form(FORM).splitlines()
    assert lines[:2] == [
        "- size (small or large, required): Size",
        "- count (a whole number, 2 if left out, optional)",
    ]
    assert "- who (u1 – Ada or u2 – Bob, optional)" in lines


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (None, "no object"),
        ({"type": "object"}, "no object"),
        ({"type": "array", "properties": {}}, "no object"),
        ({"type": "object", "properties": {"a": {"type": "object"}}}, "field 'a' is not plain"),
        ({"type": "object", "properties": {"a": {"type": ["string"]}}}, "field 'a' is not plain"),
        ({"type": "object", "properties": {"a": {"type": "integer", "minimum": "x"}}}, "field 'a' is not plain"),
        ({"type": "object", "properties": {"a": {"enum": [1]}}}, "field 'a' is not plain"),
        ({"type": "object", "properties": {"a": {"type": "boolean", "default": "maybe"}}}, "field 'a' is not plain"),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, "requires a field"),
        ({"type": "object", "properties": {"a": {}}, "required": [["b"]]}, "requires a field"),
        ({"type": "object", "properties": {str(n): {} for n in range(21)}}, "larger than"),
        ({"type": "object", "properties": {"a": {"title": "x" * 20_000}}}, "larger than"),
    ],
)
def test_a_schema_that_is_no_form_is_refused(schema: Any, reason: str) -> None:
    flaw = form_flaw(schema)
    assert flaw is not None
    assert reason in flaw


@given(
    st.dictionaries(
        st.sampled_from(["type", "enum", "oneOf", "default", "minimum", "maxLength", "items", "title", "enumNames"]),
        JSON | st.sampled_from(["string", "integer", "number", "boolean", "array"]),
    ),
    st.text(max_size=20) | JSON.map(str),
)
def test_no_form_and_no_answer_breaks_the_reading(field: dict[str, Any], text: str) -> None:
    form = {"type": "object", "properties": {"a": field}}
    if form_flaw(form) is None:
        assert describe_form(form).startswith("- a (")
        assert isinstance(read_form(form, text), dict | str)


@given(JSON)
def test_no_request_of_a_server_breaks_the_reading(raw: Any) -> None:
    for asked in (*to_input_requests(raw), *to_input_requests({"k": raw}), *read_elicitations(raw)):
        assert asked.form or asked.url or asked.refused


def test_what_was_answered_is_not_asked_again_and_a_flood_is_cut() -> None:
    asks = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": FORM}}
    requests = {f"q{number}": asks for number in range(30)}
    assert [asked.key for asked in to_input_requests(requests, {"q0", "q1"})][:2] == ["q2", "q3"]
    assert len(to_input_requests(requests)) == MAX_INPUTS


def test_a_question_within_a_call_keeps_its_name_when_it_is_asked_again() -> None:
    asks = {"mode": "url", "message": "Open", "url": "https://e.example"}
    assert input_key({**asks, "elicitationId": "1", "_meta": {}}) == input_key({**asks, "elicitationId": "2"})
    assert input_key(asks) != input_key({**asks, "message": "Else"})


@pytest.mark.parametrize(
    ("form", "answer", "response"),
    [
        (FORM, {"text": "size: small"}, {"action": "accept", "content": {"size": "small", "count": 2}}),
        (FORM, {"decision": "deny"}, {"action": "decline"}),
        (None, {"decision": "continue"}, {"action": "accept"}),
        (None, {"decision": "deny"}, {"action": "decline"}),
    ],
)
def test_an_answer_becomes_a_response_of_mcp(form: Any, answer: dict[str, Any], response: dict[str, Any]) -> None:
    asked = InputRequest(key="k", message="", form=form, url="" if form else "https://e.example")
    assert to_response(asked, HumanInput.model_validate(answer)) == response


def test_a_request_that_is_refused_gets_no_response_of_mcp() -> None:
    asked = InputRequest(key="k", message="", refused="it asks for sampling/createMessage")
    assert to_response(asked, HumanInput(decision=Decision.proceed)) == {"action": "none"}


@pytest.mark.parametrize(
    ("form", "answer", "reason"),
    [
        (FORM, {"text": "size: small"}, None),
        (FORM, {"decision": "continue"}, "a value is missing: size"),
        (FORM, {}, "takes one of: continue, deny, or the values of its fields"),
        (FORM, {"decision": "approve"}, "takes one of"),
        (FORM, {"decision": "deny"}, None),
        (None, {"text": "done"}, "takes no text"),
        (None, {"decision": "continue"}, None),
        (None, {"option": "x"}, "takes one of"),
    ],
)
def test_an_answer_that_does_not_fill_the_form_has_a_reason(
    form: Any, answer: dict[str, Any], reason: str | None
) -> None:
    question = Question(id="q1", kind=QuestionKind.input, text="?", asked_at=NOW, form=form)
    rejection = answer_rejection(question, HumanInput.model_validate(answer))
    assert (rejection is None) == (reason is None)
    assert (reason or "") in (rejection or "")

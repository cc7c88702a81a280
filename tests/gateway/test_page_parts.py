"""The page's own files; and its pure parts, in a real browser: a run's course, its scale, forms of schemas, texts."""

import json
from typing import Any

import httpx
import pytest

from perdure.gateway.app import PAGE_FILES
from tests.browser import needs_browser
from tests.gateway.conftest import Gateway
from tests.gateway.paging import Page, driver, page

__all__ = ["driver", "page"]  # fixtures

Json = dict[str, Any]
IMPORT = """
const [module, given, done] = arguments;
import(`/page/${module}`)
  .then((names) => (%s)(names, given))
  .then((value) => done({ value: JSON.stringify(value) ?? "null" }), (error) => done({ error: String(error) }));
"""


def run(page: Page, module: str, function: str, given: Any = None) -> Any:
    """Return what a function of the module's names, and of a value, returns in the browser."""
    if not page.driver.current_url.startswith(page.gateway.url):
        page.load()
    done = page.driver.execute_async_script(IMPORT.replace("%s", function), module, given)
    assert "error" not in done, done["error"]
    return json.loads(done["value"])


async def test_the_page_is_ours_alone(gateway: Gateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=60) as http:
        for path in ("/", *(f"/page/{name}" for name in PAGE_FILES)):
            answer = await http.get(path)
            assert answer.status_code == 200, path
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none';"), path
            assert "require-trusted-types-for 'script'" in policy
            assert "unsafe" not in policy
            foreign = answer.text.replace("http://www.w3.org/", "")
            assert not any(word in foreign for word in ("http://", "https://", "eval(", "new Function")), path
            if "vendor" not in path:
                assert not any(word in foreign for word in ("innerHTML", 'style="', "onclick=", "<style")), path
        assert (await http.get("/page/vendor/vendor.lock")).status_code == 404
        page = (await http.get("/")).text
        assert page.count("<script") == page.count('<script src="page/') == 1


def at(seconds: float) -> str:
    return f"2026-01-02T03:04:{seconds:06.3f}+00:00"


# ---- the course of a run

QUESTION = {
    "id": "q1",
    "kind": "approval",
    "text": "charge amount=42",
    "tool": "charge",
    "tool_use_id": "use-1",
    "asked_at": at(2),
    "call": "abc",
    "arguments": {"amount": 42},
}
USAGE = {"input": 9, "output": 3, "cache_read": 0, "cache_write": 0}
REPLY = {
    "content": [
        {"type": "text", "text": "I charge."},
        {"type": "tool_use", "id": "use-1", "name": "charge", "input": {"amount": 42}},
    ],
    "model": "m",
    "usage": USAGE,
    "duration_ms": 900,
    "cost_usd": None,
    "stop_reason": "tool_use",
}
CALL = {"step": 1, "tool": "charge", "tool_use_id": "use-1", "arguments": {"amount": 40}, "approval": "digest"}
ANSWER = {"question_id": "q1", "decision": "approve", "arguments": {"amount": 40}, "sender": {"token": "eva"}}
BEGUN: list[Json] = [
    {"type": "run_started", "at": at(0), "goal": "charge the card", "attachments": []},
    {"type": "model_call_started", "at": at(1), "phase": "plan", "turn": 1},
    {"type": "model_replied", "at": at(2), "phase": "plan", "turn": 1, "reply": REPLY, "calls": []},
]
MADE: list[Json] = [
    {"type": "wait_ended", "at": at(5)},
    {"type": "answer_received", "at": at(5), "answer": ANSWER, "before": {"amount": 42}},
    {"type": "tool_call_started", "at": at(5), "call": CALL},
]
WAITS = {"type": "wait_started", "at": at(2), "status": "waiting_on_human", "waiting_for": "human: approve charge"}
CLOSED = {"type": "question_closed", "at": at(9), "question": QUESTION, "end": "answered", "closed_at": at(5)}
FINISHED = {"type": "tool_call_finished", "at": at(6), "call": CALL, "outcome": {"status": "ok", "result": "ok"}}
FOLD = """({ Course }, { events, end }) => {
  const course = new Course();
  for (const event of events) course.add(event);
  if (end) course.close(end);
  const second = (time) => time && time / 1000 % 60;
  const rows = course.rows.map(({ kind, name, note, start, end, how, toolUseId, retries }) =>
    ({ kind, name, note, start: second(start), end: second(end), how, toolUseId, retries: retries?.length }));
  return { rows, said: course.said.map(({ kind, text }) => [kind, text]), live: course.live };
}"""


def fold(page: Page, *events: Json, end: Json | None = None) -> Any:
    return run(page, "course.js", FOLD, {"events": events, "end": end})


@needs_browser
def test_a_course_has_a_row_for_each_turn_wait_and_call_from_its_beginning_to_its_end(page: Page) -> None:
    course = fold(page, *BEGUN, {**WAITS, "questions": [QUESTION]}, *MADE, FINISHED)
    rows = [(row["kind"], row["name"], row["start"], row["end"], row["how"]) for row in course["rows"]]
    assert rows == [
        ("turn", "plan", 1, 2, "good"),
        ("wait", "asks a person", 2, 5, "good"),
        ("call", "charge", 5, 6, "good"),
    ]
    assert course["rows"][1]["note"] == "charge: eva: approve, amount: 42 → 40"
    assert [kind for kind, _ in course["said"]] == ["goal", "reply", "question", "answer", "call"]


@needs_browser
def test_what_is_open_has_no_end_until_the_run_has_ended(page: Page) -> None:
    open_run = fold(page, *BEGUN, {**WAITS, "questions": [QUESTION]})
    assert (open_run["rows"][1]["end"], open_run["rows"][1]["how"]) == (None, "open")
    ended = fold(page, *BEGUN, {**WAITS, "questions": [QUESTION]}, end={"status": "timed_out"})
    assert (ended["rows"][1]["end"], ended["rows"][1]["how"]) == (2, "bad")


@needs_browser
def test_who_let_a_call_be_made_is_known_before_its_question_is_told(page: Page) -> None:
    """Which it is as closed, in its place in the conversation."""
    untold = fold(page, *BEGUN, {**WAITS, "questions": []}, *MADE)
    assert [row["name"] for row in untold["rows"]] == ["plan", "waits for a person", "charge"]
    assert untold["rows"][1]["toolUseId"] == "use-1"
    assert untold["rows"][1]["note"] == "human: approve charge: eva: approve, amount: 42 → 40"
    told = fold(page, *BEGUN, {**WAITS, "questions": []}, *MADE, FINISHED, CLOSED)
    live = fold(page, *BEGUN, {**WAITS, "questions": [QUESTION]}, *MADE, FINISHED, CLOSED)
    assert told == live


@needs_browser
def test_of_two_answers_whose_questions_are_not_told_neither_is_taken_for_a_calls(page: Page) -> None:
    other = {**MADE[1], "answer": {**ANSWER, "question_id": "q2", "sender": {"token": "ann"}}}
    rows = fold(page, *BEGUN, {**WAITS, "questions": []}, *MADE[:2], other, MADE[2])["rows"]
    assert rows[1].get("toolUseId") is None
    later = fold(page, *BEGUN, {**WAITS, "questions": []}, *MADE[:2], other, MADE[2], CLOSED)["rows"]
    assert (later[1]["toolUseId"], later[1]["note"]) == ("use-1", "charge: eva: approve, amount: 42 → 40")


@needs_browser
def test_a_call_that_is_made_again_is_one_row_and_a_retry_is_a_mark_on_it(page: Page) -> None:
    retry = {"type": "activity_retrying", "at": at(6), "activity": "call_tool", "attempt": 2, "error": "it is away"}
    rows = fold(page, *BEGUN, *MADE[2:], retry, {**MADE[2], "at": at(7)})["rows"]
    assert [row["name"] for row in rows] == ["plan", "charge"]
    assert (rows[1]["retries"], rows[1]["end"]) == (2, None)


@needs_browser
def test_a_hold_is_a_wait_of_its_own_live_and_later(page: Page) -> None:
    held = {"activity": "reflect", "by": "pause:all", "why": "all runs paused by maria", "since": at(3)}
    asked = [*BEGUN, {**WAITS, "questions": [QUESTION]}]
    live = fold(page, *asked, {"type": "run_held", "at": at(4), **held})
    assert [(row["name"], row["start"], row["end"]) for row in live["rows"]] == [
        ("plan", 1, 2),
        ("asks a person", 2, None),
        ("held", 3, None),
    ]
    ended = {"type": "hold_ended", "at": at(8), **held, "until": at(7)}
    for before in ([{"type": "run_held", "at": at(4), **held}], []):
        rows = fold(page, *asked, *before, ended)["rows"]
        assert (rows[2]["note"], rows[2]["start"], rows[2]["end"]) == (f"before reflect: {held['why']}", 3, 7)
        assert rows[1]["end"] is None  # its question is still open


@needs_browser
def test_an_event_of_a_later_version_is_a_note(page: Page) -> None:
    course = fold(page, {"type": "something_new", "at": at(0)})
    assert course["said"] == [["note", "something new"]]


# ---- time

PLACES = """({ scaleOf }, { rows, at }) => {
  const scale = scaleOf(rows, at.at(-1));
  const places = at.map(scale.place);
  return { places, times: places.map(scale.timeAt), breaks: scale.breaks };
}"""


@needs_browser
def test_a_wait_of_two_days_leaves_the_calls_beside_it_visible(page: Page) -> None:
    day = 24 * 3600 * 1000
    rows = [
        {"kind": "turn", "start": 0, "end": 1000},
        {"kind": "wait", "start": 1000, "end": 2 * day},
        {"kind": "call", "start": 2 * day, "end": 2 * day + 500},
    ]
    moments = [0, 1000, day, 2 * day, 2 * day + 500]
    scale = run(page, "course.js", PLACES, {"rows": rows, "at": moments})
    first, turn, middle, waited, last = scale["places"]
    assert (first, last) == (0, 1)
    assert 0.6 < turn < middle < waited < 0.7  # the wait is shortened
    assert (last - waited) == pytest.approx(turn / 2)  # and work is not
    assert [each["ms"] for each in scale["breaks"]] == [2 * day - 1000]
    assert scale["times"] == pytest.approx(moments)


@needs_browser
def test_a_scale_of_nothing_and_of_work_alone_shortens_nothing(page: Page) -> None:
    assert run(page, "course.js", PLACES, {"rows": [], "at": [0]})["places"] == [0]
    rows = [{"kind": "turn", "start": 0, "end": 60_000}, {"kind": "call", "start": 10_000, "end": 50_000}]
    scale = run(page, "course.js", PLACES, {"rows": rows, "at": [0, 15_000, 60_000]})
    assert (scale["places"], scale["breaks"]) == ([0, 0.25, 1], [])


# ---- forms

FAULTS = "({ faultsIn }, [schema, value]) => faultsIn(schema, value)"
ORDER: Json = {
    "type": "object",
    "required": ["amount", "to"],
    "properties": {
        "amount": {"type": "integer", "minimum": 1, "maximum": 100},
        "to": {"type": "string", "minLength": 2, "maxLength": 5},
        "colour": {"enum": ["red", "blue"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "parts": {
            "type": "array",
            "items": {"type": "object", "required": ["n"], "properties": {"n": {"type": "number"}}},
        },
    },
}


@needs_browser
@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({}, []),
        ({"note": None, "colour": "blue", "parts": [{"n": 1.5}]}, []),
        ({"unknown": 1}, []),
        ({"amount": None}, ["amount: is not an integer"]),
        ({"amount": 1.5}, ["amount: is not an integer"]),
        ({"amount": 0}, ["amount: at least 1"]),
        ({"amount": 101}, ["amount: at most 100"]),
        ({"to": "a"}, ["to: at least 2 characters"]),
        ({"to": "abcdef", "colour": "green"}, ["to: at most 5 characters", "colour: one of red, blue"]),
        ({"note": 7}, ["note: is not a string"]),
        ({"parts": [{"n": 1}, {}, {"n": "x"}]}, ["parts.1.n: is missing", "parts.2.n: is not a number"]),
    ],
)
def test_a_form_says_what_does_not_fit_its_schema_and_where(page: Page, changes: Json, faults: list[str]) -> None:
    found = run(page, "schema_form.js", FAULTS, [ORDER, {"amount": 7, "to": "Eva", **changes}])
    assert sorted(found) == sorted(faults)


@needs_browser
def test_a_new_value_has_what_its_schema_requires_and_its_defaults(page: Page) -> None:
    schema = {**ORDER, "properties": {**ORDER["properties"], "to": {"type": "string", "default": "Ann"}}}
    assert run(page, "schema_form.js", "({ emptyOf }, schema) => emptyOf(schema)", schema) == {"to": "Ann"}
    assert run(page, "schema_form.js", FAULTS, [schema, {"to": "Ann"}]) == ["amount: is missing"]


@needs_browser
def test_a_value_without_a_schema_gets_one_of_its_own_fields(page: Page) -> None:
    value = {"amount": 7, "tags": ["a"], "deep": {"is": True}, "none": None}
    made = run(page, "schema_form.js", "({ schemaOf }, value) => schemaOf(value)", value)
    assert made["properties"]["tags"] == {"type": "array", "items": {"type": "string"}}
    assert made["properties"]["deep"]["properties"] == {"is": {"type": "boolean"}}
    assert run(page, "schema_form.js", FAULTS, [made, value]) == []


# ---- texts

DURATIONS = {
    0: "0 ms",
    -5: "0 ms",
    850: "850 ms",
    4_210: "4.2 s",
    59_400: "59 s",
    60_000: "1 min",
    180_000: "3 min",
    3_600_000: "1 h",
    19_200_000: "5 h 20 min",
    187_200_000: "2 d 4 h",
}


@needs_browser
def test_durations_are_read_at_a_glance(page: Page) -> None:
    said = run(page, "parts.js", "({ durationText }, all) => all.map(durationText)", list(DURATIONS))
    assert dict(zip(DURATIONS, said, strict=True)) == DURATIONS


@needs_browser
def test_a_difference_keeps_the_lines_that_both_texts_have(page: Page) -> None:
    texts = ["one\ntwo\nthree\nfour", "one\n2\nthree\nfour\nfive"]
    lines = run(page, "parts.js", "({ differenceOf }, [a, b]) => differenceOf(a, b)", texts)
    shown = [f"{line['sign']}{line['text']}" for line in lines]
    assert sorted(shown[1:3]) == ["+2", "-two"]
    assert [shown[0], *shown[3:]] == [" one", " three", " four", "+five"]
    long = ["\n".join(f"{name} {n}" for n in range(500)) for name in ("old", "new")]
    whole = run(page, "parts.js", "({ differenceOf }, [a, b]) => differenceOf(a, b)", long)
    assert [line["sign"] for line in whole] == ["-"] * 500 + ["+"] * 500

"""A call's arguments against the schema of its tool, whoever wrote the one and the other."""

import asyncio
import json
import threading
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import pytest
import regex
from hypothesis import given as given_values
from hypothesis import strategies as st

from perdure.activities.tools import json_schema
from perdure.activities.tools.json_schema import (
    IN_LOOP_BYTES,
    MAX_CPU_SECONDS,
    MAX_PATTERN_SIZE,
    SchemaNotApplicableError,
    SchemaValidator,
    check_in_loop,
    find_schema_error,
)

SLOW = "^(a|aa)+$"
LONG = "a" * 60 + "!"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
OLD_SLOW = {"$schema": DRAFT_7, "properties": {"a": {"pattern": SLOW}}}
NO_MORE = {"prefixItems": [{}], "unevaluatedItems": False}
A_AND_B = {"a": 1, "b": 2}


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the time that a check may take."""
    monkeypatch.setattr(json_schema, "MAX_CPU_SECONDS", 0.1)


def of(**fields: Any) -> SchemaValidator:
    return SchemaValidator({"type": "object", **fields})


def doubling(keyword: str, **fields: Any) -> dict[str, Any]:
    """Thirty definitions, of which each names the next one twice."""
    twice = {f"a{at}": {keyword: [{"$ref": f"#/$defs/a{at + 1}"}] * 2} for at in range(30)}
    return {"$ref": "#/$defs/a0", "$defs": {**twice, "a30": {}}, **fields}


@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize(
    ("schema", "given"),
    [
        ({"properties": {"a": {"type": "string", "pattern": SLOW}}}, {"a": LONG}),
        ({"properties": {"a": {"items": {"pattern": SLOW}}}}, {"a": [LONG] * 1000}),
        ({"patternProperties": {SLOW: {}}}, {LONG: 1}),
        ({"patternProperties": {SLOW: {}}, "additionalProperties": False}, {LONG: 1}),
        ({"unevaluatedProperties": False, "patternProperties": {SLOW: {}}}, {LONG: 1}),
        ({"$ref": "#/$defs/a", "$defs": {"a": OLD_SLOW}}, {"a": LONG}),
        (doubling("allOf"), {}),
        (doubling("allOf", **{"$schema": DRAFT_7}), {}),
        (doubling("anyOf", unevaluatedProperties=False), {"a": 1}),
        ({"properties": {"a": {"contains": {"enum": list(range(10_000))}}}}, {"a": [-1] * 200_000}),
    ],
)
def test_a_pattern_or_schema_without_end_is_given_up(schema: dict[str, Any], given: dict[str, Any]) -> None:
    began = process_time()
    with pytest.raises(SchemaNotApplicableError, match="takes too long"):
        of(**schema).find_error(given)
    assert process_time() - began < 1.1  # which is what `regex` counts


@pytest.mark.parametrize("schema", [{"uniqueItems": True}, {"items": True, "unevaluatedItems": False}])
def test_what_is_asked_of_a_long_list_as_a_whole_takes_one_pass(schema: dict[str, Any]) -> None:
    began = process_time()
    assert of(properties={"a": schema}).find_error({"a": [{"n": n} for n in range(50_000)]}) is None
    assert process_time() - began < MAX_CPU_SECONDS + 1


@pytest.mark.parametrize(
    ("items", "is_unique"),
    [
        ([1, True, 0, False, "1", None], True),
        ([1, 1.0], False),
        ([[1], [True]], True),
        ([{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}], False),
        ([{"a": 1}, {"a": True}, {"a": {"a": 1}}], True),
        ([[["a", 1]], {"a": 1}, []], True),
    ],
)
def test_items_are_alike_where_json_has_them_alike(items: list[Any], is_unique: bool) -> None:
    assert (of(properties={"a": {"uniqueItems": True}}).find_error({"a": items}) is None) == is_unique


@pytest.mark.parametrize(
    ("schema", "given", "fault"),
    [
        ({"properties": {"a": {"pattern": "^x+$"}}}, {"a": "xx"}, None),
        ({"properties": {"a": {"pattern": "^x+$"}}}, {"a": "y"}, "a: 'y' does not match '^x+$'"),
        ({"properties": {"a": {"pattern": "^x+$"}}}, {"a": 7}, None),
        ({"patternProperties": {"^n": {"type": "integer"}}}, {"n1": "x"}, "n1: 'x' is not of type 'integer'"),
        ({"patternProperties": {"^n": {}}, "additionalProperties": False}, {"n1": 1}, None),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"a": 1, "b": 2}, "arguments: Additional"),
        ({"additionalProperties": {"type": "integer"}}, {"b": "x"}, "b: 'x' is not of type 'integer'"),
        ({"additionalProperties": True}, {"b": "x"}, None),
        ({"required": ["a"]}, {}, "arguments: 'a' is a required property"),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [1, 1]}, "a: [1, 1] has non-unique elements"),
        ({"anyOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}, {"a": 1}, None),
        ({"patternProperties": {"^n": {}}, "unevaluatedProperties": False}, {"n1": 1}, None),
        (
            {"if": {"required": ["a"]}, "then": {"properties": {"a": {}}}, "unevaluatedProperties": False},
            {"a": 1},
            None,
        ),
        ({"dependentSchemas": {"a": {"properties": {"b": {}}}}, "unevaluatedProperties": {"const": 1}}, A_AND_B, None),
        ({"unevaluatedProperties": False}, {"a": 1}, "arguments: Unevaluated properties are not allowed ('a')"),
        ({"properties": {"a": NO_MORE}}, {"a": [1, 2]}, "a: Unevaluated items are not allowed (2)"),
        ({"properties": {"a": {**NO_MORE, "contains": {"const": 2}}}}, {"a": [1, 2]}, None),
    ],
)
def test_an_error_in_arguments_is_reported_with_its_place(
    schema: dict[str, Any], given: dict[str, Any], fault: str | None
) -> None:
    error = of(**schema).find_error(given)
    assert error == fault or (error is not None and fault is not None and error.startswith(fault))


def test_a_reference_never_opens_a_file_and_its_error_quotes_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"type": "integer", "description": "SECRET"}))
    for target in (f"{secret.as_uri()}#/missing", secret.as_uri(), "http://127.0.0.1:9/x", "#/$defs/missing"):
        schema = {"properties": {"a": {"$ref": target}}, "$defs": {"SECRET": {}}}
        with pytest.raises(SchemaNotApplicableError, match="leads to nothing in it") as refused:
            of(**schema).find_error({"a": "x"})
        assert "SECRET" not in str(refused.value)
        assert f"'properties/a/$ref' refers to '{target[:5]}" in (find_schema_error(schema) or "")


@pytest.mark.parametrize(
    "pattern",
    [
        "((a{200}){200}){200}",
        "(a{1000}){1000}",
        "a{1000000}",
        "(?:a{200}) {200}",
        "(?x)(?:a{200}) {200}",
        "(?x)(?:a{200})#\n{ 200 }",
        "(?:a{0200}){0200}",
        f"a{{{'9' * 5000}}}",
        "a" * (MAX_PATTERN_SIZE + 1),
    ],
)
def test_a_pattern_that_would_be_large_is_never_compiled(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex, "compile", lambda *_, **__: pytest.fail("compiled"))
    schemas: list[dict[str, Any]] = [{"properties": {"a": {"pattern": pattern}}}, {"patternProperties": {pattern: {}}}]
    for schema in schemas:
        with pytest.raises(SchemaNotApplicableError, match="is too large"):
            of(**schema).find_error({"a": "x"})
        assert "is too large" in (find_schema_error(schema) or "")


COUNTS = st.sampled_from(("{3}", "{7,}", "{5,9}", "{,4}", "*", "?", ""))
PATTERNS = st.recursive(
    st.builds("{}{}".format, st.sampled_from(("a", "[a)]", r"\p{L}", r"\)")), COUNTS),
    lambda inner: (
        st.builds("({}{}){}".format, inner, inner, COUNTS) | st.builds("(?:{}|{}){}".format, inner, inner, COUNTS)
    ),
    max_leaves=4,
)


@given_values(PATTERNS)
def test_the_estimate_is_no_less_than_the_shortest_text_that_matches(pattern: str) -> None:
    try:
        size = next((n for n in range(400) if regex.fullmatch(pattern, "a" * n, timeout=0.05)), 0)
    except TimeoutError:  # some look for a match among all ways to split the text
        return
    assert json_schema._estimate_size(pattern) >= size


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
        r"^(([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}|([0-9a-fA-F]{4}\.){2}[0-9a-fA-F]{4})$",
        r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})$",
        r"^(?!.*\.\.)[\w.-]{1,64}$",
        r"^\p{Lu}\p{L}{2,}$",
        r"^[a-f0-9]{64}$",
        r"^(\d{4}[ -]){3}\d{4}$",
    ],
)
def test_patterns_as_people_write_them_are_taken(pattern: str) -> None:
    assert find_schema_error({"type": "string", "pattern": pattern}) is None
    assert find_schema_error({"patternProperties": {pattern: {}}}) is None


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", "2026-01-02", "02.01.2026"),
        ("date-time", "2026-01-02T03:04:05Z", "tomorrow"),
        ("date-time", "2026-01-02 03:04:05", "1700000000"),
        ("date-time", "2026-01-02T03:04:05.5+01:00", "2026-13-02T03:04:05Z"),
        ("time", "10:00:00Z", "25:00"),
        ("duration", "P1DT2H", "soon"),
        ("uuid", "12345678-1234-5678-1234-567812345678", "12345678-1234"),
        ("uuid4", "12345678-1234-4678-9234-567812345678", "12345678-1234-1678-9234-567812345678"),
        ("uri", "https://example.com/a?b", "example.com"),
        ("uri", "mailto:ann@example.com", "/a"),
        ("email", "ann.b+c@example.com", "ann"),
        ("email", "änn@bücher.example", "ann@example.com, bob@example.com"),
        ("hostname", "any", ""),
        ("email", 7, "@"),
    ],
)
def test_formats_that_pydantic_writes_are_checked(name: str, good: Any, bad: str) -> None:
    schema = of(properties={"a": {"format": name}})
    assert schema.find_error({"a": good}) is None
    error = schema.find_error({"a": bad})
    assert error == (None if name == "hostname" else f"a: {bad!r} is not a {name!r}")


def test_a_pattern_is_one_that_the_validator_can_compile() -> None:
    schema = of(properties={"a": {"format": "regex"}})
    assert schema.find_error({"a": r"\p{L}+"}) is None
    assert schema.find_error({"a": "("}) == "a: the pattern '(' cannot be compiled: missing ) at position 1"


@pytest.mark.usefixtures("short_limit")
async def test_the_event_loop_waits_a_moment_for_a_check_that_takes_long() -> None:
    threads = list[threading.Thread]()
    schema, loop_thread = of(**doubling("allOf")), threading.current_thread()

    def check(seconds: float | None) -> str | None:
        threads.append(threading.current_thread())
        return schema.find_error({}, seconds)

    with pytest.raises(SchemaNotApplicableError, match="takes too long"):
        await check_in_loop(check, {})
    assert threads[0] is loop_thread
    assert loop_thread not in threads[1:]
    assert len(threads) == 2


async def test_a_small_check_needs_no_thread_and_a_large_value_begins_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = of(properties={"a": {"type": "string"}})
    small, large = {"a": 1}, {"a": ["x" * 1024] * (IN_LOOP_BYTES // 1024)}
    assert await check_in_loop(partial(schema.find_error, large), large) is not None
    monkeypatch.setattr(asyncio, "to_thread", lambda *_: pytest.fail("in a thread"))
    assert await check_in_loop(partial(schema.find_error, small), small) is not None


def test_a_pattern_that_is_none_makes_the_schema_unusable() -> None:
    with pytest.raises(SchemaNotApplicableError):
        of(properties={"a": {"pattern": "("}}).find_error({"a": "x"})


OBJECT, LIST, TEXT = {"type": "object", "required": ["n"]}, {"type": "array"}, {"type": "string"}
NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("wanted", "given", "taken"),
    [
        (OBJECT, '{"n": 1}', {"n": 1}),
        (LIST, ' [1, "[2]"]', [1, "[2]"]),
        ({"type": ["array", "null"]}, "[]", []),
        ({"anyOf": [{"$ref": "#/$defs/o"}, NULL]}, '{"n": 1}', {"n": 1}),
        ({"$ref": "#/$defs/o"}, '{"n": 1}', {"n": 1}),
        ({"type": "object", "properties": {"b": LIST}}, {"b": "[1]"}, {"b": [1]}),
        ({"items": OBJECT}, ['{"n": 1}', {"n": "{}"}], [{"n": 1}, {"n": "{}"}]),
        (OBJECT, "{}", {}),  # what is wrong in it is said of the object
        (TEXT, '{"n": 1}', '{"n": 1}'),
        ({}, '{"n": 1}', '{"n": 1}'),
        ({"anyOf": [TEXT, OBJECT]}, '{"n": 1}', '{"n": 1}'),
        (OBJECT, "[1]", "[1]"),
        ({"anyOf": [OBJECT, NULL]}, "{}", "{}"),
        ({"type": "integer"}, "[1]", "[1]"),
        (NULL, "null", "null"),
        (OBJECT, '{"n": 1, "n": 2}', '{"n": 1, "n": 2}'),
        (OBJECT, "{'n': 1}", "{'n': 1}"),
        (LIST, "[" * 60 + "]" * 60, "[" * 60 + "]" * 60),
    ],
)
def test_a_text_is_read_where_the_schema_wants_what_it_holds_and_takes_no_text(
    wanted: dict[str, Any], given: Any, taken: Any
) -> None:
    arguments = of(properties={"a": wanted}, **{"$defs": {"o": OBJECT}})
    before = {"a": given, "b": "{}"}
    assert arguments.read_written_values(before) == {"a": taken, "b": "{}"}
    assert before == {"a": given, "b": "{}"}

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.tool import Effect, PinState
from perdure.decisions.tools import schema_texts, server_of_tool
from perdure.features.mcp.rules import (
    MAX_PIN_DIFFERENCE,
    diff_pins,
    effect_of,
    is_looser,
    is_server_name,
    is_sound,
    name_rejection,
    pin_states,
    pin_tool,
    tool_name,
)

OBJECT: dict[str, Any] = {"type": "object"}


@pytest.mark.parametrize(
    ("annotations", "effect"),
    [
        ({}, Effect.once),
        ({"destructiveHint": False}, Effect.once),
        ({"readOnlyHint": True}, Effect.read),
        ({"readOnlyHint": False, "idempotentHint": True}, Effect.keyed),
        ({"readOnlyHint": True, "idempotentHint": True}, Effect.read),
        ({"readOnlyHint": "yes"}, Effect.once),
        ({"idempotentHint": 1}, Effect.once),
    ],
)
def test_the_effect_is_what_the_hints_allow(annotations: dict[str, Any], effect: Effect) -> None:
    assert effect_of(annotations) is effect


def test_read_is_loosest_and_once_is_strictest() -> None:
    looser = [(a, b) for a in Effect for b in Effect if is_looser(a, b)]
    assert looser == [
        (Effect.read, Effect.keyed),
        (Effect.read, Effect.once),
        (Effect.keyed, Effect.once),
    ]


@pytest.mark.parametrize("name", ["git", "my-server", "a_b", "A1"])
def test_a_server_may_be_called(name: str) -> None:
    assert is_server_name(name)
    assert server_of_tool(tool_name(name, "_x__y")) == name


@pytest.mark.parametrize("name", ["", "a__b", "a_", "_a", "my server", "ä", "a.b", "a\n"])
def test_a_server_may_not_be_called(name: str) -> None:
    assert not is_server_name(name)


@pytest.mark.parametrize("name", ["fetch", "__x", "git__", "git_status"])
def test_what_is_no_servers_tool(name: str) -> None:
    assert server_of_tool(name) is None


@pytest.mark.parametrize(
    ("server", "tool", "said"),
    [
        ("git", "git_status", None),
        ("git", "a.b", None),
        ("git", "", "it has no name"),
        ("s" * 54, "t" * 40, None),
        ("s" * 60, "t" * 40, "rename the server to at most 54 characters"),
        ("s", "t" * 61, None),
    ],
)
def test_a_name_that_does_not_fit_says_what_to_do(server: str, tool: str, said: str | None) -> None:
    why = name_rejection(server, tool)
    assert why is None if said is None else why is not None and said in why


@pytest.mark.parametrize(
    ("tool", "offered"),
    [
        ("look", "git__look"),
        ("x" * 59, f"git__{'x' * 59}"),
        ("a.b", "git__a_b_"),
        ("a/b", "git__a_b_"),
        ("ä", "git____"),
        ("x" * 60, f"git__{'x' * 50}_"),
    ],
)
def test_a_name_that_models_cannot_have_is_rewritten(tool: str, offered: str) -> None:
    assert tool_name("git", tool).startswith(offered)


@given(st.sampled_from(["git", "a_b", "s" * 54]), st.lists(st.text(min_size=1, max_size=80), unique=True))
def test_every_tool_has_a_name_of_its_own_that_models_can_have(server: str, tools: list[str]) -> None:
    names = [tool_name(server, tool) for tool in tools]
    assert len(set(names)) == len(tools)
    for name, tool in zip(names, tools, strict=True):
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
        assert server_of_tool(name) == server
        assert name_rejection(server, tool) is None


PLAIN = st.none() | st.booleans() | st.integers() | st.text()
JSON = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


@given(st.text(), st.dictionaries(st.text(), JSON, max_size=5))
def test_a_pin_is_sound_and_does_not_depend_on_the_order_of_fields(description: str, schema: dict[str, Any]) -> None:
    kept = pin_tool(description, schema, {"a": 1, "b": 2})
    turned = pin_tool(description, dict(reversed(schema.items())), {"b": 2, "a": 1})
    assert is_sound(kept)
    assert kept.sha256 == turned.sha256
    assert not is_sound(kept.evolve(description=f"{description}!"))


def test_every_part_of_a_definition_counts() -> None:
    kinds = {
        pin_tool("a", OBJECT, {}).sha256,
        pin_tool("b", OBJECT, {}).sha256,
        pin_tool("a", {**OBJECT, "title": "x"}, {}).sha256,
        pin_tool("a", OBJECT, {"readOnlyHint": True}).sha256,
    }
    assert len(kinds) == 4


def test_each_tool_has_its_state() -> None:
    a, b = pin_tool("a", OBJECT, {}), pin_tool("b", OBJECT, {})
    assert pin_states({"same": a, "other": a, "left": a}, {"same": a, "other": b, "come": b}) == {
        "come": PinState.new,
        "left": PinState.gone,
        "other": PinState.changed,
        "same": PinState.pinned,
    }


def test_a_difference_shows_both_sides_and_has_an_end() -> None:
    diff = diff_pins(pin_tool("a", OBJECT, {}), pin_tool("b\nc", OBJECT, {"readOnlyHint": True}))
    assert "-description: a" in diff
    assert "+description: c" in diff
    assert '+  "readOnlyHint": true' in diff
    assert "-inputSchema" not in diff
    assert "+inputSchema" not in diff
    assert len(diff_pins(None, pin_tool("x" * 100_000, OBJECT, {}))) < MAX_PIN_DIFFERENCE + 20


@pytest.mark.parametrize(
    ("now", "shown"),
    [
        ("Reads.\n", "+description: "),
        ("Reads.\u200b\u202e", "+description: Reads.[U+200B][U+202E]"),
        ("\x1b[2JReads.", "+description: [U+001B][2JReads."),
        ("Reads.\U000e0041", "+description: Reads.[U+E0041]"),
    ],
)
def test_what_a_person_would_not_see_is_written_out(now: str, shown: str) -> None:
    diff = diff_pins(pin_tool("Reads.", OBJECT, {}), pin_tool(now, OBJECT, {}))
    assert shown in diff.splitlines()
    assert diff.replace("\n", "").isprintable()


def test_all_texts_of_a_schema_are_found_with_their_place() -> None:
    schema = {
        "properties": {
            "path": {"type": "string", "description": "Where."},
            "mode": {"enum": ["fast", "x" * 61], "items": {"properties": {"in": {"description": "Deep."}}}},
        }
    }
    assert dict(schema_texts(schema)) == {
        "path": "Where.",
        "mode.enum.1": "x" * 61,
        "mode.items.properties.in": "Deep.",
    }

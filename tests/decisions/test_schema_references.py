"""Where the references of a JSON Schema lead, and the schema below another one."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from perdure.decisions.tools import (
    describe_foreign_reference,
    find_foreign_reference,
    move_schema,
)

NODE = {"type": "object", "properties": {"v": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, None),
        ({"$ref": "#"}, None),
        ({"properties": {"$ref": {"type": "string"}}}, None),
        ({"const": {"$ref": "http://x/"}, "default": {"$ref": "file:///a"}, "enum": [{"$ref": "x"}]}, None),
        ({"$id": "https://x/s", "$ref": "https://x/s#/$defs/n", "$defs": {"n": {}}}, None),
        ({"$id": "https://x/s", "$ref": "s#n", "$defs": {"n": {"$anchor": "n"}}}, None),
        ({"$ref": "item", "$defs": {"n": {"$id": "item"}}}, None),
        ({"$ref": "#/properties/a~1b/items", "properties": {"a/b": {"items": {}}}}, None),
        ({"$ref": "#/allOf/1", "allOf": [{}, True]}, None),
        ({"$defs": {"n": {"$id": "#n"}}, "$ref": "#n"}, None),  # draft 7
        ({"properties": {"a": {"$ref": "http://x/"}}}, "'properties/a/$ref' refers to 'http://x/'"),
        ({"allOf": [{"type": "object"}, {"$dynamicRef": "file:///a"}]}, "'allOf/1/$dynamicRef' refers to 'file:///a'"),
        ({"unknown": [{"$ref": "ftp://x/a"}]}, "'unknown/0/$ref' refers to 'ftp://x/a'"),
        ({"$id": "http://127.0.0.1/s", "$ref": "other.json"}, "'$ref' refers to 'other.json'"),
        ({"$id": "http://127.0.0.1/s", "$ref": "//evil/s"}, "'$ref' refers to '//evil/s'"),
        ({"$ref": "other.json#/a"}, "'$ref' refers to 'other.json#/a'"),
        ({"$ref": "#/$defs/missing"}, "'$ref' refers to '#/$defs/missing'"),
        ({"$ref": "#/required", "required": ["a"]}, "'$ref' refers to '#/required'"),
        ({"$ref": "http://["}, "'$ref' refers to 'http://['"),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "'$ref' refers to 'https://json-schema.org"),
        ({"$ref": "a\nb\u202e"}, r"'$ref' refers to 'a\nb\u202e', which is not in the schema"),
    ],
)
def test_a_reference_that_leads_out_is_found_with_its_place(schema: dict[str, Any], found: str | None) -> None:
    reference = find_foreign_reference(schema)
    description = reference and describe_foreign_reference(reference)
    assert description == found or (description and found and description.startswith(found))


URIS = ("", "https://x/s", "https://x/other", "item", "urn:a:b")
TARGETS = ("#", "#/$defs/a", "#/$defs/b", "#here", "item", "item#here", "https://x/s", "https://x/other#/$defs/a", "x")


def schemas() -> st.SearchStrategy[Any]:
    leaves = st.booleans() | st.builds(lambda to: {"items": {"$ref": to}}, st.sampled_from(TARGETS)) | st.just(NODE)
    named = st.builds(
        lambda uri, anchor, inner: {
            **({"$id": uri} if uri else {}),
            **({"$anchor": "here"} if anchor else {}),
            "items": inner,
        },
        st.sampled_from(URIS),
        st.booleans(),
        leaves,
    )
    inner = st.recursive(leaves | named, lambda inner: st.fixed_dictionaries({"items": inner}), max_leaves=3)
    return st.builds(
        lambda uri, a, b, root: {**({"$id": uri} if uri else {}), "$defs": {"a": a, "b": b}, "allOf": [root]},
        st.sampled_from(URIS),
        inner,
        inner,
        inner,
    )


def library_finds_all(schema: Any) -> bool:
    """Return whether the validator's library finds each reference within the schema."""
    pairs = [(Registry().resolver_with_root(DRAFT202012.create_resource(schema)), DRAFT202012.create_resource(schema))]
    while pairs:
        resolver, resource = pairs.pop()
        if isinstance(resource.contents, dict) and "$ref" in resource.contents:
            try:
                resolver.lookup(resource.contents["$ref"])
            except Unresolvable:
                return False
        pairs += [(resolver.in_subresource(inner), inner) for inner in resource.subresources()]
    return True


def names_of(schema: Any) -> list[Any]:
    """Return each `$id`, and each anchor."""
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    own = [schema[name] for name in ("$id", "$anchor") if name in schema] if isinstance(schema, dict) else []
    return own + [name for value in inner for name in names_of(value)]


VALUES = st.recursive(
    st.none() | st.just({"v": 1}) | st.just({"v": "x"}), lambda inner: st.lists(inner, max_size=2), max_leaves=5
)


@given(schemas(), VALUES)
@example({"$id": "https://x/s", "$defs": {"a": NODE, "b": True}, "allOf": [{"items": {"$ref": "s#/$defs/a"}}]}, [{}])
def test_a_moved_schema_needs_no_uri_and_accepts_the_same(schema: dict[str, Any], value: Any) -> None:
    names = names_of(schema)
    if len(set(names)) < len(names):
        return  # two schemas of one name have no meaning
    is_whole = find_foreign_reference(schema) is None
    assert is_whole == library_finds_all(schema)
    if not is_whole:
        return
    moved, definitions = move_schema(schema, ("properties", "result"))
    whole = {"properties": {"result": moved}, **definitions}
    assert names_of(whole) == []
    assert find_foreign_reference(whole) is None
    before = Draft202012Validator(schema, registry=Registry())
    after = Draft202012Validator(whole, registry=Registry())
    try:
        assert before.is_valid(value) == after.is_valid({"result": value})
    except RecursionError:  # a reference to itself
        return

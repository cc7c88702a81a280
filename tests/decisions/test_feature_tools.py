"""The tools that features add to a run: what their rows name is there, and fits."""

from inspect import iscoroutinefunction

import pytest

from perdure.contracts.tool import ToolKind
from perdure.decisions.text.formatting import call_line
from perdure.decisions.tools import DELEGATE, FOLLOW_UP_TOOLS, builtin_schemas, routes
from perdure.registry import event_readers, feature_tools, load


@pytest.mark.parametrize("name", feature_tools())
def test_a_tool_of_a_feature_has_what_its_row_names(name: str) -> None:
    row = feature_tools()[name]
    (route,) = [route for route in routes() if route.name == name]
    assert load(row.schema).name == name
    assert iscoroutinefunction(load(row.handler))
    assert (route.kind, route.effect) == (ToolKind.builtin, row.effect)


@pytest.mark.parametrize("name", feature_tools())
def test_a_malformed_call_of_a_feature_has_a_line(name: str) -> None:
    assert call_line(name, {"subtasks": "none", "definition": 3}).startswith(name)


def test_the_names_that_the_core_uses_are_those_of_features() -> None:
    assert [*feature_tools()] == [*FOLLOW_UP_TOOLS, DELEGATE]


def test_an_agent_without_peers_and_follow_ups_is_offered_no_tool_of_a_feature() -> None:
    offered = builtin_schemas(delegates=False, journal=True, follow_ups=False)
    assert feature_tools().keys().isdisjoint(schema.name for schema in offered)


def test_what_reads_the_events_of_a_child_workflow_is_there() -> None:
    assert all(callable(load(reader)) for reader in event_readers().values())

"""The index of `search_tools`: the order of its results, and queries of any text."""

import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.run.definition import MAX_FOUND, ToolIndex, has_full_text_search
from perdure.contracts.agent import ToolSchema

NUMBER = {"type": "integer", "description": "The number of the invoice."}


def tool(name: str, description: str = "", **properties: Any) -> ToolSchema:
    return ToolSchema(name=name, description=description, input_schema={"type": "object", "properties": properties})


INDEX = ToolIndex(
    [
        tool("tickets__createIssue", "Opens a ticket in a repository."),
        tool("tickets__list_issues", "Lists the open tickets."),
        tool("books__get_entry", "Reads an entry.", invoice_number=NUMBER),
        tool("books__send_invoice", "Sends it to a customer."),
        *(tool(f"sensor__read_{n}", "Reads a sensor.") for n in range(30)),
    ]
)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("create issue", ["tickets__createIssue", "tickets__list_issues"]),
        ("creating an issue", ["tickets__createIssue", "tickets__list_issues"]),  # stems
        ("CREATE_ISSUE", ["tickets__createIssue", "tickets__list_issues"]),
        ("repo", ["tickets__createIssue"]),  # the begin of a word
        ("invoice", ["books__send_invoice", "books__get_entry"]),  # the name before the arguments
        ("books__get_entry, sensor__read_3", ["books__get_entry", "sensor__read_3"]),
        ("customer's", ["books__send_invoice"]),
        ("nothing of the kind", []),
        ("", []),
    ],
)
def test_the_best_match_comes_first(query: str, names: list[str]) -> None:
    assert [found.name for found in INDEX.find_tools(query)] == names


def test_equal_matches_come_in_the_order_of_the_definition_and_are_bounded() -> None:
    assert [found.name for found in INDEX.find_tools("sensor")] == [f"sensor__read_{n}" for n in range(MAX_FOUND)]


@given(st.text() | st.text('"*()^-:+ANDORNEAR{} ').map(lambda text: f"sensor {text}"))
def test_any_text_is_a_query(query: str) -> None:
    assert len(INDEX.find_tools(query)) <= MAX_FOUND


def test_a_python_without_fts5_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_full_text_search()

    class Bare:
        def execute(self, statement: str) -> None:
            raise sqlite3.OperationalError("no such module: fts5")

    monkeypatch.setattr(sqlite3, "connect", lambda _: Bare())
    assert not has_full_text_search()

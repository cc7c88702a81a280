"""The provider that is no model: one call of a tool, and its result as the outcome."""

import json
from typing import Any

import pytest

from perdure.activities.providers.port import ModelCall
from perdure.activities.providers.relay import RelayModel
from perdure.contracts.agent import Definition

Json = dict[str, Any]


def asks(text: str) -> Json:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def uses(name: str, number: int, **arguments: Any) -> Json:
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": f"u{number}", "name": name, "input": arguments}],
    }


def gives(number: int, content: Any, *, is_error: bool = False, note: str = "") -> Json:
    result = {"type": "tool_result", "tool_use_id": f"u{number}", "content": content, "is_error": is_error}
    return {"role": "user", "content": [result, *([{"type": "text", "text": note}] if note else [])]}


def outcome(content: Any, **more: Any) -> str:
    return json.dumps({"content": content, **more})


async def answer(*messages: Json, schema: Json | None = None, **options: Any) -> Json:
    definition = Definition(agent="far", model="translator", system="", tools=(), output_schema=schema)
    reply = await RelayModel().reply(ModelCall(definition=definition, messages=list(messages), **options))
    [block] = reply.content
    assert reply.stop_reason == ("end_turn" if block["type"] == "text" else "tool_use")
    block.pop("id", None)
    return block


def use(name: str, **arguments: Any) -> Json:
    return {"type": "tool_use", "name": name, "input": arguments}


ASKED = (asks("translate this"), uses("translator", 1, message="translate this"))


async def test_the_first_turn_hands_on_what_is_asked() -> None:
    assert await answer(asks("translate this")) == use("translator", message="translate this")
    assert await answer({"role": "user", "content": "plain"}, asks("more")) == use(
        "translator", message="plain\n\nmore"
    )


@pytest.mark.parametrize("note", ["", "few steps are left"])
async def test_the_result_ends_the_run_and_is_never_asked_for_twice(note: str) -> None:
    assert await answer(*ASKED, gives(1, outcome("salut", context_id="c"), note=note)) == use("finish", outcome="salut")
    assert await answer(*ASKED, gives(1, "plain", note=note)) == use("finish", outcome="plain")


async def test_a_value_is_the_result_if_there_is_a_schema_and_files_are_artifacts() -> None:
    given = gives(1, outcome({"total": 3}, files=[{"path": "artifacts/a.csv"}, {"uri": "https://e.example/b"}]))
    finish = use("finish", outcome='{"total":3}', artifacts=["artifacts/a.csv"])
    assert await answer(*ASKED, given) == finish
    finish["input"]["result"] = {"total": 3}
    assert await answer(*ASKED, given, schema={"type": "object"}) == finish


async def test_an_error_is_a_matter_for_a_person() -> None:
    given = gives(1, "tool_error: no funds", is_error=True)
    assert await answer(*ASKED, given) == use("escalate", reason="tool_error: no funds")


async def test_a_conversation_goes_on_in_its_context() -> None:
    before = (
        *ASKED,
        gives(1, outcome("salut", context_id="c-7")),
        uses("finish", 2, outcome="salut"),
        gives(2, "ended"),
    )
    assert await answer(*before, asks("and this")) == use("translator", message="and this", context_id="c-7")


async def test_a_run_that_must_close_says_what_it_has() -> None:
    assert await answer(asks("x"), is_closing=True) == {"type": "text", "text": "Nothing was handed on."}
    closed = await answer(*ASKED, gives(1, "salut"), uses("finish", 2), gives(2, "refused"), is_closing=True)
    assert closed == {"type": "text", "text": "salut"}

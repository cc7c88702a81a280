"""The kind `python` of `perdure.toml`: what a function must be to be a tool, and what becomes of what it returns."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure.activities.storage.workspace import Workspace
from perdure.activities.tools.interface import CallContext, TransientToolError
from perdure.activities.tools.python import BadTargetError, PythonTool
from perdure.contracts.tool import Effect, ToolKind, ToolRoute
from tests.activities.calls import error_of
from tests.waiting import PATIENCE


def route(name: str) -> ToolRoute:
    return ToolRoute(name=name, kind=ToolKind.python, effect=Effect.read, timeout=timedelta(seconds=5))


@pytest.fixture
def context(tmp_path: Path) -> CallContext:
    return CallContext(
        run_id="R1",
        step=3,
        idempotency_key="agentic:run:R1:step:3:request",
        requested_at=datetime(2026, 2, 16, 12, tzinfo=UTC),
        workspace=Workspace(tmp_path),
    )


MODULE = '''
import asyncio
from datetime import date
from decimal import Decimal
from uuid import UUID

from pydantic import BaseModel
from typing import Literal

import httpx

def add(a: int, b: int = 2) -> int:
    """Adds two numbers."""
    return a + b

async def later(colour: Literal["red", "blue"], idempotency_key: str) -> dict[str, str]:
    """Later."""
    await asyncio.sleep(0)
    return {"colour": colour, "key": idempotency_key}

class Visit(BaseModel, strict=True):
    day: date
    place: UUID
    seats: tuple[int, ...]
    price: Decimal

def visit(visit: Visit) -> str:
    """Visits."""
    return f"{visit.day} {visit.place} {visit.seats} {visit.price}"

def broken() -> str:
    """Breaks."""
    raise ValueError("no luck")

async def late() -> str:
    """Late."""
    raise httpx.ReadTimeout("no answer yet")

async def nowhere() -> str:
    """Asks an address without a scheme."""
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get("api.example.com/v1")).text

async def torn() -> str:
    """Sends a header that is none."""
    raise httpx.LocalProtocolError("Illegal header value")

def down() -> str:
    """Down."""
    raise ConnectionRefusedError("nobody listens")

def odd() -> object:
    """Returns what is no JSON."""
    return {"set": {1}, "at": object, "bytes": b"x", 5: "five"}

def half() -> str:
    """Returns half a character."""
    return "\\ud83d"

def first(name: str) -> str:
    """The first of this name."""
    return next(each for each in ("a", "b") if each == name)

def stopping() -> str:
    """Ends its process."""
    raise SystemExit(3)

def interrupting() -> str:
    """As by a key."""
    raise KeyboardInterrupt

async def interrupting_later() -> str:
    """As by a key, on the loop."""
    await asyncio.sleep(0)
    raise KeyboardInterrupt

def around(function):
    def inner(name: str) -> str:
        """A plain function around another one."""
        return function(name)
    return inner

@around
async def wrapped(name: str) -> str:
    await asyncio.sleep(0)
    return f"sent to {name}"

@around
async def wrapped_down(name: str) -> str:
    raise ConnectionRefusedError(f"{name} does not listen")

async def pages() -> object:
    """An async generator."""
    yield 1

@around
async def wrapped_pages(name: str) -> object:
    yield name

def untyped(a):
    """No type."""

def silent(a: int) -> int:
    return a

def rest(*args: int) -> int:
    """Any number."""

def unknown(a: "Nowhere") -> int:
    """A type that is not there."""

def opaque(a: asyncio.Lock) -> int:
    """A type that no JSON describes."""

def hidden(_a: int) -> int:
    """A name that pydantic does not take."""

VALUE = 5
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "things_of_a_test.py").write_text(MODULE)
    (tmp_path / "broken_of_a_test.py").write_text("raise RuntimeError('at import')")
    monkeypatch.syspath_prepend(tmp_path)
    return "things_of_a_test"


def python(module: str, function: str) -> PythonTool:
    return PythonTool(route(function), f"{module}:{function}")


def test_the_schema_is_derived_from_types_and_docstring(module: str) -> None:
    schema = python(module, "add").schema
    assert (schema.name, schema.description) == ("add", "Adds two numbers.")
    assert schema.input_schema["required"] == ["a"]
    assert schema.input_schema["properties"]["b"]["default"] == 2
    assert schema.input_schema["additionalProperties"] is False
    assert "idempotency_key" not in python(module, "later").schema.input_schema["properties"]


async def test_a_plain_function_and_a_coroutine_are_called_alike(module: str, context: CallContext) -> None:
    assert (await python(module, "add").run({"a": 1}, context)).result == 3
    outcome = await python(module, "later").run({"colour": "red"}, context)
    assert outcome.result == {"colour": "red", "key": context.idempotency_key}


@pytest.mark.parametrize("arguments", [{}, {"a": "x"}, {"a": 1, "c": 2}, {"a": None}])
async def test_arguments_that_do_not_fit_are_an_error_for_the_model(
    module: str, context: CallContext, arguments: dict[str, Any]
) -> None:
    error = error_of(await python(module, "add").run(arguments, context))
    assert error.kind == "invalid_arguments"


async def test_a_model_cannot_choose_the_idempotency_key(module: str, context: CallContext) -> None:
    outcome = await python(module, "later").run({"colour": "red", "idempotency_key": "mine"}, context)
    assert outcome.error is not None


async def test_an_exception_goes_to_the_model_and_a_lost_connection_may_pass(module: str, context: CallContext) -> None:
    error = error_of(await python(module, "broken").run({}, context))
    assert error.message == "ValueError: no luck"
    for function, why in (("down", "nobody listens"), ("late", "no answer yet")):
        with pytest.raises(TransientToolError, match=why):
            await python(module, function).run({}, context)


@pytest.mark.parametrize(
    ("function", "why"), [("nowhere", "UnsupportedProtocol: "), ("torn", "LocalProtocolError: Illegal header value")]
)
async def test_a_request_that_could_not_be_sent_is_the_callers_mistake(
    module: str, context: CallContext, function: str, why: str
) -> None:
    error = error_of(await python(module, function).run({}, context))
    assert error.kind == "tool_error"
    assert error.message.startswith(why)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("first", {"name": "c"}, "StopIteration: "),
        ("stopping", {}, "SystemExit: 3"),
        ("interrupting", {}, "KeyboardInterrupt: "),
        ("interrupting_later", {}, "KeyboardInterrupt: "),
    ],
)
async def test_what_no_future_takes_and_what_ends_a_process_go_to_the_model_too(
    module: str, context: CallContext, function: str, arguments: dict[str, Any], message: str
) -> None:
    async with asyncio.timeout(PATIENCE):  # a StopIteration would leave the call without an end
        outcome = await python(module, function).run(arguments, context)
    assert (error_of(outcome).kind, error_of(outcome).message) == ("tool_error", message)


async def test_a_plain_function_around_a_coroutine_is_waited_for(module: str, context: CallContext) -> None:
    assert (await python(module, "wrapped").run({"name": "eva"}, context)).result == "sent to eva"
    with pytest.raises(TransientToolError, match="eva does not listen"):
        await python(module, "wrapped_down").run({"name": "eva"}, context)


async def test_arguments_are_read_as_json_by_a_strict_type(module: str, context: CallContext) -> None:
    place = "12345678-1234-5678-1234-567812345678"
    given = {"visit": {"day": "2026-01-02", "place": place, "seats": [1, 2**70], "price": "1.50"}}
    outcome = await python(module, "visit").run(given, context)
    assert outcome.result == f"2026-01-02 {place} (1, {2**70}) 1.50"


async def test_an_async_generator_is_never_a_success(module: str, context: CallContext) -> None:
    with pytest.raises(BadTargetError, match="is an async generator"):
        python(module, "pages")
    error = error_of(await python(module, "wrapped_pages").run({"name": "eva"}, context))
    assert error.message.startswith("nothing was done")


async def test_whatever_a_function_returns_becomes_json_or_a_clear_error(module: str, context: CallContext) -> None:
    outcome = await python(module, "odd").run({}, context)
    assert outcome.result == {"set": [1], "at": "<class 'object'>", "bytes": "x", "5": "five"}
    assert (await python(module, "half").run({}, context)).result == "\ufffd"


@pytest.mark.parametrize(
    "target",
    [
        "nowhere:f",
        "things_of_a_test:nothing",
        "things_of_a_test",
        ":f",
        "",
        "things_of_a_test:VALUE",
        "broken_of_a_test:f",
    ]
    + [f"things_of_a_test:{name}" for name in ("untyped", "silent", "rest", "unknown", "opaque", "hidden")],
)
def test_a_target_that_can_be_no_tool_is_refused_in_one_type_of_error(module: str, target: str) -> None:
    with pytest.raises(BadTargetError) as refused:
        PythonTool(route("a"), target)
    assert str(refused.value)

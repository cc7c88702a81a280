"""Builders of states, calls and replies; the facts a decision does not look at have defaults."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import settings

from contracts.run.state import Call, RunState
from contracts.run.turn import ModelTurn, Usage
from contracts.tool import Approval, Effect, ToolKind, ToolRoute
from decisions.builtin_tools import ROUTES
from tests.decisions.player import Player
from tests.drawn import running

# A loaded machine is slow now and then; that is no fault of a decision.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

NOW = datetime(2026, 2, 16, 12, tzinfo=UTC)


def _route(name: str, effect: Effect = Effect.read, **fields: Any) -> ToolRoute:
    fields = {"kind": ToolKind.native, "timeout": timedelta(seconds=30), **fields}
    return ToolRoute(name=name, effect=effect, **fields)


TOOLS = (
    *ROUTES,
    _route("look"),
    _route("peek"),
    _route("save", Effect.keyed),
    _route("charge", Effect.once),
    _route("vote", kind=ToolKind.signal),
    _route("guarded", approval=Approval.always),
)


@pytest.fixture(scope="session")
def new_state() -> Callable[..., RunState]:
    """A running run with the tools look, peek (reads), save (keyed), charge (once), vote (outside), guarded."""
    return partial(running, TOOLS)


@pytest.fixture(scope="session")
def new_turn() -> Callable[..., ModelTurn]:
    """A reply: `turn("text", ("look", {}), …)`. Tool uses are named `u0`, `u1`, … unless `ids` says otherwise."""

    def make(
        text: str = "", *uses: tuple[str, Any], stop: str | None = None, prefix: str = "u", **fields: Any
    ) -> ModelTurn:
        content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        content += [
            {"type": "tool_use", "id": f"{prefix}{number}", "name": name, "input": arguments}
            for number, (name, arguments) in enumerate(uses)
        ]
        base = {"model": "m", "usage": Usage(input=1, output=1), "duration_ms": 5}
        return ModelTurn(
            content=content, stop_reason=stop or ("tool_use" if uses else "end_turn"), **{**base, **fields}
        )

    return make


@pytest.fixture(scope="session")
def new_call() -> Callable[..., Call]:
    def make(tool: str = "look", step: int | None = 1, **fields: Any) -> Call:
        route = next(route for route in TOOLS if route.name == tool)
        base: dict[str, Any] = {
            "tool_use_id": f"use-{step}",
            "kind": route.kind,
            "effect": route.effect,
            "arguments": {},
        }
        return Call(tool=tool, step=step, **{**base, **fields})

    return make


@pytest.fixture(scope="session")
def now() -> datetime:
    return NOW


@pytest.fixture
def player(new_state: Any, now: Any) -> Callable[..., Player]:
    return lambda **fields: Player(new_state(**fields), now)

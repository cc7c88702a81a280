"""A kind of task: a row of functions. A new kind is a module that defines one, and a line in `kinds`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import Field
from pydantic_core import to_json

from contracts.followup import Outbound
from contracts.models import StrictCamelModel
from contracts.topic import Event

MAX_MS = 366 * 24 * 3600 * 1000


class KindInput(StrictCamelModel):
    """The input of every kind: a task may have a timeout, which resolves it with a typed result (E5)."""

    timeout_ms: int | None = Field(default=None, gt=0, le=MAX_MS)


@dataclass(frozen=True)
class PromptQuestion:
    """A question to a person, with suggested answers."""

    text: str
    options: tuple[str, ...] = ()


def format_json(_: Any, result: Any) -> str:
    """Return the result as JSON, for the resumed agent."""
    return to_json(result).decode()


@dataclass(frozen=True)
class TaskKind:
    """The behavior of a kind's tasks. Each function takes the parsed `input` first; a missing one does not apply.

    `topic` is the key of the topic that a task waits on. `result` returns the result of an event, or None if the event
    does not resolve the task. `due` is the time at which the clock resolves it, given the current time. `rejects`
    returns the reason why an input is not valid at that time. If `is_awaited` is False, the work does not wait for the
    task.
    """

    name: str
    about: str
    input: type[KindInput]
    topic: Callable[[Any], str] | None = None
    result: Callable[[Any, Event], dict[str, Any] | None] = lambda _, __: None
    due: Callable[[Any, int], int] | None = None
    rejects: Callable[[Any, int], str | None] = lambda _, __: None
    asks: Callable[[Any], PromptQuestion] | None = None
    sends: Callable[[Any], Outbound] | None = None
    is_awaited: Callable[[Any], bool] = lambda _: True
    format_result: Callable[[Any, Any], str] = format_json

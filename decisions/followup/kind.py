"""A kind of task: a row of functions. A new kind is a module that makes one, and a line in `kinds`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import Field
from pydantic_core import to_json

from contracts.followup import Outbound
from contracts.models import CamelEdge
from contracts.topic import Event

MOST_MS = 366 * 24 * 3600 * 1000


class KindInput(CamelEdge):
    """Every kind takes a time after which its task is resolved by a typed timeout (E5)."""

    timeout_ms: int | None = Field(default=None, gt=0, le=MOST_MS)


@dataclass(frozen=True)
class Asked:
    """A question to a person, with suggested answers."""

    text: str
    options: tuple[str, ...] = ()


def plainly(_: Any, result: Any) -> str:
    """A result as the resumed agent is told it."""
    return to_json(result).decode()


@dataclass(frozen=True)
class Kind:
    """What its tasks wait for; whatever is left out, they don't. `input` is what the functions take first.

    `topic` names where their events come in, and `result` judges one: None where it is not what is waited for. `due`
    is when the clock itself resolves them, from now; `rejects` says why an input is not taken at that time.
    `is_awaited` is False where nobody waits for its end.
    """

    name: str
    about: str
    input: type[KindInput]
    topic: Callable[[Any], str] | None = None
    result: Callable[[Any, Event], dict[str, Any] | None] = lambda _, __: None
    due: Callable[[Any, int], int] | None = None
    rejects: Callable[[Any, int], str | None] = lambda _, __: None
    asks: Callable[[Any], Asked] | None = None
    sends: Callable[[Any], Outbound] | None = None
    is_awaited: Callable[[Any], bool] = lambda _: True
    told: Callable[[Any, Any], str] = plainly

"""The sender of this process, or of one request: it replaces whatever sender a caller wrote."""

from collections.abc import Collection, Mapping
from contextvars import ContextVar
from typing import TypeVar

from pydantic import BaseModel

from contracts.sender import Sender

B = TypeVar("B", bound=BaseModel)

_sender: ContextVar[Sender | None] = ContextVar("sender", default=None)


def set_sender(sender: Sender) -> None:
    """Set the sender for this task and the tasks it starts from now on."""
    _sender.set(sender)


def name_person(people: Mapping[str, Collection[str]], name: str, sender: Sender) -> Sender:
    """Return the sender with the person's groups in `[people]`, and with their name if no token has it."""
    if not people:
        return sender
    return sender.model_copy(update={"groups": groups_of(people, name), "person": None if sender.token else name})


def groups_of(people: Mapping[str, Collection[str]], name: str) -> tuple[str, ...]:
    """Return the groups of `[people]` that have this name."""
    return tuple(group for group, members in people.items() if name in members)


def stamp_sender(body: B) -> B:
    """Return the body with the current sender; a sender that the caller wrote is dropped."""
    return body.model_copy(update={"sender": _sender.get()})

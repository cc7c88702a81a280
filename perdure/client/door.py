"""The door of this process, or of one request of it: what is sent from here says so, whatever its caller wrote."""

from contextvars import ContextVar
from typing import TypeVar

from pydantic import BaseModel

from contracts.sender import Sender

B = TypeVar("B", bound=BaseModel)

_sender: ContextVar[Sender | None] = ContextVar("sender", default=None)


def speak_as(sender: Sender) -> None:
    """Set the sender of all that this task, and what it starts from now on, sends."""
    _sender.set(sender)


def stamp(body: B) -> B:
    """Return the body with its `sender` set to this door; what its caller wrote there is dropped."""
    return body.model_copy(update={"sender": _sender.get()})

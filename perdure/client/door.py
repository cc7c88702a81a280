"""The sender of this process, or of one request: it replaces whatever sender a caller wrote."""

from contextvars import ContextVar
from typing import TypeVar

from pydantic import BaseModel

from contracts.sender import Sender

B = TypeVar("B", bound=BaseModel)

_sender: ContextVar[Sender | None] = ContextVar("sender", default=None)


def set_sender(sender: Sender) -> None:
    """Set the sender for this task and the tasks it starts from now on."""
    _sender.set(sender)


def stamp_sender(body: B) -> B:
    """Return the body with the current sender; a sender that the caller wrote is dropped."""
    return body.model_copy(update={"sender": _sender.get()})

"""Whether a tool of this process speaks just now: what it prints is not the command's output."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_IN_TOOL: ContextVar[bool] = ContextVar("in_tool", default=False)


def is_in_tool() -> bool:
    return _IN_TOOL.get()


@contextmanager
def in_tool() -> Iterator[None]:
    """While the block runs, and in tasks that it starts."""
    token = _IN_TOOL.set(True)
    try:
        yield
    finally:
        _IN_TOOL.reset(token)

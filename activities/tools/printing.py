"""A flag that is set while a tool runs in this process, so that its prints are not taken for command output."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_IN_TOOL: ContextVar[bool] = ContextVar("in_tool", default=False)


def is_in_tool() -> bool:
    return _IN_TOOL.get()


@contextmanager
def in_tool() -> Iterator[None]:
    """Set the flag in the block and in tasks that it starts."""
    token = _IN_TOOL.set(True)
    try:
        yield
    finally:
        _IN_TOOL.reset(token)

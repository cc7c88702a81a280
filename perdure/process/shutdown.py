"""Exit of a process that has loaded Temporal's SDK."""

import os
import sys
from contextlib import suppress
from typing import Any, NoReturn


def unwrap_stream(stream: Any) -> Any:
    """Return the stream itself, also from behind a guard (`perdure.process.streams`)."""
    return vars(stream).get("own", stream) if hasattr(stream, "__dict__") else stream


def exit_now(code: int) -> NoReturn:
    """Exit at once: the SDK's threads can crash an interpreter that shuts down (sdk-python#300)."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # full, closed or missing
            unwrap_stream(stream).flush()
    os._exit(code)

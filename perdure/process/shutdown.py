"""How a process of ours ends, once Temporal's SDK has been loaded in it."""

import os
import sys
from contextlib import suppress
from typing import Any, NoReturn


def own(stream: Any) -> Any:
    """The stream itself, where a stand-in keeps tools from it (`perdure.process.streams`)."""
    return vars(stream).get("own", stream) if hasattr(stream, "__dict__") else stream


def leave(code: int) -> NoReturn:
    """Ends the process at once. The SDK's threads can crash an interpreter that shuts down (sdk-python#300)."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # full, closed or none: there is nobody left to tell
            own(stream).flush()
    os._exit(code)

"""How a process of ours ends, once Temporal's SDK has been loaded in it."""

import os
import sys
from contextlib import suppress
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """Ends the process at once. The SDK's threads can crash an interpreter that shuts down (sdk-python#300)."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # full or closed: there is nobody left to tell
            stream.flush()
    os._exit(code)

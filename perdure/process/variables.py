"""Variables that others write otherwise than our libraries read them. It loads nothing: each command begins here."""

import re
from collections.abc import MutableMapping

SIZES = ("COLUMNS", "LINES")
_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]+)\]")


def normalize(env: MutableMapping[str, str]) -> None:
    """Write [::1] in NO_PROXY without its brackets, and drop a size that is not a number."""
    for name in ("NO_PROXY", "no_proxy"):
        if name in env:
            env[name] = _BRACKETED.sub(r"\1", env[name])
    for name in SIZES:
        if name in env and not (env[name].isascii() and env[name].isdigit()):
            del env[name]

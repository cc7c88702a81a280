"""Fixes of environment variables that libraries misread. It imports little: each command starts here."""

import re
from collections.abc import MutableMapping

SIZES = ("COLUMNS", "LINES")
_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]+)\]")


def normalize_environment(env: MutableMapping[str, str]) -> None:
    """Remove brackets, as in [::1], from NO_PROXY, and drop terminal sizes that are not numbers."""
    for name in ("NO_PROXY", "no_proxy"):
        if name in env:
            env[name] = _BRACKETED.sub(r"\1", env[name])
    for name in SIZES:
        if name in env and not (env[name].isascii() and env[name].isdigit()):
            del env[name]

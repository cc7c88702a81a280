"""Fixes of a process's environment variables. It imports little: each command starts here."""

import re
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

CONCEALED_VARIABLES = re.compile(r"TEMPORAL_.*|PERDURE_(CODEC_KEYS|ANSWER_KEY|TOKENS)")
_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]+)\]")


def normalize_environment(env: MutableMapping[str, str]) -> None:
    """Fix what libraries misread: brackets in NO_PROXY, as in [::1], and terminal sizes that are not numbers."""
    for name in ("NO_PROXY", "no_proxy"):
        if name in env:
            env[name] = _BRACKETED.sub(r"\1", env[name])
    for name in ("COLUMNS", "LINES"):
        if name in env and not (env[name].isascii() and env[name].isdigit()):
            del env[name]


@contextmanager
def conceal_secrets(env: MutableMapping[str, str]) -> Iterator[None]:
    """Hide Temporal's settings and the keys of answers, payloads and the gateway from tools, which run in this process.

    Settings, connection and codec have been read by then. A tool that needs such a value gets it under another name.
    """
    hidden = {name: env.pop(name) for name in list(env) if CONCEALED_VARIABLES.fullmatch(name)}
    try:
        yield
    finally:
        for name, value in hidden.items():
            env.setdefault(name, value)

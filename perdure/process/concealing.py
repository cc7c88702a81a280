"""Secrets that a worker removes from its environment before it loads tools, which run in its process.

Settings, connection and codec have been read by then. A tool that needs such a value gets it under another name.
"""

import re
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

CONCEALED_VARIABLES = re.compile(r"TEMPORAL_.*|PERDURE_(CODEC_KEYS|ANSWER_KEY|TOKENS)")


@contextmanager
def conceal_secrets(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Hide the Temporal settings and the keys of answers, payloads and the gateway inside the block."""
    hidden = {name: environment.pop(name) for name in list(environment) if CONCEALED_VARIABLES.fullmatch(name)}
    try:
        yield
    finally:
        for name, value in hidden.items():
            environment.setdefault(name, value)

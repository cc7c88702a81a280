"""What a worker takes out of its environment before it loads tools: they run in its process, and start programs.

Settings, connection and codec have read it by then. A tool that needs such a value is given it under another name.
"""

import re
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

CONCEALED = re.compile(r"TEMPORAL_.*|PERDURE_(CODEC_KEYS|ANSWER_KEY|TOKENS)")


@contextmanager
def concealed(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Leave out where Temporal is and the keys of answers, payloads and the gateway, for as long as the block runs."""
    taken = {name: environment.pop(name) for name in list(environment) if CONCEALED.fullmatch(name)}
    try:
        yield
    finally:
        for name, value in taken.items():
            environment.setdefault(name, value)

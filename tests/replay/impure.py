"""A workflow that calls what no workflow may: each call would have another result when its history is replayed."""

import os
import random
import secrets
import time
import uuid
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path

from temporalio import workflow

CALLS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "datetime.now": lambda: datetime.now(),  # noqa: DTZ005, PLW0108 - as careless code has it
    "date.today": lambda: date.today(),  # noqa: DTZ011, PLW0108 - same
    "time.time": lambda: time.time(),  # noqa: PLW0108 - looked up when it is called
    "time.monotonic": lambda: time.monotonic(),  # noqa: PLW0108 - same
    "random": lambda: random.random(),  # noqa: S311, PLW0108 - same
    "secrets": lambda: secrets.token_hex(),  # noqa: PLW0108 - same
    "uuid4": lambda: uuid.uuid4(),  # noqa: PLW0108 - same
    "urandom": lambda: os.urandom(8),
    "environ": lambda: os.environ["HOME"],
    "open": lambda: open(__file__, encoding="utf-8").close(),  # noqa: PTH123 - same
    "read_text": lambda: Path(__file__).read_text(encoding="utf-8"),
}


@workflow.defn
class Impure:
    @workflow.run
    async def run(self, call: str) -> None:
        CALLS[call]()

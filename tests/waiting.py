"""Waits for a condition, never for the clock."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0  # seconds for what takes a few


async def until(holds: Callable[[], Any], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while True:
        claim = holds()
        if asyncio.iscoroutine(claim):
            claim = await claim
        if claim:
            return
        assert time.monotonic() < deadline, "it never came to hold"
        await asyncio.sleep(0.05)

"""One limit of a provider for a fleet: all of it is used, hardly a call is refused, and a death changes little."""

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic, time

from perdure.testkit.model_server import ScriptedAnswer, fails, says
from perdure.testkit.rehearsal.sse import Json
from tests.chaos.auditor import audit
from tests.chaos.context import Row, ScenarioContext, row
from tests.chaos.task import mixed, script

QUEUE = "fleet"
PROJECT = """
[model.providers.anthropic]
requests_per_minute = {limit}
shared = true
"""
MOST_REFUSED, LEAST_USED = 0.01, 0.95
PIECE, PIECES = "A piece. ", 4  # of each reply


@dataclass
class Bucket:
    """A provider that accepts so many requests a second, by a bucket that holds a second's."""

    rate: float
    accepted: Counter[int] = field(default_factory=Counter)  # by minute
    refused: Counter[int] = field(default_factory=Counter)
    _left: float = 0.0
    _at: float = field(default_factory=monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: Json) -> ScriptedAnswer:
        with self._lock:
            now = monotonic()
            self._left, self._at = min(self.rate, self._left + (now - self._at) * self.rate), now
            counted = self.accepted if self._left >= 1 else self.refused
            counted[int(time() // 60)] += 1
            if counted is self.refused:
                return fails(429, retry_after=1)
            self._left -= 1
        return in_pieces(request)


def in_pieces(request: Json) -> ScriptedAnswer:
    """The reply of the script in several calls, cut off by its length, so that a turn makes more of them."""
    messages = request["messages"]
    is_rest = "cut off by the length limit" in str(messages[-1]["content"])
    if is_rest and str(messages[-2]["content"]).count(PIECE) >= PIECES - 1:
        return script({**request, "messages": messages[:-2]})
    return says(PIECE, stop_reason="max_tokens")


async def shared(context: ScenarioContext, *, runs: int, steps: int, size: int, rate: int, windows: int) -> Row:
    """Keep a fleet at its provider's limit for so many minutes. In the second one a worker dies, and another joins."""
    bucket = Bucket(rate)
    described = PROJECT.format(limit=60 * rate)
    async with context.environment(says=bucket, more=described) as it:
        workers = it.start_workers(QUEUE, size)
        for number in range(runs):
            await it.start(mixed(f"{QUEUE}-{number}", it.random, steps, tools=("look",)), QUEUE)
        first = int(time() // 60) + 1  # the minute in which the workers have begun is not whole
        await until_minute(first + 1, 10)
        await workers.fault("kill")
        await until_minute(first + windows)
        used = [bucket.accepted[first + number] / (60 * rate) for number in range(windows)]
        refused = bucket.refused.total() / (bucket.refused + bucket.accepted).total()
        it.fault(counts=False)
        late = await it.all_ended()
        found = await audit(it, late=late)
        if refused > MOST_REFUSED:
            found.violations.append(f"{refused:.1%} of the requests were refused")
        found.violations += (
            f"{part:.1%} of the limit was used in minute {number}"
            for number, part in enumerate(used)
            if part < LEAST_USED and number not in (1, 2)  # of the kill, and the one after it
        )
        shares = ", ".join(f"{part:.1%}" for part in used)
        return row(it, found, f"used of the limit by minute: {shares}; {refused:.2%} of the requests refused")


async def until_minute(minute: int, second: int = 0) -> None:
    await asyncio.sleep(max(60 * minute + second - time(), 0))

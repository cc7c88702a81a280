"""The work T(n, s): n steps, in each of which the model asks for one tool call whose result has s bytes.

Both answer at once, in process, so that what is measured is the runtime. Nothing here compresses.
"""

import base64
import random
import resource
import time
from dataclasses import dataclass, field
from functools import cache

KIB = 1024


@dataclass(frozen=True)
class Work:
    """`size` is in bytes. After the steps come `questions` to a person, one at a time; then the run ends.

    `thinks` is how many seconds each call of the model takes; if it `streams`, it writes text meanwhile.
    """

    steps: int
    size: int = 2 * KIB
    questions: int = 0
    thinks: float = 0
    streams: bool = False

    def __str__(self) -> str:
        return f"T({self.steps}, {self.size / KIB:g} KiB)"


@cache
def _pool() -> str:
    return base64.b64encode(random.Random(0).randbytes(768 * KIB)).decode()  # noqa: S311 - no secret


def text(turn: int, size: int) -> str:
    """`size` characters of noise, others on every turn."""
    offset = turn * 7919 % (len(_pool()) - size)
    return _pool()[offset : offset + size]


def cpu() -> float:
    """Seconds of processor time, user and system, of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@dataclass
class Marks:
    """When a worker called the model (monotonic clock), and when the tool, with the CPU used by then."""

    model: list[float] = field(default_factory=list)
    tool: list[tuple[float, float]] = field(default_factory=list)

    def model_called(self) -> None:
        self.model.append(time.monotonic())

    def tool_called(self) -> None:
        self.tool.append((time.monotonic(), cpu()))

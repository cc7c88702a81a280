"""Bounds of memory and time: how much is remembered, and how long the next attempt waits."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Self, TypeVar, get_args

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

T = TypeVar("T")

ENDLESS = sys.maxsize  # retries
MAX_RETRY_AFTER = 60.0  # seconds: the longest delay taken from a server that asks for one


@dataclass(frozen=True)
class Backoff:
    """Growing pauses between attempts, in seconds: the first, then `factor` times the last one, at most `most`.

    Iterated, it gives the pauses in order.
    """

    first: float
    most: float
    factor: float = 2.0
    retries: int = ENDLESS

    def seconds(self, failures: int) -> float:
        """Return the pause after so many failed attempts; after none, 0."""
        return min(self.first * self.factor ** min(failures - 1, 30), self.most) if failures > 0 else 0.0

    def pause(self, failures: int) -> timedelta:
        return timedelta(seconds=self.seconds(failures))

    def __iter__(self) -> Iterator[float]:
        return map(self.seconds, range(1, self.retries + 1))


class Latest(tuple[T, ...]):
    """The latest entries, oldest first: a tuple that drops its oldest ones beyond `most`. JSON has it as a list.

    A subclass says of what, and how many: `class SteeredIds(Latest[str], most=100)`.
    """

    __slots__ = ()
    most: ClassVar[int]

    def __init_subclass__(cls, *, most: int) -> None:
        cls.most = most

    def __new__(cls, entries: Iterable[T] = ()) -> Self:
        return super().__new__(cls, tuple(entries)[-cls.most :])

    def add(self, *entries: T) -> Self:
        return type(self)((*self, *entries))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        entry: Any = get_args(vars(cls)["__orig_bases__"][0])[0]
        return core_schema.no_info_after_validator_function(cls, handler.generate_schema(tuple[entry, ...]))


class LatestNotices(Latest[str], most=20):
    """Signals and events that had no effect, each with the reason."""

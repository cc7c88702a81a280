"""The tables of `perdure.toml` that belong to features."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from perdure.registry import features, load_each
from perdure.settings.problems import ProjectError

T = TypeVar("T")


@dataclass(frozen=True)
class Table(Generic[T]):
    """A table: its name, the type of its value as pydantic knows it, and the value of a file without it."""

    name: str
    type: Any
    default: T
    check: Callable[[T, Any], None] | None = None
    """Raises ValueError if the value does not fit the rest of the `ProjectFile`."""
    read: Callable[[T, Mapping[str, str], list[ProjectError]], object] | None = None
    """Returns what the environment adds (`Settings.access`). Faults of its variables are added to the list."""
    secrets: Callable[[T], Iterable[str | None]] | None = None
    """Returns the variables that hold its secrets."""

    def of(self, file: Any) -> T:
        """Return the value in a `ProjectFile`."""
        value: T = getattr(file, self.name, self.default)
        return value


def feature_tables() -> Mapping[str, Table[Any]]:
    """Return the tables of all features by name."""
    return _tables_of(tuple(features()))


@cache
def _tables_of(_: tuple[str, ...]) -> Mapping[str, Table[Any]]:
    return {table.name: table for table in load_each("tables")}

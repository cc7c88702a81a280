"""Errors in one line: those that a person can act on, the first one of pydantic, and an illegal move."""

from collections.abc import Iterator

from pydantic import ValidationError

from perdure.contracts.models import escape_unprintable

MAX_CAUSES = 3  # of a group of exceptions, in its description


def format_validation_error(error: ValidationError, whole: str = "input", *, without: str | None = None) -> str:
    """Format as `payload.goal: the goal is empty`. `whole` names the value itself; the path omits `without`."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"] if part != without) or whole
    return escape_unprintable(f"{where}: {first['msg'].removeprefix('Value error, ')}")


def describe_exception(error: BaseException) -> str:
    """Describe as `ValueError: too large`. A group, whose text counts its errors only, is followed by the first few."""
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, BaseExceptionGroup):
        return text
    causes = list(_list_causes(error))
    more = f"; and {len(causes) - MAX_CAUSES} more" if len(causes) > MAX_CAUSES else ""
    return f"{text}: {'; '.join(map(describe_exception, causes[:MAX_CAUSES]))}{more}"


def _list_causes(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the errors in a group and in the groups in it."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _list_causes(error)
        else:
            yield error


class ReportedError(Exception):
    """An error that a person can act on: commands and workers report it as one line, without a traceback."""


class IllegalMoveError(AssertionError):
    """A bug in Perdure, not in its input: the workflow task fails, and its run waits for a repair."""

    def __init__(self, move: str, reason: str) -> None:
        super().__init__(f"cannot {move}: {reason}")

"""Errors in one line: those that a person can act on, the first one of pydantic, and an illegal move."""

from pydantic import ValidationError

from contracts.models import escape_unprintable


def format_validation_error(error: ValidationError, whole: str = "input", *, without: str | None = None) -> str:
    """Format as `payload.goal: the goal is empty`. `whole` names the value itself; the path omits `without`."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"] if part != without) or whole
    return escape_unprintable(f"{where}: {first['msg'].removeprefix('Value error, ')}")


class ReportedError(Exception):
    """An error that a person can act on: commands and workers report it as one line, without a traceback."""


class IllegalMoveError(AssertionError):
    """A bug in Perdure, not in its input: the workflow task fails, and its run waits for a repair."""

    def __init__(self, move: str, reason: str) -> None:
        super().__init__(f"cannot {move}: {reason}")

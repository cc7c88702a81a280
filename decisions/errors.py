"""What is wrong with a value that was given, in one line: the first fault that pydantic found, and never the input."""

from pydantic import ValidationError

from contracts.models import printable


def fault_line(error: ValidationError, whole: str = "input", *, without: str | None = None) -> str:
    """`payload.goal: the goal is empty`. `whole` names the value itself; the part `without` is left out of the path."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"] if part != without) or whole
    return printable(f"{where}: {first['msg'].removeprefix('Value error, ')}")


class IllegalMove(AssertionError):
    """Our own fault, whatever came from outside: the workflow task fails, and what it is of waits for a repair."""

    def __init__(self, move: str, why: str) -> None:
        super().__init__(f"cannot {move}: {why}")

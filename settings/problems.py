"""What every file of a project has in common: how it is read, and how a fault in it is told."""

from pathlib import Path

from pydantic import ValidationError


class ProjectError(Exception):
    """The project does not load. The message is one line for the person who can mend it."""


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ProjectError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProjectError(f"{path}: not UTF-8 text") from None


def first_fault(error: ValidationError) -> tuple[list[str], str]:
    """Where the first fault is, and what was expected there."""
    first = error.errors(include_url=False, include_input=False)[0]
    asides = {
        "python",
        "http",
        "mcp",
        "signal",
        "[key]",
    }  # pydantic names the union's branch, and a bad key
    where = [str(part) for i, part in enumerate(first["loc"]) if not (i == 2 and part in asides)]
    if first["type"] == "extra_forbidden":
        return where, "no such setting in this version"
    return where, first["msg"].removeprefix("Value error, ")

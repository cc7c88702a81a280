"""Reading project files, and errors in them as one line."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from stat import S_ISREG

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from perdure.contracts.models import escape_unprintable
from perdure.contracts.tool import ToolKind
from perdure.decisions.errors import ReportedError

_CHOSEN = {"union_tag_invalid": "expected_tags", "literal_error": "expected", "enum": "expected"}


class ProjectError(ReportedError):
    """The project does not load. The message is one line, even if it quotes a file."""

    def __init__(self, message: str) -> None:
        super().__init__(escape_unprintable(message))


def join_faults(faults: Sequence[ProjectError]) -> ProjectError:
    """Return one error with all of these, each in a line of its message."""
    joined = ProjectError("")
    joined.args = ("\n".join(dict.fromkeys(str(fault) for fault in faults)),)
    return joined


@contextmanager
def collecting(faults: list[ProjectError]) -> Iterator[None]:
    """Append a ProjectError of the block to `faults`, which then hold those of several parts."""
    try:
        yield
    except ProjectError as error:
        faults.append(error)


def raise_all(faults: Sequence[ProjectError]) -> None:
    """Raise one ProjectError with all of these, if there are any."""
    if faults:
        raise join_faults(faults)


def resolve_path(path: Path) -> Path:
    """Return the absolute path without links. Raises ProjectError."""
    try:
        return path.resolve()
    except RuntimeError:  # a link loop, up to Python 3.12
        raise ProjectError(f"{path}: a loop of links") from None


def path_from(text: str) -> Path:
    """Return the path in a setting or variable; `~` is the home folder. Raises ProjectError."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ProjectError(f"{text}: no such home folder; write the full path") from None


def read_project_text(path: Path) -> str:
    """Return the text of a regular file: reading a pipe could block for ever. Raises ProjectError."""
    try:
        if not S_ISREG(path.stat().st_mode):
            raise ProjectError(f"{path}: not a file")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ProjectError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProjectError(f"{path}: not UTF-8 text") from None


def format_suggestion(name: str, existing: Iterable[str]) -> str:
    """Return a suffix for the error about an unknown name: " (did you mean x?)", or nothing."""
    near = get_close_matches(name, list(existing), 1)
    return f" (did you mean {near[0]}?)" if near else ""


def first_error(error: ValidationError, model: type[BaseModel]) -> tuple[list[str], str]:
    """Return the setting with the first validation error of a `model`, and what was expected there."""
    return all_errors(error, model)[0]


def all_errors(error: ValidationError, model: type[BaseModel]) -> list[tuple[list[str], str]]:
    """Return each setting with a validation error of a `model`, and what was expected there."""
    errors = error.errors(include_url=False)
    # A misspelt setting is reported as missing too; its own name is more helpful.
    misspelt = {item["loc"][:-1] for item in errors if item["type"] == "extra_forbidden"}
    errors = [item for item in errors if item["type"] != "missing" or item["loc"][:-1] not in misspelt]
    # A list is reported as too short after its only entry was refused.
    inner = {item["loc"][:depth] for item in errors for depth in range(len(item["loc"]))}
    return [_explain(item, model) for item in errors if item["type"] != "too_short" or item["loc"] not in inner]


def _explain(first: ErrorDetails, model: type[BaseModel]) -> tuple[list[str], str]:
    branches = {*ToolKind, "[key]"}  # pydantic's names for a union's branch and for a bad key
    setting = [str(part) for i, part in enumerate(first["loc"]) if not (i == 2 and part in branches)]
    if first["type"] == "extra_forbidden":
        *table, name = first["loc"]
        return setting, f"no such setting in this version{format_suggestion(str(name), _settings_of(model, table))}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] in _CHOSEN:
        context = first.get("ctx", {})
        value = context.get("tag", first["input"])
        message += format_suggestion(str(value), re.findall(r"'([^']+)'", str(context[_CHOSEN[first["type"]]])))
    return setting, message


def _settings_of(model: type[BaseModel], table: Sequence[str | int]) -> list[str]:
    """Return the settings of a table, which pydantic's location `table` names."""
    whole = model.model_json_schema()
    schema = whole
    for part in table:
        inner = schema.get("properties", {}).get(part) or schema.get("discriminator", {}).get("mapping", {}).get(part)
        others = (*schema.get("patternProperties", {}).values(), schema.get("additionalProperties"))
        schema = inner or next((other for other in others if isinstance(other, dict)), {})
        if path := schema if isinstance(schema, str) else schema.get("$ref"):
            schema = whole["$defs"][path.rpartition("/")[2]]
    return list(schema.get("properties", ()))

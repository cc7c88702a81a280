"""Reading project files, and errors in them as one line."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from stat import S_ISREG
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from contracts.models import MAX_NESTING, escape_unprintable
from contracts.tool import ToolKind

MAX_YAML = 4_000_000  # characters, with aliases expanded
NESTED = "nested too deeply"
_TAGS = {None, "!", "tag:yaml.org,2002:str"}
_OF_TEXT = re.compile(r' in "<[a-z ]+>",')  # PyYAML's name for the input
_CHOSEN = {"union_tag_invalid": "expected_tags", "literal_error": "expected", "enum": "expected"}


class ProjectError(Exception):
    """The project does not load. The message is one line, even if it quotes a file."""

    def __init__(self, message: str) -> None:
        super().__init__(escape_unprintable(message))


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


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML document. Raises ValueError with the reason."""
    try:
        _must_be_bounded(text)
        return yaml.load(text, _Unique)  # noqa: S506 - it is a SafeLoader
    except (yaml.YAMLError, ValueError) as error:  # a bad number or date is a ValueError
        raise ValueError(_OF_TEXT.sub(",", " ".join(plain_reason(error).split()))) from None


def plain_reason(error: Exception) -> str:
    """Return a parser's message, without Python's own wording about numbers with too many digits."""
    is_long = "integer string conversion" in str(error)
    return "a number has too many digits" if is_long else str(error)


def find_yaml_line(text: str, setting: Sequence[str], item: str | None = None) -> int | None:
    """Return the line of a setting in a valid YAML document, or of an item in its list."""
    node, line = yaml.compose(text, Loader=yaml.CBaseLoader), None
    for part in setting:
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        key, node = next(((key, value) for key, value in pairs if key.value == part), (None, node))
        line = key.start_mark.line + 1 if key is not None else line
    items = node.value if isinstance(node, yaml.SequenceNode) else ()
    return next((entry.start_mark.line + 1 for entry in items if item is not None and entry.value == item), line)


def _must_be_bounded(text: str) -> None:
    """Raise ValueError if the document is too deep or, with aliases expanded, too large."""
    size, sizes, outer = 0, dict[str, int](), list[tuple[str | None, int]]()
    for event in yaml.parse(text, Loader=yaml.CBaseLoader):
        if (tag := getattr(event, "tag", None)) not in _TAGS:
            raise ValueError(f"the tag {tag} is not supported, line {event.start_mark.line + 1}")  # type: ignore[union-attr]
        if isinstance(event, yaml.CollectionStartEvent):
            outer.append((event.anchor, size))
            size = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = outer.pop()
            sizes[anchor or ""], size = size, before + size
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor or ""] = 1 + len(event.value)
            size += 1 + len(event.value)
        elif isinstance(event, yaml.AliasEvent):
            size += sizes.get(event.anchor or "", 1)
        if len(outer) > MAX_NESTING:
            raise ValueError(NESTED)
        if size > MAX_YAML:
            raise ValueError(f"more than {MAX_YAML:,} characters with aliases expanded")


class _Unique(yaml.CSafeLoader):
    """A loader that rejects duplicate keys, because one of their values would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value!r}", key.start_mark)
            seen |= {key.value} if isinstance(key.value, str) else set()
        return super().construct_mapping(node, deep)


def format_suggestion(name: str, existing: Iterable[str]) -> str:
    """Return a suffix for the error about an unknown name: " (did you mean x?)", or nothing."""
    near = get_close_matches(name, list(existing), 1)
    return f" (did you mean {near[0]}?)" if near else ""


def first_error(error: ValidationError, model: type[BaseModel]) -> tuple[list[str], str]:
    """Return the setting with the first validation error of a `model`, and what was expected there."""
    errors = error.errors(include_url=False)
    # A misspelt setting is reported as missing too; its own name is more helpful.
    first = next((item for item in errors if item["type"] == "extra_forbidden"), errors[0])
    first = first if errors[0]["type"] == "missing" else errors[0]
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

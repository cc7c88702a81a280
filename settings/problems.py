"""What every file of a project has in common: how it is read, and how a fault in it is told."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from stat import S_ISREG
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from contracts.models import MOST_DEPTH, printable
from contracts.tool import ToolKind

MOST_YAML = 4_000_000  # characters, with every alias written out
NESTED = "nested too deeply"
_TAGS = {None, "!", "tag:yaml.org,2002:str"}
_OF_TEXT = re.compile(r' in "<[a-z ]+>",')  # where PyYAML names what it reads
_CHOSEN = {"union_tag_invalid": "expected_tags", "literal_error": "expected", "enum": "expected"}


class ProjectError(Exception):
    """The project does not load. The message is one line for the person who can mend it, whatever it quotes."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def resolved(path: Path) -> Path:
    """Where it is, with no link on the way. Raises ProjectError."""
    try:
        return path.resolve()
    except RuntimeError:  # Python's word for it, up to 3.12
        raise ProjectError(f"{path}: a link that leads back to itself") from None


def path_from(text: str) -> Path:
    """Return the path that a file or a variable names; `~` is the home, as in a shell. Raises ProjectError."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ProjectError(f"{text}: there is no such home folder; write the whole path") from None


def text_of(path: Path) -> str:
    """Of a plain file only: a pipe that nobody writes to would be read for ever."""
    try:
        if not S_ISREG(path.stat().st_mode):
            raise ProjectError(f"{path}: not a file")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ProjectError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProjectError(f"{path}: not UTF-8 text") from None


def yaml_of(text: str) -> Any:
    """The YAML document. Raises ValueError: what is wrong with it."""
    try:
        _must_be_bounded(text)
        return yaml.load(text, _Unique)  # noqa: S506 - it is a SafeLoader
    except (yaml.YAMLError, ValueError) as error:  # a number or a date that is none is a ValueError
        raise ValueError(_OF_TEXT.sub(",", " ".join(plain_reason(error).split()))) from None


def plain_reason(error: Exception) -> str:
    """Return what a parser says, but not what Python says of a number that has too many digits for it."""
    is_long = "integer string conversion" in str(error)
    return "a number has more digits than can be read" if is_long else str(error)


def yaml_line(text: str, where: Sequence[str], item: str | None = None) -> int | None:
    """The line of a setting in a document that `yaml_of` has read, or of an item in its list."""
    node, line = yaml.compose(text, Loader=yaml.CBaseLoader), None
    for part in where:
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        key, node = next(((key, value) for key, value in pairs if key.value == part), (None, node))
        line = key.start_mark.line + 1 if key is not None else line
    items = node.value if isinstance(node, yaml.SequenceNode) else ()
    return next((each.start_mark.line + 1 for each in items if item is not None and each.value == item), line)


def _must_be_bounded(text: str) -> None:
    """Neither deeper than anything of ours, nor larger than it looks: a few aliases of aliases stand for gigabytes."""
    size, sizes, outer = 0, dict[str, int](), list[tuple[str | None, int]]()
    for event in yaml.parse(text, Loader=yaml.CBaseLoader):
        if (tag := getattr(event, "tag", None)) not in _TAGS:
            raise ValueError(f"the tag {tag} is not taken, line {event.start_mark.line + 1}")  # type: ignore[union-attr]
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
        if len(outer) > MOST_DEPTH:
            raise ValueError(NESTED)
        if size > MOST_YAML:
            raise ValueError(f"more than {MOST_YAML:,} characters, with its aliases written out")


class _Unique(yaml.CSafeLoader):
    """Refuses a key that is there twice: one of the two would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
            seen |= {key.value} if isinstance(key.value, str) else set()
        return super().construct_mapping(node, deep)


def meant(name: str, there: Iterable[str]) -> str:
    """What stands behind a name that is none of those there: the nearest of them, if one is near."""
    near = get_close_matches(name, list(there), 1)
    return f" (did you mean {near[0]}?)" if near else ""


def first_fault(error: ValidationError, model: type[BaseModel]) -> tuple[list[str], str]:
    """Where in what should have been a `model` the first fault is, and what was expected there."""
    faults = error.errors(include_url=False)
    # A misspelt setting is missing, too, and its name tells more.
    first = next((each for each in faults if each["type"] == "extra_forbidden"), faults[0])
    first = first if faults[0]["type"] == "missing" else faults[0]
    asides = {*ToolKind, "[key]"}  # pydantic names the union's branch, and a bad key
    where = [str(part) for i, part in enumerate(first["loc"]) if not (i == 2 and part in asides)]
    if first["type"] == "extra_forbidden":
        *table, name = first["loc"]
        return where, f"no such setting in this version{meant(str(name), _settings_of(model, table))}"
    told = first["msg"].removeprefix("Value error, ")
    if first["type"] in _CHOSEN:
        context = first.get("ctx", {})
        said = context.get("tag", first["input"])
        told += meant(str(said), re.findall(r"'([^']+)'", str(context[_CHOSEN[first["type"]]])))
    return where, told


def _settings_of(model: type[BaseModel], table: Sequence[str | int]) -> list[str]:
    """The names that a table of a file takes, `table` being where pydantic finds it."""
    whole = model.model_json_schema()
    schema = whole
    for part in table:
        inner = schema.get("properties", {}).get(part) or schema.get("discriminator", {}).get("mapping", {}).get(part)
        others = (*schema.get("patternProperties", {}).values(), schema.get("additionalProperties"))
        schema = inner or next((each for each in others if isinstance(each, dict)), {})
        if path := schema if isinstance(schema, str) else schema.get("$ref"):
            schema = whole["$defs"][path.rpartition("/")[2]]
    return list(schema.get("properties", ()))

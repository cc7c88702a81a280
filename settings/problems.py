"""What every file of a project has in common: how it is read, and how a fault in it is told."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from contracts.tool import ToolKind
from contracts.value import MOST_DEPTH, printable

MOST_YAML = 4_000_000  # characters, with every alias written out
NESTED = "nested too deeply"
_TAGS = {None, "!", "tag:yaml.org,2002:str"}


class ProjectError(Exception):
    """The project does not load. The message is one line for the person who can mend it, whatever it quotes."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def text_of(path: Path) -> str:
    try:
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
        raise ValueError(" ".join(str(error).split())) from None


def _must_be_bounded(text: str) -> None:
    """Neither deeper than anything of ours, nor larger than it looks: a few aliases of aliases stand for gigabytes."""
    size, sizes, outer = 0, dict[str, int](), list[tuple[str | None, int]]()
    for event in yaml.parse(text, Loader=yaml.CBaseLoader):
        if (tag := getattr(event, "tag", None)) not in _TAGS:
            raise ValueError(f"the tag {tag} is not taken")
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
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is there twice", node.start_mark)
            seen |= {key.value} if isinstance(key.value, str) else set()
        return super().construct_mapping(node, deep)


def first_fault(error: ValidationError) -> tuple[list[str], str]:
    """Where the first fault is, and what was expected there."""
    first = error.errors(include_url=False, include_input=False)[0]
    asides = {*ToolKind, "[key]"}  # pydantic names the union's branch, and a bad key
    where = [str(part) for i, part in enumerate(first["loc"]) if not (i == 2 and part in asides)]
    if first["type"] == "extra_forbidden":
        return where, "no such setting in this version"
    return where, first["msg"].removeprefix("Value error, ")

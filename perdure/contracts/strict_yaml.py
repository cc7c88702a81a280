"""The one reader of YAML from outside: without tags, duplicate keys, and documents without bounds.

A module of its own, since a client that reads no project needs no YAML, whose library takes long to import.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import yaml

from perdure.contracts.models import MAX_NESTING
from perdure.contracts.strict_input import NESTED, plain_reason

MAX_YAML = 4_000_000  # characters, with aliases expanded
_TAGS = {None, "!", "tag:yaml.org,2002:str"}
_OF_TEXT = re.compile(r' in "<[a-z ]+>",')  # PyYAML's name for the input


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML document. Raises ValueError with the reason in one line."""
    with _one_line_errors():
        _must_be_bounded(text, MAX_NESTING)
        return yaml.load(text, _Unique)  # noqa: S506 - it is a SafeLoader


def compose_yaml(text: str, max_nesting: int) -> yaml.Node | None:
    """Return the nodes of a YAML document, in which aliases are not allowed. Raises ValueError as `parse_yaml`."""
    with _one_line_errors():
        _must_be_bounded(text, max_nesting, has_aliases=False)
        return yaml.compose(text, Loader=yaml.CBaseLoader)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (yaml.YAMLError, ValueError) as error:  # a bad number or date is a ValueError
        raise ValueError(_OF_TEXT.sub(",", " ".join(plain_reason(error).split()))) from None


def find_yaml_line(text: str, setting: Sequence[str], item: str | None = None) -> int | None:
    """Return the line of a setting in a valid YAML document, or of an item in its list."""
    node, line = yaml.compose(text, Loader=yaml.CBaseLoader), None
    for part in setting:
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        key, node = next(((key, value) for key, value in pairs if key.value == part), (None, node))
        line = key.start_mark.line + 1 if key is not None else line
    items = node.value if isinstance(node, yaml.SequenceNode) else ()
    return next((entry.start_mark.line + 1 for entry in items if item is not None and entry.value == item), line)


def _must_be_bounded(text: str, max_nesting: int, *, has_aliases: bool = True) -> None:
    """Raise ValueError if the document is too deep or, with aliases expanded, too large."""
    size, sizes, outer = 0, dict[str, int](), list[tuple[str | None, int]]()
    for event in yaml.parse(text, Loader=yaml.CBaseLoader):
        if (tag := getattr(event, "tag", None)) not in _TAGS:
            raise ValueError(f"tags are not supported: {tag}, line {event.start_mark.line + 1}")  # type: ignore[union-attr]
        if not has_aliases and getattr(event, "anchor", None) is not None:
            raise ValueError("anchors and aliases are not allowed")
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
        if len(outer) > max_nesting:
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

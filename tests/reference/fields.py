"""The fields of a contract as a table: what it may hold, how much, what it is without it, and what it means."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from perdure.contracts.bounds import Latest
from tests.reference.markdown import code, format_default, table
from tests.reference.meanings import meanings

HEAD = ("field", "type", "default", "means")
PATTERNS = {r"^https?://": "URL, http or https", r"^[0-9a-f]{64}$": "64 hex digits"}
MOST_NAMED = 8  # values of a type that are listed in the table


@dataclass(frozen=True)
class Row:
    name: str
    type: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Fields:
    """`elsewhere` are the models that another place describes, by the name of their class and where that is."""

    elsewhere: Mapping[str, str] = field(default_factory=dict)
    mode: Any = "validation"

    @staticmethod
    def words(schema: dict[str, Any], defs: dict[str, Any]) -> str:
        """A part of a JSON Schema, with the definitions that it refers to."""
        return _in_words(schema, defs)

    def table(self, model: type[BaseModel], prefix: str = "") -> str:
        return table(HEAD, ((code(row.name), row.type, row.default, row.meaning) for row in self.rows(model, prefix)))

    def rows(self, model: type[BaseModel], prefix: str = "") -> Iterator[Row]:
        """A model inside of another one stands behind it, its fields named with a dot."""
        schema = model.model_json_schema(mode=self.mode)
        yield from self._rows(model, schema, schema.get("$defs", {}), prefix)

    def _rows(self, model: type[BaseModel], schema: dict[str, Any], defs: dict[str, Any], prefix: str) -> Iterator[Row]:
        summary = meanings(model)
        for name, info in model.model_fields.items():
            written = next(key for key in (info.alias, name) if key is not None and key in schema["properties"])
            part = schema["properties"][written]
            inner, is_list = _inner(info)
            where = self.elsewhere.get(inner.__name__) if inner else None
            default, said = self._default(info), summary.get(name) or info.description or ""
            kind = _objects(part, where, is_list=is_list) if inner else _in_words(part, defs)
            if is_null := self.mode == "serialization" and {"type": "null"} in part.get("anyOf", ()):
                kind += ", or left out" if info.exclude_if else ", or null"
            is_laid_out = inner is not None and where is None
            if not is_laid_out or said or is_list or is_null or default not in ("required", ""):
                yield Row(f"{prefix}{written}", kind, default, said)
            if inner and is_laid_out:
                mark = "[]" if is_list else ""
                yield from self._rows(inner, defs[_reference(part)], defs, f"{prefix}{written}{mark}.")

    def _default(self, info: FieldInfo) -> str:
        if self.mode == "serialization":
            return ""
        if info.is_required():
            return "required"
        value = info.get_default(call_default_factory=True, validated_data={})
        return "" if value is PydanticUndefined else format_default(value)


def _inner(info: FieldInfo) -> tuple[type[BaseModel] | None, bool]:
    """The model in a field, and whether there may be several of it."""
    models = [each for each in _parts(info.annotation) if isinstance(each, type) and issubclass(each, BaseModel)]
    origin = getattr(_plain(info.annotation), "__origin__", None)
    return (models[0], origin in (tuple, list)) if len(models) == 1 and origin is not dict else (None, False)


def _plain(annotation: Any) -> Any:
    """The plain tuple that a `Latest` is in JSON."""
    if not (isinstance(annotation, type) and issubclass(annotation, Latest)):
        return annotation
    entry: Any = get_args(vars(annotation)["__orig_bases__"][0])[0]
    return tuple[entry, ...]


def _parts(annotation: Any) -> list[Any]:
    arguments = getattr(_plain(annotation), "__args__", ())
    return [part for each in arguments for part in _parts(each)] if arguments else [annotation]


def _reference(part: dict[str, Any]) -> str:
    """The definition that a part of a schema leads to."""
    found = re.search(r"#/\$defs/([^']+)'", str(part))
    assert found is not None, part
    return found[1]


def _objects(part: dict[str, Any], where: str | None, *, is_list: bool) -> str:
    words = _counted("list of objects", part) if is_list else "object"
    return f"[{words}]({where})" if where else words


def _in_words(part: dict[str, Any], defs: dict[str, Any]) -> str:  # noqa: PLR0911 - a table of kinds
    if "$ref" in part:
        return _in_words(defs[part["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in part or "oneOf" in part:
        words = [_in_words(each, defs) for each in part.get("anyOf") or part["oneOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    if "const" in part:
        return code(json.dumps(part["const"]))
    if "enum" in part:
        named = part["enum"][:MOST_NAMED]
        return ", ".join(code(str(each)) for each in named) + (", …" if part["enum"] != named else "")
    match part.get("type"):
        case "string":
            return _text(part)
        case "integer" | "number" as kind:
            return ("integer" if kind == "integer" else "number") + _range(part)
        case "boolean":
            return "true or false"
        case "array":
            return _counted(f"list of {_in_words(part.get('items', {}), defs)}", part)
        case "object":
            inner = part.get("additionalProperties")
            of = _in_words(inner, defs) if isinstance(inner, dict) else ""
            return f"object of {of}" if of and of != "any JSON" else "object"
        case _:
            return "any JSON"


def _text(part: dict[str, Any]) -> str:
    match part.get("format"):
        case "duration":
            return "duration"
        case "date-time":
            return "time, ISO 8601"
        case _:
            pass
    if pattern := part.get("pattern"):
        return PATTERNS.get(pattern) or f"text that matches {code(pattern)}"
    most = part.get("maxLength")
    return f"text, up to {most:,} characters" if most else "text"


def _range(part: dict[str, Any]) -> str:
    least, most, above = part.get("minimum"), part.get("maximum"), part.get("exclusiveMinimum")
    if least is not None and most is not None:
        return f", {least:,} to {most:,}"
    if least is not None:
        return f", {least:,} or more"
    return f", above {above:,}" if above is not None else ""


def _counted(words: str, part: dict[str, Any]) -> str:
    parts = [part, *part.get("anyOf", ())]
    most = next((each["maxItems"] for each in parts if "maxItems" in each), None)
    least = next((each["minItems"] for each in parts if "minItems" in each), None)
    if least and most:
        return f"{words}, {least} to {most}"
    if most:
        return f"{words}, up to {most}"
    return f"{words}, {least} or more" if least else words

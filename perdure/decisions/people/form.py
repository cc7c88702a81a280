"""Forms: the schema of an answer that is an object of plain fields, and the answer that a person writes in words.

A field is a string, a number, an integer, a boolean, one of some values, or a list of such values.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import from_json, to_json

from perdure.decisions.text.visible_text import render_visible

MAX_FIELDS = 20
MAX_FORM_BYTES = 16 * 1024  # of a form's JSON
MAX_VALUE = 10_000  # characters of one value
BOOLEANS = {"yes": True, "true": True, "no": False, "false": False}
_BOUNDS = {"minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems"}
_LINE = re.compile(r"\s*([^:=\n]+?)\s*[:=]\s*(.*?)\s*")

Field = Mapping[str, Any]


def form_flaw(schema: Any) -> str | None:
    """Return the reason why a schema is no form, if any."""
    fields = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(fields, dict) or schema.get("type") != "object":
        return "it is no object with properties"
    if len(fields) > MAX_FIELDS or len(to_json(schema)) > MAX_FORM_BYTES:
        return f"it is larger than {MAX_FIELDS} fields, or {MAX_FORM_BYTES:,} bytes"
    required = schema.get("required", [])
    if not isinstance(required, list) or any(not isinstance(name, str) or name not in fields for name in required):
        return "it requires a field that it does not have"
    return next((f"its field {name!r} is not plain" for name, field in fields.items() if not _is_plain(field)), None)


def _is_plain(field: Any) -> bool:
    """Return whether a field can be read, its bounds are numbers, and its default keeps to them."""
    if not isinstance(field, dict) or not isinstance(field.get("type", "string"), str):
        return False
    if any(
        isinstance(field[name], bool) or not isinstance(field[name], int | float) for name in _BOUNDS & field.keys()
    ):
        return False
    if field.get("type") == "array":
        items = field.get("items")
        is_known = isinstance(items, dict) and bool(_values_of(items))
    else:
        is_choice = "enum" in field or "oneOf" in field or "anyOf" in field
        is_known = field.get("type", "string") in _READERS and bool(not is_choice or _values_of(field))
    return is_known and ("default" not in field or not isinstance(_read_value(field, field["default"]), _Flaw))


def _values_of(field: Field) -> dict[str, str]:
    """Return the values of a choice, each with its title."""
    listed = field.get("enum")
    if isinstance(listed, list) and all(isinstance(value, str) for value in listed):
        titles = field.get("enumNames")
        titled = titles if isinstance(titles, list) and len(titles) == len(listed) else listed
        return {value: str(title) for value, title in zip(listed, titled, strict=True)}
    choices = field.get("oneOf") or field.get("anyOf")
    if isinstance(choices, list) and all(isinstance(c, dict) and isinstance(c.get("const"), str) for c in choices):
        return {choice["const"]: str(choice.get("title", choice["const"])) for choice in choices}
    return {}


def describe_form(schema: Mapping[str, Any]) -> str:
    """Return a line for each field: `- size (small or large, required): How large?`."""
    return "\n".join(
        f"- {_line(name)} ({_describe(field)}, {'required' if name in schema.get('required', ()) else 'optional'})"
        f"{': ' if _note(field) else ''}{_note(field)}"
        for name, field in schema["properties"].items()
    )


def _note(field: Field) -> str:
    noted = [str(field[name]) for name in ("title", "description") if field.get(name)]
    return _line(" – ".join(noted))[:500]


def _line(text: str) -> str:
    return render_visible(" ".join(text.split()))


def _describe(field: Field) -> str:
    if field.get("type") == "array":
        return f"any of {_describe(field['items'])}"
    if values := _values_of(field):
        named = (f"{value} – {title}" if title != value else value for value, title in values.items())
        return _line(" or ".join(named))
    words = {"string": "text", "boolean": "yes or no", "integer": "a whole number"}
    default = f", {field['default']} if left out" if "default" in field else ""
    return _line(f"{words.get(field.get('type', 'string'), 'a number')}{default}")


def read_form(schema: Mapping[str, Any], text: str) -> dict[str, Any] | str:
    """Return the values that a person gives, or the reason why they do not fit.

    `text` is a JSON object, lines of `name: value`, or the value itself if the form has one field. Without text, the
    values are the defaults.
    """
    fields: Mapping[str, Field] = schema["properties"]
    given = _split_fields(fields, text.strip())
    if isinstance(given, str):
        return given
    if unknown := given.keys() - fields.keys():
        return f"there is no field {min(unknown)!r}; the fields are: {', '.join(fields)}"
    values = {name: field["default"] for name, field in fields.items() if "default" in field}
    for name, value in given.items():
        read = _read_value(fields[name], value)
        if isinstance(read, _Flaw):
            return f"{name}: {read.reason}"
        values[name] = read
    missing = [name for name in schema.get("required", ()) if name not in values]
    return f"a value is missing: {', '.join(missing)}" if missing else values


def _split_fields(fields: Mapping[str, Field], text: str) -> dict[str, Any] | str:
    if not text:
        return {}
    if text.startswith("{"):
        try:
            read = from_json(text)
        except ValueError as error:
            return f"this is no JSON: {error}"
        return read if isinstance(read, dict) else "this is no JSON object"
    lines = [_LINE.fullmatch(line) for line in text.splitlines() if line.strip()]
    named = {line[1]: line[2] for line in lines if line}
    if len(named) == len(lines) and named.keys() <= fields.keys():
        return named
    if len(fields) == 1:
        return {next(iter(fields)): text}
    return f"give each value in a line, as name: value; the fields are: {', '.join(fields)}"


class _Flaw:
    def __init__(self, reason: str) -> None:
        self.reason = reason


def _read_value(field: Field, value: Any) -> Any:
    if field.get("type") == "array":
        picked = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        if not isinstance(picked, list):
            return _Flaw("expected a list")
        read = [_read_choice(field["items"], one) for one in picked]
        least, most = field.get("minItems", 0), field.get("maxItems", len(read))
        if not least <= len(read) <= most:
            return _Flaw(f"expected {least} to {most} values")
        return next((one for one in read if isinstance(one, _Flaw)), read)
    return _read_choice(field, value) if _values_of(field) else _READERS[field.get("type", "string")](field, value)


def _read_choice(field: Field, value: Any) -> Any:
    values = _values_of(field)
    if isinstance(value, str) and value in values:
        return value
    named = [const for const, title in values.items() if isinstance(value, str) and title.lower() == value.lower()]
    return named[0] if len(named) == 1 else _Flaw(f"expected one of: {', '.join(values)}")


def _read_text(field: Field, value: Any) -> Any:
    if not isinstance(value, str):
        return _Flaw("expected a text")
    least, most = field.get("minLength", 0), min(field.get("maxLength", MAX_VALUE), MAX_VALUE)
    return value if least <= len(value) <= most else _Flaw(f"expected {least} to {most:,} characters")


def _read_number(field: Field, value: Any) -> Any:
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    is_whole = field.get("type") == "integer"
    if not math.isfinite(number) or (is_whole and not number.is_integer()):
        return _Flaw("expected a whole number" if is_whole else "expected a number")
    least, most = field.get("minimum", -math.inf), field.get("maximum", math.inf)
    if not least <= number <= most:
        return _Flaw(f"expected a number from {least} to {most}")
    return value if isinstance(value, int) else int(number) if number.is_integer() else number


def _read_boolean(_: Field, value: Any) -> Any:
    read = value if isinstance(value, bool) else BOOLEANS.get(str(value).lower())
    return _Flaw("expected yes or no") if read is None else read


_READERS: Mapping[str, Callable[[Field, Any], Any]] = {
    "string": _read_text,
    "number": _read_number,
    "integer": _read_number,
    "boolean": _read_boolean,
}

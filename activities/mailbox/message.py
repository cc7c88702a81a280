"""A message's file, read strictly and written in the same form. Every error is one line.

In front matter every scalar is text: an id such as `42` or `2026-01-01` is neither a number nor a date.
"""

import codecs
import os
import re
import secrets
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from activities.storage.workspace import folder_name
from contracts.mail.message import MOST_MESSAGE, MessageHead, ReplyHead, TaskHead
from contracts.models import MOST_DEPTH, depth
from contracts.strict_json import JsonError, read_json
from decisions.text.formatting import cut

ENVELOPE = ".envelope.json"
NOT_READY = (".tmp", "~", ".part", ".swp")
MOST_KEPT = 180  # bytes of the original name in a file's new name
MOST_PENDING = 230  # bytes of a name in `.pending/`: files that belong to it have longer names
MOST_FRONT = 32 * 1024  # bytes of front matter
MOST_ENVELOPE = 64 * 1024
_MOST_NESTED = 4  # a list of inputs, with their fields
_FRONT = re.compile(r"\A---[ \t]*\r?\n(.*?\n)??---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_IDS = ("message_id", "plan_id", "task_id", "subtask_id", "from", "to", "idempotency_key", "in_reply_to")
_HEAD: TypeAdapter[TaskHead | ReplyHead] = TypeAdapter(MessageHead)
_NOTHING = ("", "~", "null")


class NotAMessage(ValueError):
    """The file is not a message. The text names the field, and what was expected."""


def read(data: bytes, plan: str) -> tuple[TaskHead | ReplyHead, str]:
    """Return the head and the body of a message from the folder `plan`. Raises NotAMessage."""
    if len(data) > MOST_MESSAGE:
        raise NotAMessage(too_large(len(data)))
    text = _text(data)
    if not text.strip():
        raise NotAMessage("the file is empty: expected front matter between two lines `---`, or a JSON object")
    fields, body = _json(text) if text.lstrip().startswith("{") else _markdown(text)
    head = _head(fields)
    if head.plan_id != plan and folder_name(head.plan_id) != plan:
        raise NotAMessage(f"plan_id: expected {cut(plan, 100)!r}, as the folder that it came in is named")
    if head.type == "task" and not body.strip():
        raise NotAMessage("body: expected what is to be done, below the front matter")
    return head, body


def written(head: TaskHead | ReplyHead, body: str) -> str:
    """Return a message as Markdown, with forbidden characters replaced."""
    fields = head.model_dump(mode="json", exclude_none=True, exclude_defaults=True, by_alias=True)
    fields = {"type": head.type, **fields}
    front = yaml.safe_dump(fields, allow_unicode=True, sort_keys=False, width=10_000, default_flow_style=False)
    return "---\n" + front + "---\n" + clean(body)


def clean(text: str) -> str:
    """Replace the characters that a message may not contain by U+FFFD."""
    return _CONTROL.sub("\ufffd", text)


def read_envelope(data: bytes) -> dict[str, Any]:
    """Return the fields of a message's envelope, which other programs use. Raises NotAMessage."""
    if len(data) > MOST_ENVELOPE:
        raise NotAMessage(f"the envelope is larger than {MOST_ENVELOPE:,} bytes")
    return _object(_text(data))


def too_large(size: int) -> str:
    return f"the file has {size:,} bytes; the limit is {MOST_MESSAGE:,}: put the rest into an input"


def _text(data: bytes) -> str:
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise NotAMessage(f"not UTF-8 text: byte {data[error.start]:#04x} at {error.start}") from None
    if match := _CONTROL.search(text):
        raise NotAMessage(f"a control character, U+{ord(match[0]):04X}, at {match.start()}: expected plain text")
    return text


def _json(text: str) -> tuple[dict[str, Any], str]:
    fields = _object(text)
    body = fields.pop("body", "")
    if not isinstance(body, str):
        raise NotAMessage("body: expected a text")
    if _CONTROL.search(body):
        raise NotAMessage("body: expected a text without control characters")
    return fields, body


def _object(text: str) -> dict[str, Any]:
    try:
        value = read_json(text)
        from_json(text)  # rejects JSON that is nested too deep for a run
    except JsonError as error:
        raise NotAMessage(str(error) if error.place else f"not JSON: {error}") from None
    except ValueError as error:
        raise NotAMessage(f"not JSON: {cut(str(error), 200)}") from None
    if not isinstance(value, dict):
        raise NotAMessage("expected a JSON object")
    if depth(value) > MOST_DEPTH:
        raise NotAMessage(f"nested more than {MOST_DEPTH} levels deep")
    return value


def _markdown(text: str) -> tuple[dict[str, Any], str]:
    parts = _FRONT.match(text)
    if parts is None:
        raise NotAMessage("expected front matter between two lines `---`, or a JSON object")
    front = parts[1] or ""
    if len(front.encode()) > MOST_FRONT:
        raise NotAMessage(f"the front matter is longer than {MOST_FRONT:,} bytes")
    try:
        _must_be_plain(front)
        node = yaml.compose(front, Loader=yaml.CBaseLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 2}" if error.problem_mark else ""
        reason = cut(error.problem or "it does not parse", 200)
        raise NotAMessage(f"the front matter is not valid YAML: {reason}{line}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise NotAMessage(f"the front matter is not valid YAML: {cut(' '.join(str(error).split()), 200)}") from None
    if not isinstance(node, yaml.MappingNode):
        raise NotAMessage("the front matter: expected fields, such as `type: task`")
    return _fields(node), text[parts.end() :]


def _must_be_plain(front: str) -> None:
    """Raise NotAMessage for tags, deep nesting, and aliases, which can expand without limit."""
    nested = 0
    for event in yaml.parse(front, Loader=yaml.CBaseLoader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise NotAMessage("the front matter: anchors and aliases are not allowed")
        if isinstance(event, yaml.NodeEvent) and getattr(event, "tag", None) not in {None, "!"}:
            raise NotAMessage("the front matter: tags are not allowed")
        if isinstance(event, yaml.CollectionStartEvent):
            nested += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            nested -= 1
        if nested > _MOST_NESTED:
            raise NotAMessage("the front matter is nested too deep")


def _fields(node: yaml.MappingNode) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise NotAMessage("the front matter: expected field names, such as `type`")
        name = str(key.value)
        if name in fields:
            raise NotAMessage(f"{cut(name, 100)}: it is there twice")
        fields[name] = _value(value)
    return {name: value for name, value in fields.items() if value is not None}


def _value(node: yaml.Node) -> Any:
    match node:
        case yaml.MappingNode():
            return _fields(node)
        case yaml.SequenceNode():
            return [_value(item) for item in node.value]
        case _:
            is_plain = not getattr(node, "style", None)
            return None if is_plain and node.value in _NOTHING else str(node.value)


def _head(fields: dict[str, Any]) -> TaskHead | ReplyHead:
    try:
        head = _HEAD.validate_python(fields)
    except ValidationError as error:
        raise NotAMessage(_first(error)) from None
    fields = head.model_dump(mode="json", by_alias=True, exclude_none=True)
    for name in _IDS:
        if not str(fields.get(name, "")).isprintable():
            raise NotAMessage(f"{name}: expected characters that can be printed")
    if _CONTROL.search("\n".join(_strings(fields))):
        raise NotAMessage("a field has control characters: expected plain text")
    if isinstance(head, TaskHead) and len({one.name for one in head.inputs}) < len(head.inputs):
        raise NotAMessage("inputs: two have the same name")
    return head


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in _strings(item)]
    return [value] if isinstance(value, str) else []


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] in {"union_tag_not_found", "union_tag_invalid"}:
        return "type: expected `task` or `reply`"
    where = ".".join(cut(str(part), 100) for part in first["loc"][1:])  # pydantic names the union's branch first
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown field"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}"


def is_skipped(name: str) -> bool:
    """Return whether a name is hidden, an unfinished file, or an envelope."""
    return name.startswith(".") or name.endswith((*NOT_READY, ENVELOPE))


def envelope_of(name: str) -> str:
    return f"{name.removesuffix(Path(name).suffix)}{ENVELOPE}"


def reason_of(file: str) -> str:
    return f"{file}.reason.json"


def new_name(name: str) -> str:
    """Return a unique name for a file, of printable characters."""
    printable = "".join(char if char.isprintable() else "_" for char in name.encode(errors="replace").decode())
    stem, suffix = Path(printable).stem, Path(printable).suffix.encode()[:40].decode(errors="ignore")
    base = stem.encode()[: MOST_KEPT - len(suffix.encode())].decode(errors="ignore")
    mark = f"-{sha256(os.fsencode(name)).hexdigest()[:6]}" if base + suffix != name else ""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}~{base}{mark}{suffix}"

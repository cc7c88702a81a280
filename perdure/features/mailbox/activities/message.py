"""A message's file: its names, when it is complete, and its content, read strictly. Every error is one line.

In front matter every scalar is text: an id such as `42` or `2026-01-01` is neither a number nor a date.
"""

import codecs
import os
import re
import secrets
import time
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from perdure.activities.storage.workspace import folder_name
from perdure.contracts.models import MAX_NESTING
from perdure.contracts.strict_input import FRONT_MATTER, JsonError, parse_strict_json
from perdure.contracts.strict_yaml import compose_yaml
from perdure.decisions.text.formatting import truncate
from perdure.features.mailbox.contract import MAX_MESSAGE_BYTES, MessageHead, ReplyHead, TaskHead

ENVELOPE = ".envelope.json"
NOT_READY = (".tmp", "~", ".part", ".swp")
FRESH = 0.2  # seconds after a change in which a file may still be being written
MAX_KNOWN = 20_000  # files that are remembered between checks
MAX_STEM = 180  # bytes of the original name in a file's new name
MAX_PENDING = 230  # bytes of a name in `.pending/`: files that belong to it have longer names
MAX_FRONT = 32 * 1024  # bytes of front matter
MAX_ENVELOPE = 64 * 1024
_MAX_NESTED = 4  # a list of inputs, with their fields
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_IDS = ("message_id", "plan_id", "task_id", "subtask_id", "from", "to", "idempotency_key", "in_reply_to")
_HEAD: TypeAdapter[TaskHead | ReplyHead] = TypeAdapter(MessageHead)
_NOTHING = ("", "~", "null")


class MessageError(ValueError):
    """The file is not a message. The text names the field, and what was expected."""


def parse_message(data: bytes, plan: str) -> tuple[TaskHead | ReplyHead, str]:
    """Return the head and the body of a message from the folder `plan`. Raises MessageError."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageError(message_size_error(len(data)))
    text = _decode_text(data)
    if not text.strip():
        raise MessageError("the file is empty: expected front matter between two lines `---`, or a JSON object")
    fields, body = _read_json_message(text) if text.lstrip().startswith("{") else _read_markdown(text)
    head = _parse_head(fields)
    if head.plan_id != plan and folder_name(head.plan_id) != plan:
        raise MessageError(f"plan_id: expected {truncate(plan, 100)!r}, as the folder that it came in is named")
    if head.type == "task" and not body.strip():
        raise MessageError("body: expected what is to be done, below the front matter")
    return head, body


def format_message(head: TaskHead | ReplyHead, body: str) -> str:
    """Return a message as Markdown, with forbidden characters replaced."""
    fields = head.model_dump(mode="json", exclude_none=True, exclude_defaults=True, by_alias=True)
    fields = {"type": head.type, **fields}
    front = yaml.safe_dump(fields, allow_unicode=True, sort_keys=False, width=10_000, default_flow_style=False)
    return "---\n" + front + "---\n" + replace_forbidden(body)


def replace_forbidden(text: str) -> str:
    """Replace the characters that a message may not contain by U+FFFD."""
    return _CONTROL.sub("\ufffd", text)


def read_envelope(data: bytes) -> dict[str, Any]:
    """Return the fields of a message's envelope, which other programs use. Raises MessageError."""
    if len(data) > MAX_ENVELOPE:
        raise MessageError(f"the envelope is larger than {MAX_ENVELOPE:,} bytes")
    return _parse_object(_decode_text(data))


def message_size_error(size: int) -> str:
    return f"the file has {size:,} bytes; the limit is {MAX_MESSAGE_BYTES:,}: put the rest into an input"


def _decode_text(data: bytes) -> str:
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise MessageError(f"not UTF-8 text: byte {data[error.start]:#04x} at {error.start}") from None
    if match := _CONTROL.search(text):
        raise MessageError(f"a control character, U+{ord(match[0]):04X}, at {match.start()}: expected plain text")
    return text


def _read_json_message(text: str) -> tuple[dict[str, Any], str]:
    fields = _parse_object(text)
    body = fields.pop("body", "")
    if not isinstance(body, str):
        raise MessageError("body: expected a text")
    if _CONTROL.search(body):
        raise MessageError("body: expected a text without control characters")
    return fields, body


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value = parse_strict_json(text, MAX_NESTING)
    except JsonError as error:
        raise MessageError(str(error) if error.place else f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise MessageError("expected a JSON object")
    return value


def _read_markdown(text: str) -> tuple[dict[str, Any], str]:
    parts = FRONT_MATTER.match(text)
    if parts is None:
        raise MessageError("expected front matter between two lines `---`, or a JSON object")
    front = parts[1] or ""
    if len(front.encode()) > MAX_FRONT:
        raise MessageError(f"the front matter is longer than {MAX_FRONT:,} bytes")
    try:
        node = compose_yaml(f"\n{front}", _MAX_NESTED)  # with the line numbers of the file
    except ValueError as error:
        raise MessageError(f"the front matter is not valid YAML: {truncate(str(error), 200)}") from None
    if not isinstance(node, yaml.MappingNode):
        raise MessageError("the front matter: expected fields, such as `type: task`")
    return _yaml_to_fields(node), text[parts.end() :]


def _yaml_to_fields(node: yaml.MappingNode) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise MessageError("the front matter: expected field names, such as `type`")
        name = str(key.value)
        if name in fields:
            raise MessageError(f"{truncate(name, 100)}: it is there twice")
        fields[name] = _yaml_to_value(value)
    return {name: value for name, value in fields.items() if value is not None}


def _yaml_to_value(node: yaml.Node) -> Any:
    match node:
        case yaml.MappingNode():
            return _yaml_to_fields(node)
        case yaml.SequenceNode():
            return [_yaml_to_value(item) for item in node.value]
        case _:
            is_plain = not getattr(node, "style", None)
            return None if is_plain and node.value in _NOTHING else str(node.value)


def _parse_head(fields: dict[str, Any]) -> TaskHead | ReplyHead:
    try:
        head = _HEAD.validate_python(fields)
    except ValidationError as error:
        raise MessageError(_first_error(error)) from None
    fields = head.model_dump(mode="json", by_alias=True, exclude_none=True)
    for name in _IDS:
        if not str(fields.get(name, "")).isprintable():
            raise MessageError(f"{name}: expected characters that can be printed")
    if _CONTROL.search("\n".join(_all_strings(fields))):
        raise MessageError("a field has control characters: expected plain text")
    if isinstance(head, TaskHead) and len({one.name for one in head.inputs}) < len(head.inputs):
        raise MessageError("inputs: two have the same name")
    return head


def _all_strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _all_strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in _all_strings(item)]
    return [value] if isinstance(value, str) else []


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] in {"union_tag_not_found", "union_tag_invalid"}:
        return "type: expected `task` or `reply`"
    where = ".".join(truncate(str(part), 100) for part in first["loc"][1:])  # pydantic names the union's branch first
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
    base = stem.encode()[: MAX_STEM - len(suffix.encode())].decode(errors="ignore")
    mark = f"-{sha256(os.fsencode(name)).hexdigest()[:6]}" if base + suffix != name else ""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}~{base}{mark}{suffix}"


class RestTracker:
    """The memory of files that changed just now, or have a modification time in the future.

    Such a file is at rest once two checks, at least `FRESH` apart, find it unchanged.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, ...], float]] = {}  # its status, and since when

    def is_at_rest(self, place: str, status: os.stat_result) -> bool:
        if time.time() - status.st_mtime >= FRESH:
            self._known.pop(place, None)
            return True
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        known = self._known.get(place)
        if known is not None and known[0] == stamp:
            return time.monotonic() - known[1] >= FRESH
        self._known.pop(place, None)
        if len(self._known) >= MAX_KNOWN:
            self._known.pop(next(iter(self._known)))
        self._known[place] = (stamp, time.monotonic())
        return False

"""Tools of MCP servers: their names, their effects, and whether they are as accepted."""

import json
import re
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from hashlib import sha256
from typing import Any

from contracts.tool import Effect, Pin, PinState
from decisions.text.visible_text import render_visible

SEPARATOR = "__"
MAX_API_TOOL_NAME = 64  # characters of a tool's name in the Messages API
MAX_WORD = 60  # characters of a value in a schema; a longer one is prose
MAX_PIN_DIFFERENCE = 4000  # characters of a diff

# From the loosest to the strictest.
STRICTNESS = (Effect.read, Effect.keyed, Effect.once)

_SERVER = re.compile(r"[a-zA-Z0-9-]+(_[a-zA-Z0-9-]+)*")
_TOOL = re.compile(r"[a-zA-Z0-9_-]+")


def is_server_name(name: str) -> bool:
    """Return whether the name has no `__`, and no `_` at its ends: the server is all before the first `__`."""
    return _SERVER.fullmatch(name) is not None


def tool_name(server: str, tool: str) -> str:
    return f"{server}{SEPARATOR}{tool}"


def server_of_tool(name: str) -> str | None:
    """Return the server in `server__tool` and `server__*`, if any."""
    server, separator, tool = name.partition(SEPARATOR)
    return server if separator and server and tool else None


def name_rejection(server: str, tool: str) -> str | None:
    """Return the reason why the Messages API rejects such a name, if any."""
    name = tool_name(server, tool)
    if not _TOOL.fullmatch(tool):
        return f"{tool[:100]!r} has characters that a model's tool may not have"
    if len(name) > MAX_API_TOOL_NAME:
        spare = MAX_API_TOOL_NAME - len(SEPARATOR) - len(tool)
        hint = f"rename the server to at most {spare} characters" if spare > 0 else "no server name is short enough"
        return f"{name[:100]!r} has {len(name)} characters; the limit is {MAX_API_TOOL_NAME}: {hint}"
    return None


def effect_of(annotations: Mapping[str, Any]) -> Effect:
    """Return the effect that the hints allow. A server has no idempotency key: `keyed` means a repeat adds nothing."""
    if annotations.get("readOnlyHint") is True:
        return Effect.read
    return Effect.keyed if annotations.get("idempotentHint") is True else Effect.once


def is_looser(effect: Effect, than: Effect) -> bool:
    return STRICTNESS.index(effect) < STRICTNESS.index(than)


def strictest_effect(*effects: Effect) -> Effect:
    return max(effects, key=STRICTNESS.index)


def pin_tool(description: str, input_schema: dict[str, Any], annotations: dict[str, Any]) -> Pin:
    """Return a definition with its hash, which does not depend on the order of fields."""
    fields = {"annotations": annotations, "description": description, "inputSchema": input_schema}
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    digest = sha256(canonical.encode()).hexdigest()
    return Pin(description=description, input_schema=input_schema, annotations=annotations, sha256=digest)


def is_sound(stored: Pin) -> bool:
    """Return whether the hash is right. A file that was edited by hand, or merged badly, is not accepted."""
    return pin_tool(stored.description, stored.input_schema, stored.annotations).sha256 == stored.sha256


def pin_states(accepted: Mapping[str, Pin], now: Mapping[str, Pin]) -> dict[str, PinState]:
    """Return the state of every tool on either side, by name."""
    states = {name: PinState.gone if name in accepted else PinState.new for name in sorted({*accepted, *now})}
    for name in accepted.keys() & now.keys():
        states[name] = PinState.pinned if accepted[name].sha256 == now[name].sha256 else PinState.changed
    return states


def diff_pins(accepted: Pin | None, now: Pin | None) -> str:
    text = "\n".join(
        unified_diff(_definition_lines(accepted), _definition_lines(now), "accepted", "now", lineterm="", n=1)
    )
    return text if len(text) <= MAX_PIN_DIFFERENCE else f"{text[:MAX_PIN_DIFFERENCE]}\n… (cut)"


def render_visible_line(text: str) -> str:
    """Render hidden and control characters visibly, so that a person can judge hidden words too."""
    return render_visible(text).replace("\n", "\\n").replace("\t", "\\t")


def schema_texts(schema: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text of a schema that a model would read, with its place: descriptions, and long values."""
    inner = schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ()
    for key, value in inner:
        place = f"{path}.{key}" if path else str(key)
        if isinstance(value, str) and (key == "description" or len(value) > MAX_WORD):
            yield place.removesuffix(".description").removeprefix("properties."), value
        else:
            yield from schema_texts(value, place)


def _definition_lines(tool: Pin | None) -> list[str]:
    if tool is None:
        return []
    lines = [f"description: {line}" for line in tool.description.split("\n")]
    for field, value in (("annotations", tool.annotations), ("inputSchema", tool.input_schema)):
        if value:
            lines += f"{field}: {json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)}".splitlines()
    return list(map(render_visible_line, lines))


def foreign_reference(schema: Any) -> str | None:
    """Return the first reference that leads out of a schema, whose meaning another party could change."""
    if isinstance(schema, dict):
        for key in ("$ref", "$dynamicRef"):
            target = schema.get(key)
            if isinstance(target, str) and not target.startswith("#"):
                return target
        schema = list(schema.values())
    inner = (foreign_reference(value) for value in schema) if isinstance(schema, list) else ()
    return next((target for target in inner if target is not None), None)

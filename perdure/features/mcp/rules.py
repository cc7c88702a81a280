"""Tools of MCP servers: their names, their effects, and whether they are as accepted."""

import json
import re
from collections.abc import Mapping
from difflib import unified_diff
from hashlib import sha256
from typing import Any

from perdure.contracts.tool import Effect, Pin, PinState
from perdure.decisions.text.visible_text import render_visible
from perdure.decisions.tools import SEPARATOR, server_of_tool

MAX_API_TOOL_NAME = 64  # characters of a tool's name in the Messages API
NAME_DIGEST = 8  # characters of a digest in a name
MAX_PIN_DIFFERENCE = 4000  # characters of a diff

# From the loosest to the strictest.
STRICTNESS = (Effect.read, Effect.keyed, Effect.once)

_SERVER = re.compile(r"[a-zA-Z0-9-]+(_[a-zA-Z0-9-]+)*")
_TOOL = re.compile(r"[a-zA-Z0-9_-]+")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


def is_server_name(name: str) -> bool:
    """Return whether the name has no `__`, and no `_` at its ends: the server is all before the first `__`."""
    return _SERVER.fullmatch(name) is not None


def tool_name(server: str, tool: str) -> str:
    """Return the name for models. One that they cannot have is rewritten, and ends with a digest of the tool's own."""
    name = f"{server}{SEPARATOR}{tool}"
    if _TOOL.fullmatch(tool) and len(name) <= MAX_API_TOOL_NAME:
        return name
    head = _NOT_IN_NAMES.sub("_", name)[: MAX_API_TOOL_NAME - NAME_DIGEST - 1]
    return f"{head}_{sha256(tool.encode(errors='backslashreplace')).hexdigest()[:NAME_DIGEST]}"


def name_rejection(server: str, tool: str) -> str | None:
    """Return the reason why a tool can have no name for models, if any."""
    if not tool:
        return "it has no name"
    if server_of_tool(tool_name(server, tool)) != server:
        spare = MAX_API_TOOL_NAME - len(SEPARATOR) - NAME_DIGEST
        return f"the name of its server leaves no room for it: rename the server to at most {spare} characters"
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


def _definition_lines(tool: Pin | None) -> list[str]:
    if tool is None:
        return []
    lines = [f"description: {line}" for line in tool.description.split("\n")]
    for field, value in (("annotations", tool.annotations), ("inputSchema", tool.input_schema)):
        if value:
            lines += f"{field}: {json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)}".splitlines()
    return list(map(render_visible_line, lines))

"""Tools of MCP servers: names, effects, whether they are as accepted; their tasks, and what they ask people."""

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from difflib import unified_diff
from hashlib import sha256
from typing import Any

from perdure.contracts.tool import Effect, InputRequest, Pin, PinState, ServerTask
from perdure.decisions.ids import json_digest
from perdure.decisions.people.form import form_flaw
from perdure.decisions.text.formatting import truncate
from perdure.decisions.text.visible_text import render_visible
from perdure.decisions.tools import SEPARATOR, server_of_tool
from perdure.decisions.unfinished import MAX_INPUTS, MAX_TEXT, url_flaw

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


TASKS = "io.modelcontextprotocol/tasks"  # the extension of MCP
KEY = "perdure/idempotency-key"  # in the `_meta` of a call
MAX_ID = 512  # characters of a task's id, or of the name of an input
ENDED = ("completed", "failed", "cancelled")  # states of a task
_ID = re.compile(rf"[!-~]{{1,{MAX_ID}}}")


def read_task(server: str, raw: Mapping[str, Any], now: datetime, before: ServerTask | None = None) -> ServerTask | str:
    """Return a task as its server shows it now, or the reason why the reply is not believed."""
    name = raw.get("taskId")
    if not isinstance(name, str) or not _ID.fullmatch(name):
        return "its reply has no usable taskId"
    if before is not None and name != before.id:
        return f"it answered with the task {truncate(name, 80)} instead"
    status, message, ttl, poll = (raw.get(field) for field in ("status", "statusMessage", "ttlMs", "pollIntervalMs"))
    if not isinstance(status, str):
        return "its reply has no status"
    created = before.created_at if before else _read_time(raw.get("createdAt"), now)
    lives = timedelta(milliseconds=ttl) if isinstance(ttl, int | float) and 0 <= ttl < MAX_TTL else None
    return ServerTask(
        server=server,
        id=name,
        status=status[:100],
        message=message[:1000] if isinstance(message, str) else "",
        created_at=created,
        expires_at=created + lives if lives is not None else None,
        poll_ms=round(poll) if isinstance(poll, int | float) and 0 <= poll < MAX_TTL else 1000,
        seen_at=now,
    )


MAX_TTL = 10 * 365 * 86_400_000  # milliseconds; a longer one is none


def _read_time(text: Any, now: datetime) -> datetime:
    """Return the time when a task began. One that is not readable, or lies ahead, is now."""
    with suppress(ValueError, TypeError):
        at = datetime.fromisoformat(text)
        return min(at if at.tzinfo else at.replace(tzinfo=UTC), now)
    return now


def to_input_requests(requests: Any, answered: Collection[str] = ()) -> tuple[InputRequest, ...]:
    """Return what a server asks people, without what was answered before."""
    items = requests.items() if isinstance(requests, Mapping) else ()
    new = [(key, asked) for key, asked in items if key not in answered and len(key) <= MAX_ID]
    return tuple(to_input_request(key, asked) for key, asked in new[:MAX_INPUTS])


def to_input_request(key: str, asked: Any) -> InputRequest:
    """Return one request of a server to a person."""
    method = asked.get("method") if isinstance(asked, Mapping) else None
    if method != "elicitation/create" or not isinstance(params := asked.get("params"), Mapping):
        return InputRequest(key=key, message="", refused=f"it asks for {truncate(str(method), 80)}")
    message = str(params.get("message", ""))[:MAX_TEXT]
    if params.get("mode", "form") == "url":
        url = params.get("url")
        flaw = url_flaw(url)
        return InputRequest(key=key, message=message, url="" if flaw else str(url), refused=flaw or "")
    form = params.get("requestedSchema")
    flaw = form_flaw(form)
    refused = f"its form cannot be shown: {flaw}" if flaw else ""
    return InputRequest(key=key, message=message, form=None if flaw else form, refused=refused)


def read_elicitations(listed: Any) -> tuple[InputRequest, ...]:
    """Return the pages that a server wants opened before it takes the call (error -32042, MCP of 2025)."""
    pages = [page for page in listed if isinstance(page, Mapping)] if isinstance(listed, list) else []
    named = {input_key(page): {"method": "elicitation/create", "params": {**page, "mode": "url"}} for page in pages}
    return to_input_requests(named)


def input_key(asked: Mapping[str, Any]) -> str:
    """Return a name for a request within an open call, which has none: the same when it is asked again."""
    params = {key: value for key, value in asked.items() if key not in ("_meta", "elicitationId", "task")}
    return f"asked-{json_digest(params)[-16:]}"

"""The work that an event from outside begins: its goal, its conversation, and the answer to it."""

import json
import re
from collections.abc import Mapping

from contracts.followup import Outbound
from contracts.people.inbound import MAX_ANSWER, MAX_CONVERSATION, InboundRequest
from decisions.ids import digest_names
from decisions.text.quoting import fence_text
from decisions.text.visible_text import render_visible

MAX_FIELD = 20_000  # characters of a field in a goal
MAX_INLINE = 200  # characters of a field that is quoted within its line
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._:-]+")


def placeholders(template: str) -> set[str]:
    """Return the names of the fields in a template."""
    return set(_PLACEHOLDER.findall(template))


def render_goal(template: str, fields: Mapping[str, str]) -> str:
    """Replace each `{name}` by the field as quoted data: within the line if it is short, else between fences."""
    return _PLACEHOLDER.sub(lambda match: _quote_field(fields[match[1]]), template)


def render_name(template: str, fields: Mapping[str, str]) -> str:
    """Replace each `{name}` in the id of a conversation. Characters other than `A-Za-z0-9._:-` become `-`."""
    name = _PLACEHOLDER.sub(lambda match: _UNSAFE.sub("-", fields[match[1]]), template)
    return name if len(name) <= MAX_CONVERSATION else digest_names(name)


def _quote_field(text: str) -> str:
    visible = render_visible(text[:MAX_FIELD]) + ("…" if len(text) > MAX_FIELD else "")
    if len(visible) <= MAX_INLINE and visible.isprintable():
        return json.dumps(visible, ensure_ascii=False)
    return f"\n{fence_text(visible)}\n"


def inbound_run_id(request: InboundRequest) -> str:
    """Return the id of the run that an event begins: a repeat finds the same one."""
    return "e-" + digest_names(request.start, request.event.id)


def inbound_request_id(request: InboundRequest) -> str:
    """Return the id of the request by which an event begins a turn."""
    return f"start:{request.start}:{digest_names(request.event.id)}"


def answer_message(place: Outbound, text: str) -> Outbound:
    """Return the answer to the event, cut to the length of a message."""
    cut = text if len(text) <= MAX_ANSWER else f"{text[: MAX_ANSWER - 1]}…"
    return place.model_copy(update={"text": cut or "(no answer)"})

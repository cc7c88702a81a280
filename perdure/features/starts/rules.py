"""A `[[start]]`: the events that it is for, and the work that such an event begins."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perdure.decisions.ids import digest_names
from perdure.decisions.policy.rules import (
    CheckedFacts,
    Expression,
    FindValue,
    UnevaluableError,
    check_facts,
    compile_expression,
    find_value,
    must_be_bool,
)
from perdure.decisions.text.visible_text import cut_text, fence_text, render_visible
from perdure.features.follow_ups.contract import Outbound
from perdure.features.starts.contract import MAX_ANSWER, MAX_CONVERSATION, InboundEvent, InboundRequest, PreparedStart

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
    if not text:
        return ""
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
    return place.evolve(text=cut_text(text, MAX_ANSWER) or "(no answer)")


EVENT_FACTS = frozenset({"event", "kind", "user"})


class UnusableEventError(Exception):
    """The event does not have what the start needs. The message is one line."""


@dataclass(frozen=True)
class StartRule:
    """A compiled `[[start]]`; its settings are described there."""

    name: str
    webhook: str
    on: tuple[str, ...]
    agent: str | None
    goal: str
    conversation: str | None
    answer: bool
    when: Expression | None
    dedupe: Expression | None
    fields: Mapping[str, Expression]

    @property
    def expressions(self) -> list[Expression]:
        return [expression for expression in (self.when, self.dedupe, *self.fields.values()) if expression is not None]

    def rejection(self, event: InboundEvent, find: FindValue = find_value) -> str | None:
        """Return the reason why the event begins nothing here. None if only its workflow can report why it cannot."""
        if event.kind not in self.on:
            return f"start {self.name} is for {', '.join(self.on)}, and this is {event.kind}"
        try:
            is_meant = self.when is None or _holds(self.when, event, find)
        except UnevaluableError:
            return None
        return None if is_meant else f"`when` of start {self.name} is false for this event"

    def identify(self, event: InboundEvent, find: FindValue = find_value) -> str:
        """Return the event's identity for this start. Raises UnusableEventError."""
        if self.dedupe is None:
            return event.id
        return _require_text("dedupe", _find_text(self.dedupe, event, "dedupe", find))

    def prepare(self, event: InboundEvent, find: FindValue = find_value) -> PreparedStart:
        """Return the work that the event begins. Raises UnusableEventError."""
        if event.kind not in self.on:
            return PreparedStart()
        try:
            if self.when is not None and not _holds(self.when, event, find):
                return PreparedStart()
        except UnevaluableError as error:
            reason = f"`when` of start {self.name} cannot be evaluated for this event: {error}"
            raise UnusableEventError(reason) from None
        fields = {name: _find_text(expression, event, name, find) for name, expression in self.fields.items()}
        for name in placeholders(self.conversation or ""):
            _require_text(f"field {name} of the conversation", fields[name])
        return PreparedStart(
            goal=_require_text("goal", render_goal(self.goal, fields)),
            agent=self.agent,
            conversation=None if self.conversation is None else render_name(self.conversation, fields),
            answers=self.answer,
        )


def compile_start(settings: Mapping[str, Any]) -> StartRule:
    """Compile the settings of a `[[start]]`. Raises ExpressionError."""
    when, dedupe = (settings[name] and compile_expression(settings[name], EVENT_FACTS) for name in ("when", "dedupe"))
    fields = {name: compile_expression(text, EVENT_FACTS) for name, text in settings["fields"].items()}
    plain = {name: settings[name] for name in ("name", "webhook", "on", "agent", "goal", "conversation", "answer")}
    return StartRule(**plain, when=when, dedupe=dedupe, fields=fields)


def event_facts(event: InboundEvent) -> CheckedFacts:
    return check_facts({"event": event.body, "kind": event.kind, "user": event.user or ""})


def _find_value(expression: Expression, event: InboundEvent, find: FindValue) -> Any:
    """Return the value for an event. Where null has no meaning, it is the text that the sender left empty.

    Raises UnevaluableError.
    """
    try:
        return find(expression, event_facts(event))
    except UnevaluableError:
        if (filled := _fill_nulls(event.body)) == event.body:
            raise
    return find(expression, event_facts(event.evolve(body=filled)))


def _fill_nulls(value: Any) -> Any:
    match value:
        case None:
            return ""
        case dict():
            return {name: _fill_nulls(inner) for name, inner in value.items()}
        case list():
            return [_fill_nulls(inner) for inner in value]
        case _:
            return value


def _holds(expression: Expression, event: InboundEvent, find: FindValue) -> bool:
    """Return whether a condition is true for an event. Raises UnevaluableError."""
    return must_be_bool(_find_value(expression, event, find))


def _require_text(name: str, text: str) -> str:
    if not text.strip():
        raise UnusableEventError(f"the {name} is empty in this event")
    return text


def _find_text(expression: Expression, event: InboundEvent, name: str, find: FindValue) -> str:
    """Return the value of a field as text, which may be empty. Raises UnusableEventError."""
    try:
        value = _find_value(expression, event, find)
    except UnevaluableError as error:
        raise UnusableEventError(f"the field {name} has no value in this event: {error}") from None
    match value:
        case bool():
            return str(value).lower()
        case None:
            return ""
        case str() | int() | float():
            return str(value)
        case _:
            raise UnusableEventError(f"the field {name} has no text, number or boolean in this event")

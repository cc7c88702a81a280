"""A `[[start]]`: the events that it is for, and the work that such an event begins."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contracts.people.inbound import InboundEvent, PreparedStart
from decisions.people.inbound import render_goal, render_name
from decisions.policy.expression import Expression, compile_expression, is_exact

if TYPE_CHECKING:
    import cel

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

    def takes(self, event: InboundEvent) -> bool:
        """Return whether the event begins work, also if only its workflow can report why it cannot."""
        if event.kind not in self.on:
            return False
        context = _build_event_context(event)
        return self.when is None or context is None or self.when.holds(context) is not False

    def identify(self, event: InboundEvent) -> str:
        """Return the event's identity for this start. Raises UnusableEventError."""
        if self.dedupe is None:
            return event.id
        return _to_text(self.dedupe.evaluate(_require_context(event)), "dedupe")

    def prepare(self, event: InboundEvent) -> PreparedStart:
        """Return the work that the event begins. Raises UnusableEventError."""
        if event.kind not in self.on:
            return PreparedStart()
        context = _require_context(event)
        verdict = True if self.when is None else self.when.holds(context)
        if verdict is None:
            raise UnusableEventError(f"`when` of start {self.name} cannot be evaluated for this event")
        if not verdict:
            return PreparedStart()
        fields = {name: _to_text(expression.evaluate(context), name) for name, expression in self.fields.items()}
        return PreparedStart(
            goal=render_goal(self.goal, fields),
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


def _require_context(event: InboundEvent) -> "cel.Context":
    context = _build_event_context(event)
    if context is None:
        reason = "the event has a number beyond 64 bits, a list of more than 200 entries, or invalid text"
        raise UnusableEventError(reason)
    return context


def _build_event_context(event: InboundEvent) -> "cel.Context | None":
    import cel

    facts = {"event": event.body, "kind": event.kind, "user": event.user or ""}
    return cel.Context(facts) if is_exact(facts) else None


def _to_text(value: Any, name: str) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | float() if value != "":
            return str(value)
        case _:
            raise UnusableEventError(f"the field {name} has no text, number or boolean in this event")

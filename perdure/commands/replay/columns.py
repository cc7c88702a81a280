"""The columns of a replay, each from one record: the run, the run as it was played again, and the candidate."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from activities.run.definition import project_part
from contracts.models import NO_RESULT
from contracts.run.evaluation import Case, Facts
from contracts.run.export import Export, ExportedCall, ExportedTurn
from contracts.run.state import RunStatus
from decisions import builtin_tools
from decisions.evaluation import failed_checks
from decisions.run.outcome import event_text
from decisions.telemetry import MODEL_TURNS
from decisions.text.formatting import call_line, truncate
from perdure.client.event_reader import FUSED_TURN
from perdure.commands.evaluate.facts import called_tools
from perdure.commands.replay.play import Departure

MAX_SHOWN = 160  # characters of a text in a difference


@dataclass(frozen=True)
class Column:
    """One way of the run. `left` are its calls that are not in the record, `why` its failed checks (None: no case)."""

    name: str
    record: Export
    left: Sequence[Departure]
    facts: Facts
    why: Sequence[str] | None

    @classmethod
    def of(cls, name: str, record: Export, case: Case | None, left: Sequence[Departure] = ()) -> "Column":
        facts = facts_of(record)
        return cls(name, record, left, facts, failed_checks(case.expect, facts) if case else None)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(turn.model for turn in self._turns))

    @property
    def turns(self) -> int:
        return len(self._turns)

    @property
    def _turns(self) -> list[ExportedTurn]:
        return [turn for turn in self.record.turns if turn.model and turn.activity in (*MODEL_TURNS, FUSED_TURN)]

    @property
    def has_stopped(self) -> bool:
        """True if the play was stopped where it left the record."""
        return bool(self.left) and self.facts.status == RunStatus.cancelled


@dataclass(frozen=True)
class Comparison:
    """The columns of one run. Without `differences` the replay is faithful; `changed` is what the agent's file changed.

    `unmade` are the calls of the run that the candidate does not ask for.
    """

    observed: Column
    as_it_was: Column
    candidate: Column
    differences: Sequence[str] = field(default=())
    changed: Sequence[str] = field(default=())
    unmade: Sequence[str] = field(default=())

    @property
    def columns(self) -> tuple[Column, ...]:
        return (self.observed, self.as_it_was, self.candidate)

    @property
    def has_passed(self) -> bool:
        """True if the replay is faithful, and the candidate comes to an end that its case, if there is one, expects."""
        candidate = self.candidate
        ends = candidate.facts.status in (RunStatus.completed, RunStatus.escalated)
        is_right = ends if candidate.why is None else not candidate.why
        return not self.differences and is_right and not candidate.has_stopped


def compare_columns(observed: Column, as_it_was: Column, candidate: Column) -> Comparison:
    return Comparison(
        observed,
        as_it_was,
        candidate,
        tuple(_differences(observed, as_it_was)),
        tuple(_changed_parts(observed.record, as_it_was.record)),
        tuple(_unmade_calls(observed.record, candidate.record)),
    )


def facts_of(record: Export) -> Facts:
    """Return what an expectation is checked against. Steps, tokens and cost are the run's own, without subtasks."""
    end = record.end or {}
    event = end.get("event")
    payload = event["payload"] if event else {}
    return Facts(
        status=record.status,
        text=event_text(event) if event else end.get("message", ""),
        result=payload.get("result", NO_RESULT),
        asked=tuple(question.text for question in record.questions),
        files=tuple(dict.fromkeys([*(file.path for file in record.artifacts), *payload.get("artifacts", ())])),
        made=called_tools(record.calls),
        tried=tuple(dict.fromkeys(call.tool for call in record.calls)),
        steps=max((call.step or 0 for call in record.calls), default=0),
        tokens=record.usage.total,
        cost_usd=record.cost_usd,
    )


def _differences(observed: Column, again: Column) -> Iterator[str]:
    """Yield how the run differs when it is played again: the first call, and the end."""
    for departure in again.left:
        yield f"the record has no result of {departure.call}"
    for was, now in zip_longest(observed.record.calls, again.record.calls):
        if was is None or now is None or (was.tool, was.digest, was.step) != (now.tool, now.digest, now.step):
            yield f"{_name_call(now)} and not {_name_call(was)}"
            break
    else:
        yield from _other_words(observed.record, again.record)
    for name in ("status", "text", "result"):
        was, now = getattr(observed.facts, name), getattr(again.facts, name)
        if was != now:
            yield f"{name}: {_show(now)} and not {_show(was)}"


def _other_words(was: Export, now: Export) -> Iterator[str]:
    """Yield the first part of the conversation that differs."""
    pairs = zip_longest(_contents_of(was), _contents_of(now))
    for number, (old, new) in enumerate(pairs, 1):
        if old != new:
            yield f"part {number} of the conversation: {_show(new)} and not {_show(old)}"
            return


def _contents_of(record: Export) -> Iterator[str]:
    return (json.dumps(part.content, ensure_ascii=False, sort_keys=True) for part in record.transcript.parts)


def _changed_parts(was: Export, now: Export) -> Iterator[str]:
    """Yield the parts of the agent that are not as the run had them."""
    if not was.definitions or not now.definitions:
        return
    old, new = (project_part(next(reversed(record.definitions.values()))) for record in (was, now))
    names = {"model": "model", "fallbacks": "fallbacks", "options": "settings", "system": "prompt", "tools": "tools"}
    names |= {"searched": "tools", "output_schema": "output_schema", "accept": "accept"}
    yield from dict.fromkeys(label for name, label in names.items() if getattr(old, name) != getattr(new, name))


def _unmade_calls(was: Export, now: Export) -> Iterator[str]:
    asked = [call.digest for call in now.calls]
    for call in was.calls:
        if call.digest in asked:
            asked.remove(call.digest)
        elif call.tool not in builtin_tools.CONTROL_TOOLS:
            yield _name_call(call)


def _name_call(call: ExportedCall | None) -> str:
    if call is None:
        return "no more calls"
    place = f"step {call.step}: " if call.step else ""
    return truncate(f"{place}{call_line(call.tool, call.arguments)}", MAX_SHOWN)


def _show(value: object) -> str:
    return repr(truncate(value if isinstance(value, str) else str(value), MAX_SHOWN))

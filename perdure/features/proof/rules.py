"""The checks of a run against its expectation, the kills for a history, and the differences between two plays."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import zip_longest
from typing import Any

from perdure.contracts.run.export import Export, ExportedCall
from perdure.contracts.tool import Effect
from perdure.decisions.run.transcript import without_thinking
from perdure.decisions.text.formatting import call_line, truncate
from perdure.decisions.tools import CONTROL_TOOLS
from perdure.features.proof.contract import (
    NOT_RECORDED,
    Case,
    EndFacts,
    Event,
    EventRow,
    Expectation,
    Facts,
    KillMoment,
    KillPoint,
    PlayFacts,
    PlayTool,
    ReplayedCall,
    Score,
    Target,
)

MAX_REASON_TEXT = 120  # characters of a text in a reason
# The server writes these together with the event before them.
_JOINED = {
    "workflow_task_scheduled",
    "activity_task_scheduled",
    "activity_task_cancel_requested",
    "timer_started",
    "timer_canceled",
    "marker_recorded",
    "upsert_workflow_search_attributes",
    "workflow_properties_modified",
    "start_child_workflow_execution_initiated",
    "signal_external_workflow_execution_initiated",
    "request_cancel_external_workflow_execution_initiated",
    "workflow_execution_update_accepted",
    "workflow_execution_update_completed",
    "workflow_execution_completed",
    "workflow_execution_failed",
    "workflow_execution_canceled",
    "workflow_execution_continued_as_new",
}
_ACTIVITY_ENDS = {f"activity_task_{end}" for end in ("completed", "failed", "timed_out", "canceled")}
MAX_SHOWN = 160  # characters of a text in a difference
MAX_PAID = 2  # requests of one turn: a kill loses one reply at most


def failed_checks(expect: Expectation, facts: Facts) -> tuple[str, ...]:
    if (question := _question_check(expect, facts)) is not None:
        return (question,)
    if facts.unanswered is not None:  # it asked as expected, and was stopped there
        return tuple(_call_checks(expect, facts))
    return (
        *_end_checks(expect, facts),
        *_result_checks(expect, facts),
        *_call_checks(expect, facts),
        *_limit_checks(expect, facts),
    )


def _question_check(expect: Expectation, facts: Facts) -> str | None:
    if facts.unanswered is not None and (expect.asks is None or expect.answer):
        unsettled = ", and no answer settles it" if expect.answer else ""
        return f"it asks a person{unsettled}: {_shorten(facts.unanswered)}"
    if expect.asks is None:
        return None
    if not facts.asked:
        return f"it asks no question; it is {facts.status}: {_shorten(facts.text)}"
    if expect.asks is not True and not any(expect.asks in asked for asked in facts.asked):
        return f"it asks something else: {_shorten(facts.asked[0])}"
    return None


def _end_checks(expect: Expectation, facts: Facts) -> Iterator[str]:
    if facts.status != expect.status:
        yield f"it is {facts.status}, not {expect.status}: {_shorten(facts.text)}"
        return
    for text in expect.contains:
        if text not in facts.text:
            yield f"it does not say {_shorten(text)!r}, but {_shorten(facts.text)!r}"
    for text in expect.not_contains:
        if text in facts.text:
            yield f"it says {_shorten(text)!r}"
    for pattern in expect.matches:
        if not re.search(pattern, facts.text):
            yield f"it does not match {_shorten(pattern)!r}: {_shorten(facts.text)!r}"
    for pattern in expect.artifact:
        if not any(fnmatchcase(file, pattern) for file in facts.files):
            files = ", ".join(facts.files) or "none"
            yield f"there is no file {_shorten(pattern)}; there are: {_shorten(files)}"


def _result_checks(expect: Expectation, facts: Facts) -> Iterator[str]:
    for path, expected in expect.result.items():
        if (actual := _value_at(facts.result, path)) != expected:
            yield f"its result has {path} = {_shorten(_as_json(actual))}, not {_shorten(_as_json(expected))}"


def _value_at(result: Any, path: str) -> Any:
    """Return the value at a dotted path of names and list positions; None if there is none."""
    for name in path.split("."):
        if isinstance(result, dict):
            result = result.get(name)
        elif isinstance(result, list) and name.isdecimal() and int(name) < len(result):
            result = result[int(name)]
        else:
            return None
    return result


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _call_checks(expect: Expectation, facts: Facts) -> Iterator[str]:
    for tool in expect.calls:
        if tool not in facts.made:
            yield f"it does not call {tool}; it calls: {_shorten(', '.join(facts.made) or 'nothing')}"
    for tool in expect.never_calls:
        if tool in facts.requested:
            yield f"it calls {tool}"


def _limit_checks(expect: Expectation, facts: Facts) -> Iterator[str]:
    if expect.max_steps is not None and facts.steps > expect.max_steps:
        yield f"it takes {facts.steps} steps; the limit is {expect.max_steps}"
    if expect.max_cost_usd is None:
        return
    if facts.cost_usd is None:
        yield "its cost is not known: set the price in perdure.toml, [prices.MODEL]"
    elif facts.cost_usd > expect.max_cost_usd:
        yield f"it costs USD {facts.cost_usd:.4f}; the limit is {expect.max_cost_usd:g}"


def pass_rate(scores: Sequence[Score]) -> float:
    """Return the share that passed, 0 to 1."""
    return sum(score.has_passed for score in scores) / len(scores)


def case_name(case: Case) -> str:
    return case.name or truncate(" ".join(case.goal.split()), 60)


def _shorten(text: str) -> str:
    return truncate(" ".join(text.split()), MAX_REASON_TEXT)


def plan_kills(events: Sequence[Event], subtask: str = "") -> list[EventRow]:
    """Return a row for each event of a run in a whole play, with the kills just before and just after it."""
    moment = partial(KillMoment, subtask=subtask)
    last = _last_of_batches(events)
    first = {end: min(event for event in last if last[event] == end) for end in last.values()}
    types = {event["id"]: event["type"] for event in events}
    scheduled = {event["id"]: event for event in events if event["type"] == "activity_task_scheduled"}
    rows = []
    for event in events:
        number, kind = event["id"], event["type"]
        opening = first[last[number]]
        seen = moment(kind="event", at=last[number])
        before = moment(kind="event", at=opening - 1) if opening > 1 else None
        if types[opening] == "workflow_task_completed":
            before = moment(kind="task", at=opening)
        activity = scheduled.get(event.get("scheduled_event_id", 0))
        if activity is not None and kind == "activity_task_started":
            before = moment(kind="event", at=last[activity["id"]])
            seen = moment(kind="begin", at=int(activity["activity_id"]))
        elif activity is not None and kind in _ACTIVITY_ENDS:
            before = moment(kind="end", at=int(activity["activity_id"]))
        row = EventRow(
            event=number,
            type=kind,
            label=(activity or event).get("summary", ""),
            subtask=subtask,
            before=before and KillPoint(target=Target.worker, moment=before),
            after=KillPoint(target=Target.worker, moment=seen),
            server=KillPoint(target=Target.server, moment=seen) if seen.kind == "event" else None,
        )
        rows.append(row)
    return rows


def _last_of_batches(events: Sequence[Event]) -> dict[int, int]:
    """Return for each event the last one that the server wrote together with it."""
    last: dict[int, int] = {}
    end = 0
    for event in reversed(events):
        end = end or event["id"]
        last[event["id"]] = end
        if event["type"] not in _JOINED:
            end = 0
    return last


def kill_points(rows: Iterable[EventRow], targets: Iterable[Target]) -> list[KillPoint]:
    """Return each kill of these targets once, in the order of the events."""
    points = (point for row in rows for point in (row.before, row.after, row.server))
    allowed = set(targets)
    return list(dict.fromkeys(point for point in points if point is not None and point.target in allowed))


def tools_in(events: Sequence[Event]) -> tuple[PlayTool, ...]:
    """Return the tool calls of a history that are activities, with their attempts."""
    started = {event["scheduled_event_id"]: event for event in events if event["type"] == "activity_task_started"}
    return tuple(
        PlayTool(
            tool=call["tool"],
            effect=call.get("effect", Effect.read),
            scheduled=event["id"],
            attempts=started.get(event["id"], {}).get("attempt", 1),
        )
        for event in events
        if event["type"] == "activity_task_scheduled"
        for call in _calls_of(event)
    )


def _calls_of(event: Event) -> Iterable[Event]:
    request = next(iter(event.get("input") or ()), None)
    if not isinstance(request, Mapping):
        return ()
    match event["activity_type"]["name"]:
        case "call_tool":
            return (request,)
        case "read_and_reflect":
            return tuple(request["reads"])
        case _:
            return ()


def find_differences(whole: PlayFacts, play: PlayFacts) -> tuple[str, ...]:
    """Return what differs in a killed play, with the declaration that explains it, if one does."""
    if play.error:
        return (play.error,)
    if not play.was_killed:
        return ("the play did not come to this moment: it took another way before the kill",)
    return tuple(_play_differences(whole, play))


def _play_differences(whole: PlayFacts, play: PlayFacts) -> Iterator[str]:
    yield from end_differences(whole, play)
    for path in sorted({*whole.artifacts, *play.artifacts}):
        if whole.artifacts.get(path) != play.artifacts.get(path):
            missing = "missing" if path not in play.artifacts else "unexpected" if path not in whole.artifacts else ""
            yield f"artifact {path}: {missing or 'other content'}"
    if set(play.requests) != set(whole.requests):
        yield f"model: {len(play.requests)} turns and not {len(whole.requests)}"
    for turn, count in play.requests.items():
        if count >= MAX_PAID + whole.requests.get(turn, 1):
            yield f"model: {turn} was requested {count} times"
    if play.check != whole.check:
        yield f"check: {_show(play.check)} and not {_show(whole.check)}{_blame(play)}"


def _blame(play: PlayFacts) -> str:
    """Return the declaration that is wrong, as the calls of the play suggest."""
    repeated = [tool for tool in play.tools if tool.attempts > 1 and tool.effect is not Effect.once]
    if repeated:
        tool = repeated[-1]
        if tool.effect is Effect.read:
            return f"; {tool.tool} is declared read, was repeated, and changed something: declare it keyed or once"
        return f"; {tool.tool} is declared keyed, was repeated, and does not honour its key: declare it once"
    once = list(dict.fromkeys(tool.tool for tool in play.tools if tool.effect is Effect.once))
    if once and not play.doubts:
        return f"; {', '.join(once)}: declared once, and answered before it was done: answer after the change"
    return ""


def end_differences(was: EndFacts, now: EndFacts) -> Iterator[str]:
    for name in ("status", "text", "result"):
        if getattr(now, name) != getattr(was, name):
            yield f"{name}: {_show(getattr(now, name))} and not {_show(getattr(was, name))}"


def record_differences(was: Export, now: Export) -> Iterator[str]:
    """Yield the first call that differs in two records of a run, or else the first part of the conversation."""
    for old, new in zip_longest(was.calls, now.calls):
        if old is None or new is None or (old.tool, old.digest, old.step) != (new.tool, new.digest, new.step):
            yield f"{_name_call(new)} and not {_name_call(old)}"
            return
    for number, (part, other) in enumerate(zip_longest(_contents_of(was), _contents_of(now)), 1):
        if part != other:
            yield f"part {number} of the conversation: {_show(other)} and not {_show(part)}"
            return


def unmade_calls(was: Export, now: Export) -> Iterator[str]:
    """Yield the calls of a record that the other does not have."""
    asked = [call.digest for call in now.calls]
    for call in was.calls:
        if call.digest in asked:
            asked.remove(call.digest)
        elif call.tool not in CONTROL_TOOLS:
            yield _name_call(call)


def _contents_of(record: Export) -> Iterator[str]:
    return (_as_json(without_thinking(part.content)) for part in record.transcript.parts)


def _name_call(call: ExportedCall | None) -> str:
    if call is None:
        return "no more calls"
    place = f"step {call.step}: " if call.step else ""
    return truncate(f"{place}{call_line(call.tool, call.arguments)}", MAX_SHOWN)


def _show(value: Any) -> str:
    return repr(truncate(value if isinstance(value, str) else str(value), MAX_SHOWN))


def count_unfaithful(rows: Sequence[ReplayedCall]) -> int:
    """Return how many verdicts, evaluated again, differ from their record."""
    return sum(row.as_it_was not in (row.verdict, NOT_RECORDED) for row in rows)

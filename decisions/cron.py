"""A cron line as Temporal's schedules read it: its time zone, its meaning in words, and the lines that are rejected.

Temporal differs from crontab(5) in two ways: a start must match the day of the month *and* the day of the week, and a
sixth field is the year.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MAX_TIMES = 4  # of a day, listed one by one
_ZONE = re.compile(r"^(?:CRON_TZ|TZ)=(\S*)\s+")
_PART = re.compile(r"(\*|[A-Za-z]+|\d+)(?:-([A-Za-z]+|\d+))?(?:/(\d+))?")


class CronError(ValueError):
    """The line is rejected. The message is one line with the reason and an alternative."""


@dataclass(frozen=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, tuple(MONTHS)),
    _Field("day of the week", 0, 7, tuple(DAYS)),
)


def split_zone(line: str, time_zone: str | None) -> tuple[str, str | None]:
    """Return the five fields and the time zone, from the line or from `time_zone`. Raises CronError."""
    line = line.strip()
    if (match := _ZONE.match(line)) is None:
        return line, time_zone
    zone = match[1]
    if time_zone not in (None, zone):
        raise CronError(f"the cron line names the time zone {zone}, and --time-zone {time_zone}: give one of them")
    return line[match.end() :].strip(), zone or None


def check_cron(line: str) -> None:
    """Reject a line that does not mean what it seems to, with CronError. The server checks lines unknown here."""
    if line.startswith("@every"):
        raise CronError(f'"{line}" is an interval: give it as --every {line.removeprefix("@every").strip() or "1h"}')
    if line.startswith("@"):
        return
    fields = line.partition("#")[0].split()
    if len(fields) != len(_FIELDS):
        more = "; Temporal takes no seconds, and a sixth field is a year" if len(fields) > len(_FIELDS) else ""
        five = "minute, hour, day of the month, month, day of the week"
        raise CronError(f'"{line}" has {len(fields)} fields, and a cron line has five: {five}{more}')
    for text, field in zip(fields, _FIELDS, strict=True):
        _check_steps(text, field)


def _check_steps(text: str, field: _Field) -> None:
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None or match[3] is None:
            continue
        step, span = int(match[3]), field.high - field.low
        if step == 0 or step > span:
            only = "never" if step == 0 else f"only at the first {field.name} of its range"
            instead = f"; for every {step} {field.name}s give --every" if field.low == 0 and step else ""
            raise CronError(
                f'"{part}" as {field.name} comes {only}, as a {field.name} is {field.low} to {field.high}{instead}'
            )


def describe_cron(line: str, time_zone: str | None) -> str:
    """Say in words when the line starts something, like "at 09:00 on Monday to Friday in Europe/Berlin"."""
    zone = f"in {time_zone or 'UTC'}"
    fields = SHORTHANDS.get(line, line).partition("#")[0].split()
    sets = [_read_field(text, field) for text, field in zip(fields, _FIELDS, strict=False)]
    if len(sets) != len(_FIELDS) or None in sets:
        return f"{line} {zone}"  # the server accepts more than this module reads
    minutes, hours, days, months, weekdays = (values or [] for values in sets)
    weekdays = sorted({day % 7 for day in weekdays})
    return " ".join(filter(None, (_format_times(minutes, hours), _on_days(days, weekdays), _in_months(months), zone)))


def _read_field(text: str, field: _Field) -> list[int] | None:
    """Return all values of the field, sorted, if this module can read it."""
    values: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None or (first := _read_number(match[1], field)) is None:
            return None
        last = field.high if match[1] == "*" or (match[2] is None and match[3]) else first
        if match[2] is not None:
            end = _read_number(match[2], field)
            if end is None:
                return None
            last = end
        if not field.low <= first <= last <= field.high:
            return None
        values.update(range(first, last + 1, int(match[3] or 1)))
    return sorted(values)


def _read_number(text: str, field: _Field) -> int | None:
    if text == "*":
        return field.low
    if text.isdecimal():
        return int(text)
    short = [name[:3].lower() for name in field.names]
    return short.index(text[:3].lower()) + field.low if text[:3].lower() in short else None


def _format_times(minutes: list[int], hours: list[int]) -> str:
    if len(minutes) * len(hours) <= MAX_TIMES:
        return "at " + _join_words([f"{hour:02}:{minute:02}" for hour in hours for minute in minutes])
    when = _of_hour(minutes)
    return when if len(hours) == 24 else f"{when}, in the hours {_join_words(_format_ranges(hours, str))}"


def _of_hour(minutes: list[int]) -> str:
    if len(minutes) == 60:
        return "every minute"
    step = minutes[1] - minutes[0] if len(minutes) > 1 else 0
    if step and minutes == list(range(0, 60, step)) and 60 % step == 0:
        return f"every {step} minutes"
    if len(minutes) == 1:
        return f"at minute {minutes[0]} of each hour"
    return f"at the minutes {_join_words(_format_ranges(minutes, str))} of each hour"


def _on_days(days: list[int], weekdays: list[int]) -> str:
    on_month = "" if len(days) == 31 else f"on day {_join_words(_format_ranges(days, str))} of the month"
    on_week = "" if len(weekdays) == len(DAYS) else _join_words(_format_ranges(weekdays, DAYS.__getitem__))
    if on_month and on_week:
        return f"{on_month}, only if that is {on_week},"
    return on_month or (on_week and f"on {on_week}")


def _in_months(months: list[int]) -> str:
    if len(months) == len(MONTHS):
        return ""
    return f"in {_join_words(_format_ranges(months, lambda month: MONTHS[month - 1]))}"


def _format_ranges(values: list[int], name: Callable[[int], str]) -> list[str]:
    """Format runs of three or more as "a to b"."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    texts = ([f"{name(run[0])} to {name(run[-1])}"] if len(run) > 2 else map(name, run) for run in runs)
    return [text for run in texts for text in run]


def _join_words(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"

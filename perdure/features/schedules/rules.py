"""A cron line as Temporal's schedules read it: its time zone, and the lines that are rejected.

Temporal differs from crontab(5) in two ways: a start must match the day of the month *and* the day of the week, and a
sixth field is the year.
"""

import re
from dataclasses import dataclass

_ZONE = re.compile(r"^(?:CRON_TZ|TZ)=(\S*)\s+")
_COMMENT = re.compile(r"(?:^|\s)#")
_PART = re.compile(r"(\*|[A-Za-z]+|\d+)(?:-([A-Za-z]+|\d+))?(?:/(\d+))?")


class CronError(ValueError):
    """The line is rejected. The message is one line with the reason and an alternative."""


@dataclass(frozen=True)
class _Field:
    name: str
    low: int
    high: int


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12),
    _Field("day of the week", 0, 7),
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
    fields = _COMMENT.split(line)[0].split()
    for text in fields:
        if "#" in text:
            nth = "the first Monday of a month is 1-7 * 1, as both days must match"
            raise CronError(f'"{text}" is no field: a # would begin a comment within it; {nth}')
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

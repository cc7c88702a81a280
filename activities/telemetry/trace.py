"""`trace.jsonl`: a line per turn, call and event of a run, for people and programs that read its folder.

History is the record, and nothing relies on this file: a full disk loses a line, never a call.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from temporalio import activity

from perdure.activities.storage.workspace import Workspace
from perdure.activities.telemetry.metrics import add_counts
from perdure.decisions import telemetry

TRACE_FILE = "trace.jsonl"


@contextmanager
def ignore_disk_errors(what: str) -> Iterator[None]:
    """Log an OSError of the block, and continue."""
    try:
        yield
    except OSError as error:
        activity.logger.warning("%s not written: %s", what, error)


def write_trace(workspace: Workspace, *lines: Mapping[str, Any]) -> None:
    """Append lines. The `key` of each identifies its event; a retried activity writes the same key again."""
    for line in lines:
        with ignore_disk_errors(TRACE_FILE):
            workspace.append_line(TRACE_FILE, json.dumps(with_time(line), ensure_ascii=False))


def with_time(line: Mapping[str, Any]) -> dict[str, Any]:
    return {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **line}


def report_event(workspace: Workspace, name: str, key: str, **figures: Any) -> None:
    """Report a structured event (B12) to the log, the metrics, and the run's trace."""
    line = {"event": name, **figures}
    activity.logger.info(name, extra={"event": line})
    add_counts(activity.metric_meter(), telemetry.count_event(name, figures))
    write_trace(workspace, {"key": key, **line})


def event_number(line: Mapping[str, Any]) -> int:
    """Return the number of a workflow event's line; 0 for other lines."""
    kind, _, number = str(line["key"]).partition(":")
    return int(number) if kind == "event" and number.isdecimal() else 0


def unique_keys(text: str) -> dict[str, dict[str, Any]]:
    """Return the lines by key, the last one of each."""
    lines: dict[str, dict[str, Any]] = {}
    for line in text.split("\n"):
        try:
            entry = json.loads(line)
            lines[entry["key"]] = entry
        except (ValueError, KeyError, TypeError):
            continue  # truncated by a crash; the retried activity wrote it again
    return lines

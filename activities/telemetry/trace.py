"""`trace.jsonl`: what a run did, a line each, for people and programs that read its folder.

It is told, not relied upon: history is the record. So a full disk costs a line, never the call that it tells of.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from temporalio import activity

from activities.storage.workspace import Workspace
from activities.telemetry.metrics import count
from decisions.telemetry import metrics

NAME = "trace.jsonl"


@contextmanager
def spared(what: str) -> Iterator[None]:
    """What the disk refuses inside is logged, and otherwise done without."""
    try:
        yield
    except OSError as error:
        activity.logger.warning("%s not written: %s", what, error)


def record(workspace: Workspace, line: Mapping[str, Any]) -> None:
    """Appends a line. `key` names what it tells of; a retried activity writes it again under the same key."""
    with spared(NAME):
        workspace.append_line(NAME, json.dumps(dated(line), ensure_ascii=False))


def dated(line: Mapping[str, Any]) -> dict[str, Any]:
    return {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **line}


def event(workspace: Workspace, name: str, key: str, **figures: Any) -> None:
    """One of the structured events (B12): in the log, in the metrics, and in the run's trace."""
    told = {"event": name, **figures}
    activity.logger.info(name, extra={"event": told})
    count(activity.metric_meter(), metrics.of_event(name, figures))
    record(workspace, {"key": key, **told})


def record_all(workspace: Workspace, told: Sequence[Mapping[str, Any]]) -> None:
    """The events that the run's workflow has told; each has its key."""
    for line in told:
        record(workspace, line)


def number_of(line: Mapping[str, Any]) -> int:
    """Of an event that the run's workflow has told; 0 for other lines."""
    kind, _, number = str(line["key"]).partition(":")
    return int(number) if kind == "event" and number.isdecimal() else 0


def once_each(text: str) -> dict[str, dict[str, Any]]:
    """The lines by their key, each once."""
    lines: dict[str, dict[str, Any]] = {}
    for line in text.split("\n"):
        try:
            entry = json.loads(line)
            lines[entry["key"]] = entry
        except (ValueError, KeyError, TypeError):
            continue  # cut in half by a crash; its activity wrote it again
    return lines

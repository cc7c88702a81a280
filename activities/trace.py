"""`trace.jsonl`: what a run did, a line each, for people and programs that read its folder.

It is told, not relied upon: history is the record. So a full disk costs a line, never the call that it tells of.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from temporalio import activity

from activities.observation import count
from activities.workspace import Workspace
from decisions import metrics
from decisions.ids import run_id_of

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


class TraceEvents(logging.Handler):
    """Writes what workflows tell to the traces of their runs; what activities tell is there already."""

    def __init__(self, workspace_of: Callable[[str], Workspace]) -> None:
        super().__init__()
        self._workspace_of = workspace_of

    def emit(self, line: logging.LogRecord) -> None:
        where, told = getattr(line, "temporal_workflow", None), getattr(line, "event", None)
        if where and told:
            record(self._workspace_of(run_id_of(where["workflow_id"])), {"key": getattr(line, "key", ""), **told})


def once_each(text: str) -> dict[str, dict[str, Any]]:
    """The lines by their key, each once."""
    lines: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            lines[entry["key"]] = entry
        except (ValueError, KeyError, TypeError):
            continue  # cut in half by a crash; its activity wrote it again
    return lines

"""Logs: one JSON object a line, with the run they belong to."""

import asyncio
import json
import logging
import sys
from datetime import UTC, datetime

from temporalio.exceptions import ApplicationError
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

# An activity that fails with a kind that was named, or is cancelled, is no bug: where it happened says nothing.
EXPECTED = (ApplicationError, asyncio.CancelledError)


class JsonLines(logging.Formatter):
    """`{"at", "level", "logger", "message", "run"?}`; an event adds its figures, `error` has the traceback of a bug."""

    def format(self, record: logging.LogRecord) -> str:
        context = getattr(record, "temporal_workflow", None) or getattr(record, "temporal_activity", None) or {}
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if run := context.get("workflow_id"):
            line["run"] = run
        line |= getattr(record, "event", None) or {}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = str(error) if isinstance(error, EXPECTED) else self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_to(handler: logging.Handler, level: int = logging.INFO) -> None:
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request says nothing new
    logging.getLogger("httpx2").setLevel(logging.WARNING)


def quiet_core() -> None:
    """Before the first client: what Temporal's core has to say goes into our log. It would print to standard output."""
    forwarded = LogForwardingConfig(logger=logging.getLogger("temporalio.core"))
    logs = LoggingConfig(filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarded)
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=logs)))


def log_to_stderr() -> None:
    log_to(logging.StreamHandler(sys.stderr))

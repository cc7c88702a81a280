"""Logs: one JSON object a line, with the run they belong to."""

import asyncio
import json
import logging
import sys
from datetime import UTC, datetime

from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from activities.secrets import NO_SECRETS, Secrets

# An activity that fails with a kind that was named, or is cancelled, is no bug: where it happened says nothing.
EXPECTED = (ApplicationError, asyncio.CancelledError)


class JsonLines(logging.Formatter):
    """`{"at", "level", "logger", "message", "run"?}`; an event adds its figures, `error` has the traceback of a bug."""

    def __init__(self, secrets: Secrets = NO_SECRETS) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        context = getattr(record, "temporal_workflow", None) or getattr(record, "temporal_activity", None) or {}
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._secrets.redact(record.getMessage()),
        }
        if run := context.get("workflow_id"):
            line["run"] = run
        line |= self._secrets.redact_value(getattr(record, "event", None) or {})
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            told = str(error) if isinstance(error, EXPECTED) else self.formatException(record.exc_info)
            line["error"] = self._secrets.redact(told)
        return json.dumps(line, ensure_ascii=False)


def log_to(handler: logging.Handler, secrets: Secrets, level: int = logging.INFO) -> None:
    handler.setFormatter(JsonLines(secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request says nothing new
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    # The run is a field of each line; the SDK would append all that it knows of it to the message as well.
    workflow.logger.workflow_info_on_message = False
    activity.logger.activity_info_on_message = False


def quiet_core() -> None:
    """Before the first client: what Temporal's core has to say goes into our log. It would print to standard output."""
    forwarded = LogForwardingConfig(logger=logging.getLogger("temporalio.core"))
    logs = LoggingConfig(filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarded)
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=logs)))


def log_to_stderr(secrets: Secrets) -> None:
    log_to(logging.StreamHandler(sys.stderr), secrets)
